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
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.messages import (
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
from silomix.runtime.core.protocol.rules import invited, layout
from silomix.runtime.core.protocol.shuffler import BodyIn

AGGREGATOR = "aggregator"
SCHEMA = Schema((TensorSpec("a", (5,)), TensorSpec("b", (2,), buffer=True)))
MODEL, OTHER_MODEL = bytes([1]) * 32, bytes([2]) * 32


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


def private(hop: str, silo: str, round_: int, attempt: int = 1) -> Secret:
    """The key that a hop is to have made for a silo."""
    return secret("round key", hop, silo, round_, attempt)


def round_key(f: Federation, hop: str, silo: str, round_: int, last_released: int = 0, attempt: int = 1) -> RoundKey:
    return _round_key(f.digest, hop, silo, round_, attempt, last_released)


@cache
def _round_key(f: bytes, hop: str, silo: str, round_: int, attempt: int, last_released: int) -> RoundKey:
    key = RoundKey(hop, silo, round_, attempt, public_key(private(hop, silo, round_, attempt)), last_released)
    return key.signed(identity(hop), f)


def fence(f: Federation, hop: str, round_: int, attempt: int) -> Fence:
    made = Fence(hop, round_, attempt)
    return replace(made, signature=identity(hop).sign(made.digest(f.digest)))


def manifest(f: Federation, round_: int = 1, attempt: int = 1, **changes: Any) -> Manifest:
    """The manifest that an honest aggregator would sign, or one with some fields of its own choice."""
    chain: tuple[str, ...] = changes.pop("chain", f.chain)
    names: tuple[str, ...] = changes.get("invited", ()) or f.silo_names
    masked = f.policy.level is not Level.TRUSTED
    own = ("",) if f.policy.group_size else names
    fields: dict[str, Any] = {
        "federation": f.digest,
        "round": round_,
        "attempt": attempt,
        "model": MODEL,
        "schema": SCHEMA,
        "plan": f.plan,
        "bounds": (f.policy.bound,) * len(SCHEMA.tensors),
        "update": f.policy.update,
        "granularity": f.policy.granularity,
        "chain": chain,
        "hop_keys": tuple(round_key(f, h, s, round_, 0, attempt) for h in chain for s in names) if masked else (),
        "aggregator_keys": tuple(round_key(f, AGGREGATOR, s, round_, 0, attempt) for s in own) if masked else (),
        "group_size": f.policy.group_size,
        "invited": (),
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
