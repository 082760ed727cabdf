"""Nodes with one rule taken out: a simulation that does not find them proves nothing."""

from dataclasses import dataclass, replace
from typing import Any

from silomix.runtime.core.protocol import shuffler, silo
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.roundlog import Record, RoundLog
from silomix.runtime.core.protocol.shuffler import Effect, Open, Prepare, Reveal, RevealIn, Shuffler
from silomix.runtime.core.protocol.silo import Announced, Silo


class RevealsFirst(Shuffler):
    """Shows its pad, and remembers for whom only then."""

    def _reveal(self, event: RevealIn) -> list[Effect]:
        return super()._reveal(event)[::-1]


class RevealsUnsigned(Shuffler):
    """Shows its pad without looking whether all have signed."""

    def _reveal(self, event: RevealIn) -> list[Effect]:
        padded = self._padded(event.manifest)
        signed = self.signed.get(event.manifest)
        agreed = b"" if signed is None else signed.agreed
        fact = shuffler.Released(
            padded.round, padded.attempt, event.manifest, agreed, padded.silos, padded.model, padded.groups
        )
        known = fact in self.released.get(padded.model, ())
        remember: list[Effect] = [] if known else [Remember(fact)]
        return [*remember, Reveal(padded.pad.copy())]


class TakesOldAttempts(Shuffler):
    """Makes keys for any attempt, and opens it, fence or none."""

    def _prepare(self, event: Prepare) -> list[Effect]:
        with self._blind():
            return super()._prepare(event)

    def _open(self, event: Open) -> list[Effect]:
        with self._blind():
            return super()._open(event)

    def _blind(self) -> "_Blind":
        return _Blind(self)


class _Blind:
    """For as long as it decides, a hop does not know which attempt is the newest."""

    def __init__(self, hop: TakesOldAttempts) -> None:
        self.hop = hop

    def __enter__(self) -> None:
        self.kept = (self.hop.closed, self.hop.attempt)
        self.hop.closed = (0, 0)
        if self.hop.attempt is not None:
            self.hop.attempt = None

    def __exit__(self, *_: object) -> None:
        closed, attempt = self.kept
        self.hop.closed = max(closed, self.hop.closed)
        if self.hop.attempt is None:
            self.hop.attempt = attempt


class ForgetsCohorts(Shuffler):
    """Does not compare a cohort with the one that this model was released for."""

    def _bound_to(self, manifest: Manifest) -> tuple[str, ...]:
        return ()

    def _reveal(self, event: RevealIn) -> list[Effect]:
        kept, self.released = self.released, {}
        try:
            return super()._reveal(event)
        finally:
            self.released = kept

    def _free_for(self, manifest: Manifest, silos: tuple[str, ...], groups: tuple[int, ...]) -> bool:
        return True


class ForgetsChains(Shuffler):
    """Takes a new chain for a new beginning: it forgets what it has released over another, though nobody has fenced."""

    def _bound_to(self, manifest: Manifest) -> tuple[str, ...]:
        with _Forgetting(self, manifest.chain):
            return super()._bound_to(manifest)

    def _free_for(self, manifest: Manifest, silos: tuple[str, ...], groups: tuple[int, ...]) -> bool:
        with _Forgetting(self, manifest.chain):
            return super()._free_for(manifest, silos, groups)

    def _reveal(self, event: RevealIn) -> list[Effect]:
        with _Forgetting(self, self._padded(event.manifest).chain):
            return super()._reveal(event)


class _Forgetting:
    """For as long as it decides, a hop knows only what it has released over one chain."""

    def __init__(self, hop: Shuffler, chain: tuple[str, ...]) -> None:
        self.hop, self.chain = hop, chain

    def __enter__(self) -> None:
        self.kept = self.hop.released
        self.hop.released = {
            model: [fact for fact in facts if fact.bond is not None and fact.bond.chain == self.chain]
            for model, facts in self.kept.items()
        }

    def __exit__(self, *_: object) -> None:
        self.hop.released = self.kept


class SiloAsksForNoFence(Silo):
    """Joins any chain, whatever an earlier one may have released."""

    def _check_fences(self, manifest: Manifest, earlier: list[silo.Joined]) -> None:
        return


class UncheckedLog(RoundLog):
    """Takes any record for the next one, and any manifest for one that goes on from it."""

    def check_next(self, record: Record) -> None:
        """Be content."""

    def check_link(self, manifest: Manifest) -> None:
        """Be content."""


class ForgetsHistory(Shuffler):
    """Does not check what goes on from its round log: it takes any round for the next one."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.log = UncheckedLog(self.federation)

    def _prepare(self, event: Prepare) -> list[Effect]:
        log, self.log = self.log, UncheckedLog(self.federation, self.log.records[: event.round])
        try:
            return super()._prepare(replace(event, head=self.log.head))
        finally:
            self.log = log

    def _open(self, event: Open) -> list[Effect]:
        log, self.log = self.log, UncheckedLog(self.federation, self.log.records[: event.manifest.round])
        try:
            return super()._open(event)
        finally:
            self.log = log


class SiloForgetsHistory(Silo):
    """The same of a silo."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.log = UncheckedLog(self.federation)

    def _announced(self, event: Announced) -> list[silo.Effect]:
        log, self.log = self.log, UncheckedLog(self.federation, self.log.records[: event.manifest.round])
        try:
            return super()._announced(event)
        finally:
            self.log = log


@dataclass(frozen=True)
class Mutant:
    """What is taken out, and where."""

    about: str
    hop: type[Shuffler] = Shuffler
    member: type[Silo] = Silo
    counts_early: bool = False
    checked: bool = True
    lies: float = 0.15
    """How many schedules have an aggregator that lies."""


NONE = Mutant("nothing is taken out")
MUTANTS: dict[str, Mutant] = {
    "pad-before-record": Mutant("a hop shows its pad, and remembers for whom only then", RevealsFirst),
    "pad-before-all-signed": Mutant("a hop shows its pad before all have signed", RevealsUnsigned),
    "count-before-end": Mutant("hop 1 counts what it has of a stream that broke", counts_early=True),
    "old-attempt": Mutant("a hop opens an attempt that it has closed", TakesOldAttempts),
    "log-unchecked": Mutant("records and rounds need not go on from the log", ForgetsHistory, SiloForgetsHistory),
    "cohort-uncompared": Mutant("a model is released for any cohort, however often", ForgetsCohorts),
    "checksum-unchecked": Mutant("what a disk gives back is taken as it comes", checked=False),
    "no-fence": Mutant("a new chain is formed without a fence", ForgetsChains, SiloAsksForNoFence, lies=0.5),
}
