"""A federation with real keys, and messages in it as honest nodes would sign them: for tests to alter."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from silomix.runtime.core.numbers.masks import SEALED_BYTES, Rng, Secret, public_key
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.federation import Federation, Member
from silomix.runtime.core.protocol.hearing import Life
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.messages import (
    Bond,
    Cohort,
    Evidence,
    Fence,
    Header,
    Manifest,
    Participant,
    RoundKey,
    SealedSeed,
    trailer_digest,
)
from silomix.runtime.core.protocol.release import Ready, Signatures, Trail, pad_digest
from silomix.runtime.core.protocol.roundlog import Attempted, Outcome, Record, RoundLog, countersign_digest, genesis
from silomix.runtime.core.protocol.rules import invited, layout
from silomix.runtime.core.protocol.shuffler import BodyIn

AGGREGATOR = "aggregator"
SCHEMA = Schema((TensorSpec("a", (5,)), TensorSpec("b", (2,), buffer=True)))
MODEL, OTHER_MODEL = bytes([1]) * 32, bytes([2]) * 32
STATE, OTHER_STATE = bytes([3]) * 32, bytes([4]) * 32


def rng(seed: object = 0) -> Rng:
    """Randomness that a test can repeat."""
    return Random(repr(seed)).randbytes


def secret(*what: object) -> Secret:
    return Secret(hashlib.sha256(repr(what).encode()).digest())


@cache
def identity(name: str) -> Identity:
    return Identity(name, secret("identity", name))


@cache
def federation(silos: int = 4, hops: int = 2, **policy: Any) -> Federation:
    """A federation of so many silos and hops."""
    shufflers = tuple(Member(f"hop-{i + 1}", identity(f"hop-{i + 1}").public, f"h{i}:1") for i in range(hops))
    return Federation(
        name="test",
        aggregator=Member(AGGREGATOR, identity(AGGREGATOR).public, "a:1"),
        shufflers=shufflers,
        silos=tuple(Member(f"silo-{i + 1}", identity(f"silo-{i + 1}").public) for i in range(silos)),
        policy=Policy(
            **{"minimum_cohort": 3, "chunk_parameters": 4, "deadline_s": 60, "release_s": 20, "rounds": 4, **policy}
        ),
    )


def lived(life: bytes, f: Federation, signer: str = AGGREGATOR) -> bytes:
    """The aggregator's signature under a life of its own."""
    return Life(AGGREGATOR, life).signed(identity(signer), f).signature


def private(hop: str, silo: str, round_: int, attempt: int = 1) -> Secret:
    """The key that a hop is to have made for a silo."""
    return secret("round key", hop, silo, round_, attempt)


# The round log


def counted(record: Record, f: Federation, hops: tuple[str, ...] | None = None) -> Record:
    """The record with the countersignatures of all hops, or of these."""
    names = f.chain if hops is None else hops
    made = tuple((hop, identity(hop).sign(countersign_digest(record.digest, hop))) for hop in names)
    return replace(record, countersignatures=made)


def recorded(log: RoundLog, outcome: Outcome = Outcome.ABANDONED, **changes: Any) -> Record:
    """The record that an honest aggregator would sign next, or one with some fields of its own choice."""
    last = log.last
    assert last is not None
    model, state = last.model_after, last.state_after
    fields: dict[str, Any] = {
        "federation": log.federation.digest,
        "round": log.round,
        "outcome": outcome,
        "attempts": (),
        "root": b"",
        "model_before": model,
        "model_after": model,
        "state_before": state,
        "state_after": state,
        "previous": log.head,
    }
    return Record(**{**fields, **changes}).signed(identity(AGGREGATOR))


def extended(log: RoundLog, record: Record) -> RoundLog:
    """The log with one record more, which is found again by its head."""
    made = RoundLog(log.federation, [*log.records, record])
    return LOGS.setdefault(made.head, made)


