"""The round log as a lying aggregator keeps it: what it would sign if it were honest, and whatever else it likes."""

from dataclasses import dataclass, field, replace
from typing import Any

from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.messages import Bond, Cohort, Manifest
from silomix.runtime.core.protocol.release import Ready, Signatures
from silomix.runtime.core.protocol.roundlog import Attempted, Outcome, Record, RoundLog, genesis


@dataclass
class Chronicle:
    """The history that all honest nodes share, as long as nobody is told another one."""

    federation: Federation
    identity: Identity
    log: RoundLog = field(init=False)
    tried: dict[int, dict[int, Attempted]] = field(default_factory=dict)
    """By round, then by attempt."""
    sealed: dict[bytes, Bond] = field(default_factory=dict)
    """By model: the proof of which silos everybody has signed for."""

    def __post_init__(self) -> None:
        self.log = RoundLog(self.federation)

    @property
    def head(self) -> Record:
        """The newest record."""
        assert self.log.last is not None, "a drill begins with the record of round 0"
        return self.log.last

    def tries(self, manifest: Manifest) -> None:
        """Note an attempt. The first of a number stands in the record, unless another one is released."""
        attempts = self.tried.setdefault(manifest.round, {})
        attempts.setdefault(manifest.attempt, Attempted(manifest.attempt, manifest.digest, manifest.chain))

    def seals(self, manifest: Manifest, ready: Ready, cohort: Cohort, signatures: Signatures) -> None:
        """Note what everybody has signed for."""
        what = Attempted(manifest.attempt, manifest.digest, manifest.chain, ready.digest, cohort.silos, signatures)
        self.tried.setdefault(manifest.round, {})[manifest.attempt] = what
        self.sealed.setdefault(manifest.model, Bond.of(cohort, ready, signatures))

    def earlier(self, round_: int, attempt: int) -> tuple[bytes, ...]:
        """Return the manifests of the attempts before one."""
        return tuple(one.manifest for number, one in sorted(self.tried.get(round_, {}).items()) if number < attempt)

    def first(self, model: bytes, state: bytes) -> Record:
        """Write the record of round 0."""
        return genesis(self.federation, model, state).signed(self.identity)

    def draft(
        self, outcome: Outcome, after: tuple[bytes, bytes], root: bytes = b"", last_attempt: int = 0, **changes: Any
    ) -> Record:
        """Write the record of the round that is next: what is so, but for what is to be changed."""
        last, number = self.head, self.log.round
        tried = sorted(self.tried.get(number, {}).items())
        attempts = tuple(one for attempt, one in tried if not last_attempt or attempt <= last_attempt)
        before = (last.model_after, last.state_after)
        made = Record(
            self.federation.digest,
            number,
            outcome,
            attempts,
            root,
            before[0],
            after[0],
            before[1],
            after[1],
            last.digest,
        )
        return replace(made, **changes).signed(self.identity)

    def abandoned(self) -> Record:
        """Write that the round that is next was given up."""
        return self.draft(Outcome.ABANDONED, (self.head.model_after, self.head.state_after))
