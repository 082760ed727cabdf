"""Every misbehaviour of the drill: who does it, what it does, and who has to be named for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Any

import numpy as np

from silomix.attacks.tamper.lies import Honest, Silent
from silomix.attacks.tamper.ring import AGGREGATOR, identity
from silomix.runtime.core.numbers.masks import MaskContext, Secret, commitment
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.tamper import Scalars
from silomix.runtime.core.protocol.check.trapped import Trapped, points
from silomix.runtime.core.protocol.messages import Cohort, Manifest
from silomix.runtime.core.protocol.release import Trail
from silomix.runtime.core.protocol.rules import layout


class Ends(StrEnum):
    """How a misbehaviour has to end."""

    PROVEN = "proven"
    """The culprit is named, with evidence that a third party checks."""
    REFUSED = "refused"
    """A neighbour refuses it and names the sender, whom it knows by its certificate."""
    LISTED = "listed"
    """Silence: the edge is listed, and nobody is named."""
    LEFT_OUT = "left out"
    """The silo is left out on evidence, and the others' sum is applied."""


class _Lie(Honest):
    def __init__(self, node: str, random: Random) -> None:
        self.node, self.random = node, random


def _changed(vector: Bytes, m: Manifest, change: Callable[[Any], None]) -> Bytes:
    """Change residues of a vector, and pack it again; blinders stay."""
    shape = layout(m)
    residues = shape.residues(vector)
    change(residues)
    packed = shape.pack(residues)
    packed[shape.value_bytes :] = vector[shape.value_bytes :]
    return packed


class FlipsResidue(_Lie):
    """Adds to one residue of one value."""

    def sends(self, vector: Bytes, manifest: Manifest) -> Bytes:
        """Change one residue."""
        moduli = manifest.plan.moduli

        def change(residues: Any) -> None:
            plane = self.random.randrange(len(moduli))
            at = self.random.randrange(residues.shape[1])
            p = moduli[plane]
            residues[plane, at] = (int(residues[plane, at]) + self.random.randrange(1, p)) % p

        return _changed(vector, manifest, change)


class FlipsBlinder(_Lie):
    """Changes a blinder of the sum."""

    def sends(self, vector: Bytes, manifest: Manifest) -> Bytes:
        """Change the first blinder."""
        shape, out = layout(manifest), vector.copy()
        index = shape.value_chunks
        residues = shape.unpack(index, shape.planes(shape.part(out, index).data, index))
        p = manifest.plan.moduli[0]
        residues[0, 0] = (int(residues[0, 0]) + 1) % p
        shape.put(shape.part(out, index), residues)
        return out


class SwapsParameters(_Lie):
    """Exchanges two parameters."""

    def sends(self, vector: Bytes, manifest: Manifest) -> Bytes:
        """Swap two columns that differ."""

        def change(residues: Any) -> None:
            one, two = self.random.sample(range(residues.shape[1]), 2)
            while (residues[:, one] == residues[:, two]).all():
                two = (two + 1) % residues.shape[1]
            residues[:, [one, two]] = residues[:, [two, one]]

        return _changed(vector, manifest, change)


class ReplaysVector(_Lie):
    """Sends what it sent in the round before in place of the sum, and signs for it."""

    kept: Bytes | None = None

    def sends(self, vector: Bytes, manifest: Manifest) -> Bytes:
        """Keep the first vector, and send it ever after."""
        if self.kept is None:
            self.kept = vector.copy()
        return self.kept


class DoesNotAdd(_Lie):
    """Adds nothing: hop 1 no bodies, another hop takes no masks off."""

    def counts(self, silo: str) -> int:
        """Add nobody."""
        return 0

    def removes(self, silos: Sequence[str]) -> Sequence[str]:
        """Take nobody's masks off, unless it is hop 1, which leaves the bodies out."""
        return silos if self.node == "shuffler-1" else ()


class AddsTwice(_Lie):
    """Counts one silo twice: hop 1 adds its body twice, another hop takes its mask off twice."""

    def counts(self, silo: str) -> int:
        """Add the first silo twice."""
        return 2 if silo == "silo-1" else 1

    def removes(self, silos: Sequence[str]) -> Sequence[str]:
        """Take the first silo's mask off twice, unless it is hop 1."""
        return silos if self.node == "shuffler-1" else (silos[0], *silos)