LOGS: dict[bytes, RoundLog] = {}
"""Every history that a test has made, by its head."""
_PAST: dict[tuple[bytes, int], RoundLog] = {}


def past(f: Federation, rounds: int = 0) -> RoundLog:
    """The log of a federation that has abandoned so many rounds: the model is still the first one."""
    key = (f.digest, rounds)
    if key not in _PAST:
        if rounds:
            log = past(f, rounds - 1)
            _PAST[key] = extended(log, counted(recorded(log), f))
        else:
            _PAST[key] = extended(RoundLog(f), counted(genesis(f, MODEL, STATE).signed(identity(AGGREGATOR)), f))
    return _PAST[key]


# The release


def pad(hop: str, *what: object) -> Secret:
    return secret("pad", hop, *what)


def ready(m: Manifest, c: Cohort, pads: dict[str, Secret] | None = None, grouping: bytes = b"") -> Ready:
    """What every hop signs of a vector that came through: hops that are not in `pads` have one that tests know."""
    came, trails = hashlib.sha256(c.digest).digest(), []
    for hop in m.chain:
        sent = hashlib.sha256(came + hop.encode()).digest()
        own = (pads or {}).get(hop) or pad(hop, m.digest)
        trails.append(Trail(hop, c.digest, grouping, came, sent, pad_digest(own)).signed(identity(hop)))
        came = sent
    return Ready(m.digest, m.model, tuple(trails))


def bond(silos: Iterable[str], model: bytes = b"", chain: tuple[str, ...] = ("hop-1", "hop-2")) -> Bond:
    """Proof that everybody signed for these silos, on the first model unless told otherwise."""
    c = Cohort(bytes(32), tuple(Participant(silo, hashlib.sha256(silo.encode()).digest()) for silo in silos))
    trails = tuple(Trail(hop, c.digest, b"", bytes(32), bytes(32), pad_digest(pad(hop, "bond"))) for hop in chain)
    r = Ready(c.manifest, model or MODEL, trails)
    return Bond.of(c, r, agreement(r.digest, chain))


def agreement(agreed: bytes, chain: tuple[str, ...]) -> Signatures:
    """The signatures of all hops and of the aggregator."""
    return tuple((name, identity(name).sign(agreed)) for name in (*chain, AGGREGATOR))


def attempted(m: Manifest, agreed: Ready | None = None, silos: tuple[str, ...] = ()) -> Attempted:
    """An attempt as its round's record has it."""
    if agreed is None:
        return Attempted(m.attempt, m.digest, m.chain)
    return Attempted(m.attempt, m.digest, m.chain, agreed.digest, silos, agreement(agreed.digest, m.chain))


def applied(log: RoundLog, m: Manifest, r: Ready, silos: tuple[str, ...], **changes: Any) -> Record:
    """The record of a round that was applied, which counts."""
    after = hashlib.sha256(r.digest).digest()
    fields: dict[str, Any] = {"attempts": (attempted(m, r, silos),), "root": r.root, "model_after": after}
    return counted(recorded(log, Outcome.APPLIED, **{**fields, **changes}), log.federation)


# Messages


def round_key(
    f: Federation, hop: str, silo: str, round_: int, last_released: int = 0, attempt: int = 1, head: bytes = b""
) -> RoundKey:
    return _round_key(f.digest, head or past(f, round_ - 1).head, hop, silo, round_, attempt, last_released)


@cache
def _round_key(f: bytes, head: bytes, hop: str, silo: str, round_: int, attempt: int, last_released: int) -> RoundKey:
    key = RoundKey(hop, silo, round_, attempt, public_key(private(hop, silo, round_, attempt)), last_released)
    return key.signed(identity(hop), f, head)


def fence(f: Federation, hop: str, round_: int, attempt: int) -> Fence:
    """A fence round an attempt; `manifest` lists that attempt among the earlier ones."""
    named = hashlib.sha256(f"attempt {attempt}".encode()).digest()
    return Fence(hop, round_, attempt, named).signed(identity(hop), f.digest)


