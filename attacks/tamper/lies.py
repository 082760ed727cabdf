"""What a node may do otherwise than it should: every place where a liar in the tamper check can lie.

`Honest` does what it should at each of them. A misbehaviour is a class that does one thing otherwise.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.tamper import Scalars
from silomix.runtime.core.protocol.check.trapped import Trapped
from silomix.runtime.core.protocol.lineage import Transcript
from silomix.runtime.core.protocol.messages import Cohort, Manifest
from silomix.runtime.core.protocol.release import Trail


class Silent(Exception):  # noqa: N818 - what it is
    """The node says nothing: its caller waits in vain."""


class Honest:
    """A node that keeps to the protocol."""

    random = Random(0)  # noqa: S311 - drills are repeated by their seeds
    node = ""

    def speaks(self, step: str) -> None:
        """Say something at a step of the protocol, or raise `Silent`."""

    # A hop

    def counts(self, silo: str) -> int:
        """How often hop 1 adds a silo's body."""
        return 1

    def removes(self, silos: Sequence[str]) -> Sequence[str]:
        """Whose masks a hop takes off; twice, if a name stands there twice."""
        return silos

    def sends(self, vector: Bytes, manifest: Manifest) -> Bytes:
        """What a hop passes on."""
        return vector

    def signs(self, trail: Trail) -> Trail:
        """What it says of that, before it is signed."""
        return trail

    def tells_again(self, trail: Trail) -> Trail | None:
        """What it says if it sends the same once more, as after a broken stream; nothing, if it does not."""
        return None

    def shows(self, pad: Secret) -> Secret:
        """Which pad it shows when all have signed."""
        return pad

    def closes(self, cohort: Cohort) -> Cohort:
        """What it says of who is in the sum."""
        return cohort

    # Everybody in the check

    def measures(self, scalars: tuple[Scalars, ...]) -> tuple[Scalars, ...]:
        """What it says of its vectors."""
        return scalars

    def states(self, trapped: Trapped) -> Trapped:
        """What it says at the traps."""
        return trapped

    def proves(self, proofs: bytes) -> bytes:
        """What a hop shows for proofs of what it removed at the traps."""
        return proofs

    def accuses(self, false: tuple[str, ...]) -> tuple[str, ...]:
        """Of whom a hop says that their commitments keep it from proving."""
        return false

    # A silo

    def share(self, share: bytes) -> bytes:
        """Which share of the coin it shows."""
        return share

    def seed(self, sealing: Any) -> Any:
        """Which seeds it seals."""
        return sealing

    def body(self, body: Bytes, manifest: Manifest) -> Bytes:
        """What it sends under the root that it has signed."""
        return body

    # The aggregator

    def passes(self, tosses: tuple[Any, ...]) -> tuple[Any, ...]:
        """Which shares it passes on."""
        return tosses

    def publishes(self, transcript: Transcript, body: Bytes) -> tuple[Transcript, Bytes]:
        """What silos get of a sum that was released."""
        return transcript, body

    def conceals(self) -> bool:
        """Whether it has hops sign for a sum though it sees that the check fails at itself."""
        return False

    def applies(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Which model it makes of the sum."""
        return tensors

    def steps(self, state: dict[str, Any]) -> dict[str, Any]:
        """Which state of the server's optimiser it makes of it."""
        return state