class DropsSilo(_Lie):
    """Leaves one silo out of the sum, and names it in the cohort: hop 1 its body, another hop its mask."""

    def counts(self, silo: str) -> int:
        """Leave the second silo out."""
        return 0 if silo == "silo-2" else 1

    def removes(self, silos: Sequence[str]) -> Sequence[str]:
        """Leave its mask on."""
        return [silo for silo in silos if silo != "silo-2"]


class Solves(FlipsResidue):
    """Changes one residue, and makes its own equation hold all the same: it knows its masks."""

    moduli: tuple[int, ...] = ()
    removed: Callable[[], Scalars] = staticmethod(lambda: ())

    def sum(self, *terms: tuple[int, Scalars]) -> Scalars:
        """Add scalars up, with signs."""
        signs = [sign for sign, _ in terms]
        return tuple(
            tuple(
                sum(s * x for s, x in zip(signs, column, strict=True)) % p
                for column in zip(*(one[plane] for _, one in terms), strict=True)
            )
            for plane, p in enumerate(self.moduli)
        )


class StatesWhatWouldBalance(Solves):
    """Changes one residue, and states that it sent what it should have sent: its neighbour has what it sent."""

    def measures(self, scalars: tuple[Scalars, ...]) -> tuple[Scalars, ...]:
        """Solve the hop's own equation for what went out."""
        taken, _, pad = scalars
        return taken, self.sum((1, taken), (1, pad), (-1, self.removed())), pad


class LiesAboutPad(Solves):
    """Changes one residue, and states a pad that makes up for it: it is found out when the pad is shown."""

    def measures(self, scalars: tuple[Scalars, ...]) -> tuple[Scalars, ...]:
        """Solve the hop's own equation for the pad."""
        taken, sent, _ = scalars
        return taken, sent, self.sum((1, sent), (-1, taken), (1, self.removed()))


class StatesFalseScalars(_Lie):
    """Passes everything on as it should, and lies in the check about what went out."""

    def measures(self, scalars: tuple[Scalars, ...]) -> tuple[Scalars, ...]:
        """Say something else of the last lot but one: what a hop sent, or a mask of a silo."""
        return (*scalars[:-2], _shifted(scalars[-2]), scalars[-1]) if len(scalars) > 1 else (_shifted(scalars[0]),)


class StatesFalseIntake(_Lie):
    """Lies in the check about what came in."""

    def measures(self, scalars: tuple[Scalars, ...]) -> tuple[Scalars, ...]:
        """Say something else of the first lot."""
        return (_shifted(scalars[0]), *scalars[1:])


def _shifted(scalars: Scalars) -> Scalars:
    first = ((scalars[0][0] + 1) % 7, *scalars[0][1:])
    return (first, *scalars[1:])


class ConcealsFalseScalars(StatesFalseScalars):
    """States false scalars of what reached it, and has hops sign all the same."""

    def conceals(self) -> bool:
        """Name nobody, least of all itself."""
        return True


class ReplacesCohort(_Lie):
    """Says that others are in the sum than hop 1 has signed."""

    def closes(self, cohort: Cohort) -> Cohort:
        """Leave the last silo out of the list."""
        other = replace(cohort, participants=cohort.participants[:-1])
        return replace(other, signature=identity(self.node).sign(other.digest)) if self.node == "shuffler-1" else other


class SignsOtherRoot(_Lie):
    """Signs one root, and sends something else."""

    def signs(self, trail: Trail) -> Trail:
        """Sign for another vector."""
        return replace(trail, sent=bytes(32))


class Equivocates(_Lie):
    """Sends its sum twice, as after a broken stream, each time with another signed trail: of another pad."""

    def tells_again(self, trail: Trail) -> Trail | None:
        """Commit to another pad."""
        return replace(trail, pad=bytes(32))


class SaysOtherIntake(_Lie):
    """Signs that something else came in than the hop before has signed for."""

    def signs(self, trail: Trail) -> Trail:
        """Sign for another vector."""
        return replace(trail, came=bytes(32))