def manifest(f: Federation, round_: int = 1, attempt: int = 1, log: RoundLog | None = None, **changes: Any) -> Manifest:
    """The manifest that an honest aggregator would sign, or one with some fields of its own choice.

    It goes on from `log`, or from as many abandoned rounds as there are before it.
    """
    log = log or past(f, round_ - 1)
    last = log.last
    assert last is not None
    chain: tuple[str, ...] = changes.pop("chain", f.chain)
    drawn = f.draw(log.applied + 1, log.model)
    invites = changes.get("invited", () if drawn == f.silo_names else drawn)
    names: tuple[str, ...] = invites or f.silo_names
    masked = f.policy.level is not Level.TRUSTED
    own = ("",) if f.policy.group_size else names
    number = (round_, 0, attempt, log.head)
    fields: dict[str, Any] = {
        "federation": f.digest,
        "head": log.head,
        "applied": log.applied,
        "round": round_,
        "attempt": attempt,
        "earlier": tuple(dict.fromkeys(one.manifest for one in changes.get("fences", ()))),
        "model": last.model_after,
        "state": last.state_after,
        "schema": SCHEMA,
        "plan": f.plan,
        "bounds": (f.policy.bound,) * len(SCHEMA.tensors),
        "update": f.policy.update,
        "granularity": f.policy.granularity,
        "chain": chain,
        "hop_keys": tuple(round_key(f, h, s, *number) for h in chain for s in names) if masked else (),
        "aggregator_keys": tuple(round_key(f, AGGREGATOR, s, *number) for s in own) if masked else (),
        "group_size": f.policy.group_size,
        "invited": invites,
        "minimum_cohort": f.minimum_cohort,
        "chunk_parameters": f.policy.chunk_parameters,
        "deadline_s": f.policy.deadline_s,
    }
    return Manifest(**{**fields, **changes}).signed(identity(AGGREGATOR))


def header(m: Manifest, silo: str, number: int = 0, signer: str = "") -> Header:
    """A header whose seeds have the right lengths; `number` tells a silo's headers apart."""
    draw = rng((m.digest, silo, number))
    recipients = (*m.chain, AGGREGATOR) if m.plan.level is not Level.TRUSTED else ()
    seeds = tuple(SealedSeed(name, draw(SEALED_BYTES), draw(32)) for name in recipients)
    return Header(silo, m.digest, seeds, layout(m).chunks).signed(identity(signer or silo))


def headers(m: Manifest, f: Federation, number: int = 0) -> list[Header]:
    return [header(m, silo, number) for silo in invited(m, f)]


def body(h: Header, root: bytes = b"", signer: str = "") -> BodyIn:
    """A body with this root that came whole, with its silo's signature."""
    root = root or hashlib.sha256(h.digest).digest()
    return BodyIn(h, root, root, identity(signer or h.silo).sign(trailer_digest(h.digest, root)))


def cohort(m: Manifest, of: Iterable[Header], signer: str = "") -> Cohort:
    """The cohort of these headers, signed by hop 1."""
    return signed(Cohort(m.digest, tuple(Participant(h.silo, h.digest) for h in of)), signer or m.chain[0])


def signed(c: Cohort, signer: str) -> Cohort:
    return replace(c, signature=identity(signer).sign(c.digest))


def flipped(data: bytes) -> bytes:
    """The same bytes with one bit changed."""
    return data[:-1] + bytes([data[-1] ^ 1])


def known(of: Iterable[Header]) -> dict[bytes, Header]:
    return {h.digest: h for h in of}


def evidence(m: Manifest, h: Header, recipient: str, key: Secret | None = None) -> Evidence:
    """What a node shows that cannot open what `h` seals to it. The seeds of `header` are garbage, so it is true."""
    silo = "" if recipient == AGGREGATOR and m.group_size else h.silo
    return Evidence.of(m.digest, recipient, h, key or private(recipient, silo, m.round, m.attempt))
