"""One rule less: an attack that fails proves something only if it succeeds where the rule is not.

A rule is switched off by replacing the functions that check it, in this process and while the context lasts. There is
no configuration key for it, and there will be none.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cryptography import x509
from google.protobuf.message import DecodeError

from silomix.attacks.active.liars.sealing import seal_carelessly
from silomix.attacks.active.registry import Rule
from silomix.runtime.config.owners import pins
from silomix.runtime.core.digest import frame
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers import masks
from silomix.runtime.core.numbers.masks import MaskContext, Secret, public_key, small_order
from silomix.runtime.core.protocol import aggregator, release, roundlog, rules, shuffler, silo
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Accusation, Evidence, RoundKey, body_root
from silomix.runtime.net import calls, lines, streams
from silomix.runtime.net.limits import Limits
from silomix.runtime.nodes import follow, passage
from silomix.runtime.nodes import shuffler as shuffler_node
from silomix.runtime.nodes import silo as silo_node
from silomix.runtime.nodes.lead import service as lead_service
from silomix.runtime.store.vault import Vault

Patch = tuple[Any, str, Any]


def _nothing(*_: Any, **__: Any) -> None:
    """Check nothing."""


# R2: any round may come next, with any draw, any record counts, and so does any process that a hop knows of.


def _any_round(self: shuffler.Shuffler, event: shuffler.Prepare) -> list[shuffler.Effect]:
    made = {name: Secret.draw(self._rng) for name in event.silos}
    self._begins(event.round, event.now)
    keys = tuple(
        RoundKey(self.identity.name, name, event.round, event.attempt, public_key(private), self.last_released).signed(
            self.identity, self.federation.digest, event.head
        )
        for name, private in made.items()
    )
    kept = Remember(shuffler.KeysMade(event.round, event.attempt, tuple(made.items())))
    return [kept, shuffler.Keys(keys, self.last_released)]


def _any_record(self: shuffler.Shuffler, event: shuffler.RecordIn) -> list[shuffler.Effect]:
    record = event.record
    stored: list[shuffler.Effect] = []
    if record.round >= self.log.round - 1:
        stored.append(Remember(shuffler.Stored(record)))
    return [*stored, *self._countersign(record)]


# R3: a hop forgets what it has released, and neither reads it in the log nor misses it there; it covers a sum with what
# lies where its pad was.


def _forgetful(self: shuffler.Shuffler, fact: shuffler.Fact) -> None:
    if not isinstance(fact, shuffler.Released):
        _RECALL(self, fact)


_RECALL = shuffler.Shuffler.recall


# Agreement: a hop signs whatever comes, and shows its pad to whoever asks, at any time.


def _keeps_pads(self: shuffler.Shuffler, fact: shuffler.Fact) -> None:
    if not isinstance(fact, shuffler.PadGone):
        _RECALL(self, fact)


def _signs_again(self: shuffler.Shuffler, event: shuffler.ReadyIn) -> list[shuffler.Effect]:
    self.signed.pop(event.manifest, None)
    effects: list[shuffler.Effect] = _READY(self, event)
    return effects


_READY = shuffler.Shuffler.__dict__["_ready"]


# R4: a bare word is believed, and any point will do for a key.


def _believing(self: shuffler.Shuffler, event: shuffler.EvidenceIn) -> list[shuffler.Effect]:
    attempt, evidence = self._now_open, event.evidence
    header = next((h for h in attempt.headers.values() if h.silo == evidence.silo), None)
    return self._leave_out(evidence, header) if header is not None else []


def _gullible(error: Any) -> PeerFault | None:
    fault: PeerFault | None = _FAULT_OF(error)
    if fault is None or fault.reason is not Reason.SEAL_BROKEN or isinstance(fault, Accusation):
        return fault
    return Accusation(Evidence(bytes(32), "", str(fault.details.get("peer", "")), bytes(32), bytes(32)))


def _sealed_to_anything(seed: Secret, to: bytes, context: MaskContext) -> bytes:
    return seal_carelessly(seed, to, context) if small_order(to) else masks.seal(seed, to, context)


_FAULT_OF = vars(shuffler_node)["fault_of"]


# R6: a hop keeps what it has.


def _keeping(name: str) -> Callable[[shuffler.Shuffler, Any], list[shuffler.Effect]]:
    decide = shuffler.Shuffler.__dict__[name]

    def kept(self: shuffler.Shuffler, event: Any) -> list[shuffler.Effect]:
        effects: list[shuffler.Effect] = decide(self, event)
        return [one for one in effects if not isinstance(one, shuffler.Forget) and not _is_loss(one)]

    return kept


def _is_loss(effect: shuffler.Effect) -> bool:
    return isinstance(effect, Remember) and isinstance(effect.fact, shuffler.KeysGone)


_HOARD: list[masks.Stream] = []


def _hoarded(self: masks.Stream) -> None:
    _HOARD.append(self)  # or it would be a matter of luck what lies in its place


# Bindings: nobody looks at signatures, digests, or what something was made for.


def _unbound_info(self: MaskContext) -> bytes:
    return frame("mask", self.layer, self.chunk_parameters, self.direction)


class _OneKey(Secret):
    """The same round key for every silo."""

    @classmethod
    def draw(cls, _: masks.Rng) -> Secret:
        """Draw what was drawn before."""
        return Secret(bytes(range(32))[::-1][:31] + b"\7")


def _counted_anyway(self: silo.Silo, event: silo.ReceiptIn) -> list[silo.Effect]:
    self.state = silo.State.COUNTED
    assert self.current is not None
    return [silo.Done(self.current)]


def _taken_again(self: passage.Passage, chunk: passage.AnyChunk) -> bytes:
    content, digest = self._open(chunk, min(chunk.index, len(self._came)))
    if chunk.index < len(self._came):
        return digest
    self._came.append(digest)
    self._put(chunk.index, content)
    return digest


async def _however_it_ends(self: passage.Passage, frames: AsyncIterator[Any], *rest: Any) -> bytes:
    try:
        return await _RECEIVE(self, frames, *rest)
    except PeerFault:
        if self.cohort is None or len(self._came) != self.chunks:
            raise
        await self.trailed(body_root(self._came))
        return self.came


_RECEIVE = passage.Passage.receive


# R7: whoever calls may, as often and as long as they like, and what does not parse is nothing.


@contextmanager
def _room_for_all(self: calls.Room, peer: str) -> Iterator[None]:
    yield


async def _at_once(self: calls.Pace, peer: str) -> None:
    """Let nobody wait."""


def _chunk_of_any(field: int, raw: bytes, _: int) -> Any:
    return _READ_CHUNK(field, raw, len(raw))


async def _or_nothing(kind: Any, raw: bytes, _: str) -> Any:
    try:
        return kind.FromString(raw)
    except DecodeError:
        return None


_READ_CHUNK = vars(streams)["read_chunk"]


def _read_in_good_faith(der: bytes, _: str) -> str:
    return "" if x509.load_der_x509_certificate(der).extensions else "has none"


def _patches() -> dict[Rule, list[Patch]]:
    signatures = [(module, "verify", _nothing) for module in (rules, shuffler, silo, shuffler_node, release, roundlog)]
    return {
        Rule.R1: [(rules, "check_chain", _nothing), (roundlog, "check_chain", _nothing)],
        Rule.R2: [
            *((roundlog.RoundLog, name, _nothing) for name in ("check_link", "check_next")),
            (roundlog, "check_countersigned", _nothing),
            (aggregator, "check_later", _nothing),
            (shuffler.Shuffler, "_prepare", _any_round),
            (shuffler.Shuffler, "_record", _any_record),
        ],
        Rule.R3: [
            (shuffler.Shuffler, "recall", _forgetful),
            (shuffler.Shuffler, "_check_own", _nothing),
            (roundlog.RoundLog, "released", lambda *_: ()),
            (Secret, "copy", lambda self: self),
            (passage.Passage, "close", _nothing),
            (Secret, "keyed", lambda self: self.value),
        ],
        Rule.AGREEMENT: [
            (shuffler, "check_ready", _nothing),
            (shuffler, "check_agreed", _nothing),
            (shuffler.Shuffler, "_ready", _signs_again),
            (shuffler.Shuffler, "recall", _keeps_pads),
        ],
        Rule.R4: [
            (shuffler_node, "fault_of", _gullible),
            (shuffler.Shuffler, "_evidence", _believing),
            (rules, "small_order", lambda _: False),
            (rules, "_check_bound", _nothing),
            (roundlog, "_check_attempt", _nothing),
            (shuffler.Shuffler, "_check_signed", _nothing),
            (silo, "seal", _sealed_to_anything),
        ],
        Rule.R5: [
            (follow, "follows", lambda _: False),
            (follow, "check_followed", _nothing),
            (roundlog, "check_beginning", _nothing),
        ],
        Rule.R6: [
            *((shuffler.Shuffler, name, _keeping(name)) for name in ("_delivered", "_expire", "_record")),
            (masks, "overwrite", _nothing),
            (masks.Stream, "wipe", _hoarded),
            (Vault, "forget", _nothing),
        ],
        Rule.R7: [
            *((lead_service.Service, name, _nothing) for name in ("_silo", "_last_hop")),
            *((shuffler_node._Service, name, _nothing) for name in ("_aggregator", "_hop_before")),
            *((module, "check_length", _nothing) for module in (calls, lines, streams)),
            (Limits, "at_shuffler", 1 << 30),
            (calls.Room, "place", _room_for_all),
            (calls.Pace, "turn", _at_once),
            (streams, "read_chunk", _chunk_of_any),
            (lines, "parse_aside", _or_nothing),
            (silo_node.SiloNode, "_longest", lambda _, raw: len(raw)),
            (rules, "pin_problem", lambda *_: ""),
            (pins, "form_problem", _read_in_good_faith),
            (shuffler, "MOST_ATTEMPTS", 1 << 32),
            (follow, "MODEL_SLACK_BYTES", 1 << 32),
            (roundlog, "_check_culprit", _nothing),
            (roundlog.RoundLog, "over", True),
        ],
        Rule.COHORT: [(shuffler, "check_cohort", _nothing), (shuffler, "check_header", _nothing)],
        Rule.BINDINGS: [
            *signatures,
            (rules, "_expect", _nothing),
            (MaskContext, "info", _unbound_info),
            (shuffler, "Secret", _OneKey),
            (silo.Silo, "_receipt", _counted_anyway),
            (passage.Passage, "_take", _taken_again),
            (passage.Passage, "receive", _however_it_ends),
            (shuffler_node.ShufflerNode, "_check_delivery", _nothing),
        ],
    }


SWITCHABLE: tuple[Rule, ...] = tuple(_patches())
"""The rules that can be switched off. The others are not built, or promise nothing."""
ALSO = {"history": Rule.R2, "facts": Rule.R3, "lineage": Rule.R5}
"""What some of them are called beside."""


@contextmanager
def switched_off(rule: Rule | None) -> Iterator[None]:
    """Switch a rule off in all nodes of this process, and on again at the end; nothing for no rule."""
    before: list[Patch] = []
    try:
        for owner, name, instead in _patches()[rule] if rule is not None else ():
            before.append((owner, name, owner.__dict__[name]))  # a check that has moved is an error, not a no-op
            setattr(owner, name, instead)
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)