class ShowsOtherShare(_Lie):
    """Shows a share of the coin that it had not committed to."""

    def share(self, share: bytes) -> bytes:
        """Choose anew."""
        return bytes(byte ^ 1 for byte in share)


class SealsOtherSeed(_Lie):
    """Seals a seed other than the one that it commits to."""

    def seed(self, sealing: Any) -> Any:
        """Commit to another seed for the second hop."""
        header = sealing.header
        other = commitment(Secret(bytes(32)), MaskContext(bytes(32), 1, 1))
        seeds = (header.seeds[0], replace(header.seeds[1], commitment=other), *header.seeds[2:])
        return replace(sealing, header=replace(header, seeds=seeds).signed(identity(self.node)))


class SendsOtherBody(_Lie):
    """Sends a body other than the one that it signs."""

    def body(self, body: Bytes, manifest: Manifest) -> Bytes:
        """Change one residue after signing."""
        return FlipsResidue(self.node, self.random).sends(body, manifest)


class TossesOwnCoin(_Lie):
    """Passes on a share of its own making in place of a silo's."""

    def passes(self, tosses: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replace the first share."""
        return (replace(tosses[0], share=bytes(32)), *tosses[1:])


class AppliesOtherSum(_Lie):
    """Makes the next model of another sum."""

    def applies(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Change one value of the model by one unit in the last place."""
        out = {name: np.array(values) for name, values in tensors.items()}
        first = next(iter(out.values())).reshape(-1)
        first[0] = np.nextafter(first[0], np.float32(9))
        return out


class StatesFalseResidue(_Lie):
    """Passes everything on as it should, and lies about a residue of it at a trap."""

    def states(self, trapped: Trapped) -> Trapped:
        """Say something else of the last lot: what a silo or a hop sent, or what reached the aggregator."""
        return replace(trapped, residues=(*trapped.residues[:-1], _shifted(trapped.residues[-1])))


class CommitsToOtherMask(_Lie):
    """Commits at a trap to another mask than it has sealed to the second hop."""

    def states(self, trapped: Trapped) -> Trapped:
        """Exchange the first two points."""
        first, second, *others = trapped.commitments
        cut = points(second)
        return replace(trapped, commitments=(first, b"".join((cut[1], cut[0], *cut[2:])), *others))


class CommitsToOtherPad(_Lie):
    """Commits at the traps to another pad than its own, and has no proof."""

    def states(self, trapped: Trapped) -> Trapped:
        """Exchange the first two points."""
        cut = points(trapped.commitments[0])
        return replace(trapped, commitments=(b"".join((cut[1], cut[0], *cut[2:])),))


class ForgesProof(_Lie):
    """Signs a proof that is none."""

    def proves(self, proofs: bytes) -> bytes:
        """Change one bit."""
        return bytes([proofs[0] ^ 1]) + proofs[1:]


class AccusesSilo(_Lie):
    """Says that an honest silo committed to another mask, and opens its key."""

    def accuses(self, false: tuple[str, ...]) -> tuple[str, ...]:
        """Accuse the first silo."""
        return ("silo-1",)


def silent_at(step: str) -> type[_Lie]:
    """Make a node that says nothing at a step."""

    class _Silent(_Lie):
        def speaks(self, at: str) -> None:
            if at == step:
                raise Silent

    _Silent.__doc__ = f"Says nothing when it should: {step}."
    return _Silent


class FlipsAndKeepsSilent(FlipsResidue):
    """Changes one residue, and says nothing when it is to defend itself."""

    def speaks(self, step: str) -> None:
        """Say nothing to a charge."""
        if step == "ChargeIn":
            raise Silent


DRILL_TRAPS = 2
"""Of the policy, where a misbehaviour is about traps."""


@dataclass(frozen=True)
class Misbehaviour:
    """One way of misbehaving."""

    name: str
    node: str
    lie: Callable[[str, Random], Honest]
    ends: Ends
    about: str
    without: bool = True
    """Whether it goes unnoticed without the check."""
    rounds: int = 1
    """How many it takes."""
    traps: int = 0
    """How many the policy has."""


def _all() -> tuple[Misbehaviour, ...]:
    made: list[Misbehaviour] = []

    def add(
        name: str, node: str, lie: type[_Lie], ends: Ends, *, without: bool = False, rounds: int = 1, traps: int = 0
    ) -> None:
        made.append(Misbehaviour(name, node, lie, ends, (lie.__doc__ or "").strip(), without, rounds, traps))

    for hop in ("shuffler-1", "shuffler-2", "shuffler-3"):
        for name, lie in (
            ("does-not-add", DoesNotAdd),
            ("adds-twice", AddsTwice),
            ("drops-a-silo", DropsSilo),
            ("flips-a-residue", FlipsResidue),
            ("flips-a-blinder", FlipsBlinder),
            ("swaps-two-parameters", SwapsParameters),
            ("flips-and-states-otherwise", StatesWhatWouldBalance),
            ("flips-and-lies-about-its-pad", LiesAboutPad),
            ("states-false-scalars", StatesFalseScalars),
            ("states-a-false-intake", StatesFalseIntake),
        ):
            add(f"{name}-{hop[-1]}", hop, lie, Ends.PROVEN, without=True)
        add(f"replaces-the-cohort-{hop[-1]}", hop, ReplacesCohort, Ends.REFUSED)
        add(f"replays-a-vector-{hop[-1]}", hop, ReplaysVector, Ends.PROVEN, without=True, rounds=2)
        add(f"signs-another-root-{hop[-1]}", hop, SignsOtherRoot, Ends.REFUSED)
        add(f"equivocates-{hop[-1]}", hop, Equivocates, Ends.PROVEN)
        if hop != "shuffler-1":
            add(f"denies-its-intake-{hop[-1]}", hop, SaysOtherIntake, Ends.REFUSED)
        for step in ("Prepare", "Open", "relay", "CoinIn", "ReadyIn", "RevealIn"):
            add(f"silent-at-{step.lower()}-{hop[-1]}", hop, silent_at(step), Ends.LISTED)
        add(f"silent-at-chargein-{hop[-1]}", hop, FlipsAndKeepsSilent, Ends.LISTED)
        for about, trapped in (
            ("forges-a-proof", ForgesProof),
            ("commits-to-another-pad", CommitsToOtherPad),
            ("states-a-false-residue", StatesFalseResidue),
            ("accuses-a-silo", AccusesSilo),
        ):
            add(f"{about}-{hop[-1]}", hop, trapped, Ends.PROVEN, traps=DRILL_TRAPS)
        add(f"silent-at-provein-{hop[-1]}", hop, silent_at("ProveIn"), Ends.LISTED, traps=DRILL_TRAPS)
    add("silo-lies-about-a-mask", "silo-2", StatesFalseScalars, Ends.PROVEN, without=True)
    add("silo-lies-about-its-body", "silo-2", StatesFalseIntake, Ends.PROVEN, without=True)
    add("silo-commits-to-another-mask", "silo-2", CommitsToOtherMask, Ends.PROVEN, traps=DRILL_TRAPS)
    add("silo-states-a-false-residue", "silo-2", StatesFalseResidue, Ends.PROVEN, traps=DRILL_TRAPS)
    add("silo-shows-another-share", "silo-3", ShowsOtherShare, Ends.PROVEN)
    add("silo-refuses-to-reveal", "silo-3", silent_at("toss"), Ends.LISTED)
    add("silo-refuses-to-answer", "silo-3", silent_at("scalars"), Ends.LISTED)
    add("silo-seals-another-seed", "silo-1", SealsOtherSeed, Ends.LEFT_OUT)
    add("silo-sends-another-body", "silo-1", SendsOtherBody, Ends.REFUSED)
    add("aggregator-states-false-scalars", AGGREGATOR, ConcealsFalseScalars, Ends.PROVEN, without=True)
    add("aggregator-applies-another-sum", AGGREGATOR, AppliesOtherSum, Ends.REFUSED)
    add("aggregator-tosses-its-own-coin", AGGREGATOR, TossesOwnCoin, Ends.REFUSED)
    return tuple(made)


MISBEHAVIOURS = _all()
