"""What must hold after every step, whoever fails and whenever."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from silomix.runtime.core.digest import fast_hash
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.protocol import aggregator, shuffler, silo
from silomix.runtime.core.protocol.lineage import Transcript
from silomix.runtime.core.protocol.messages import Header, Manifest
from silomix.runtime.core.protocol.release import pad_digest
from silomix.runtime.core.protocol.roundlog import Outcome, Record, RoundLog, check_countersigned
from silomix.runtime.faults.scene import LEAD, Scene, Vector
from silomix.runtime.faults.world import Violation

if TYPE_CHECKING:
    from silomix.runtime.faults.hop import Hop

Number = tuple[int, int]
"""Round and attempt."""


class Watcher:
    """Sees everything that any node does, and stops the run when a promise is broken."""

    def __init__(self, scene: Scene) -> None:
        """Nothing has happened yet."""
        self.scene = scene
        self.refusals: Counter[str] = Counter()
        self.damage: Counter[str] = Counter()
        """What was damaged, by kind."""
        self.tainted: set[str] = {scene.shape.colluder} - {""}
        """Nodes that got an old disk, or collude: they keep no promise."""
        self.stops: set[str] = set()
        """Why a run may end before its last round."""
        self.receipts: set[tuple[str, bytes]] = set()
        self.gave_up: list[aggregator.GiveUp] = []
        self.learned: dict[bytes, set[tuple[str, ...]]] = {}
        """By model: the cohorts whose sum can be read."""
        self.regained = 0
        """Models that an aggregator got back from a silo."""
        self.applied: dict[bytes, tuple[tuple[str, ...], Vector]] = {}
        """By model: the silos of the sum that was made into the next one, and that sum."""
        self.counted: dict[int, bytes] = {}
        """By round: the record that counts."""
        self._shown: dict[bytes, set[str]] = {}
        self._by_hop: dict[tuple[str, bytes], tuple[str, ...]] = {}
        self._fence: dict[str, Number] = {}
        self._open: dict[str, Number] = {}
        self._padded: dict[tuple[str, bytes], shuffler.Padded] = {}
        self._signed: dict[tuple[str, bytes], bytes] = {}
        self._sealed: dict[bytes, bytes] = {}
        self._logs: dict[str, Record] = {}
        self._made: dict[int, bytes] = {}
        """By round: the record that the aggregator signed first."""
        self._stored: dict[bytes, set[str]] = {}
        """By record: the hops that have it on their disks."""
        self._damaged: set[str] = set()
        """Nodes of whose disks a bit was flipped."""
        self._vectors: dict[bytes, Vector] = {}
        self._sent: dict[bytes, list[bytes]] = {}
        self._sent_for: dict[tuple[str, bytes], bytes] = {}

    def expect(self, holds: bool, what: str) -> None:
        """Stop unless it holds."""
        if not holds:
            raise Violation(what)

    # What befalls nodes

    def restored(self, name: str) -> None:
        """A node got an old disk."""
        self.tainted.add(name)
        for seen in (self._fence, self._open, self._logs):
            seen.pop(name, None)
        if name in self.scene.federation.chain:
            self.stops.add("hop restored from an old copy")

    def damaged(self, name: str, what: str) -> None:
        """A bit of a node's disk was flipped."""
        self.damage[what] += 1
        self._damaged.add(name)

    def refused_to_start(self, name: str, why: str) -> None:
        """A node said that it cannot start with its disk."""
        self.refusals["start"] += 1

    def ended_itself(self, name: str, why: str) -> None:
        """The aggregator ended, since going on would make things worse."""
        self.refusals["ended"] += 1
        self.expect(self.scene.shape.lies or "hop restored from an old copy" in self.stops, f"{name} ended: {why}")
        self.stops.add("the aggregator lies, and was found out by itself")

    def sits_out(self, name: str, why: str) -> None:
        """A silo does not take part, since its integers are damaged."""
        self.refusals["frozen"] += 1

    def lied(self) -> None:
        """The aggregator threw a sum away that it has read."""
        self.stops.add("the aggregator lies")

    # Hops

    def opens(self, name: str, m: Manifest, log: RoundLog) -> None:
        """A hop opens an attempt."""
        if name in self.tainted:
            return
        self.expect(m.head == log.head, f"{name} opened round {m.round}, which does not go on from its log")
        number = (m.round, m.attempt)
        self.expect(number >= self._fence.get(name, (0, 0)), f"{name} opened attempt {number} behind its own fence")
        self.expect(number >= self._open.get(name, (0, 0)), f"{name} went back to attempt {number}")
        self._open[name] = number

    def remembers(self, name: str, fact: Any) -> None:
        """A fact is durable."""
        match fact:
            case shuffler.Stored(record) | silo.Stored(record) | aggregator.Recorded(record):
                self._makes(name, record)
                self._records(name, record)
            case aggregator.Sealed():
                self._sealed[fact.bond.manifest] = fact.agreed
            case shuffler.Forked() | silo.Forked():
                honest = not self.scene.shape.lies
                self.expect(not honest, f"{name} holds two records of round {fact.known.round} that are signed")
        if name in self.tainted:
            return
        match fact:
            case shuffler.Closed():
                self._fence[name] = max((fact.round, fact.attempt), self._fence.get(name, (0, 0)))
            case shuffler.Padded():
                self._not_behind(name, fact)
                known = self._padded.setdefault((name, fact.manifest), fact)
                self.expect(known.cohort == fact.cohort, f"{name} put a pad on two cohorts of one attempt")
            case shuffler.PadGone():
                self._padded.pop((name, fact.manifest), None)
            case shuffler.Signed():
                self._not_behind(name, fact)
                known_ = self._signed.setdefault((name, fact.manifest), fact.agreed)
                self.expect(known_ == fact.agreed, f"{name} signed two releases of one attempt")
            case shuffler.Released():
                self._not_behind(name, fact)

    def _not_behind(self, name: str, fact: shuffler.Padded | shuffler.Signed | shuffler.Released) -> None:
        fence = self._fence.get(name, (0, 0))
        behind = fact.round == fence[0] and fact.attempt < fence[1]
        self.expect(not behind, f"{name} did its part of attempt {fact.attempt} behind its own fence")

    def shows(self, hop: "Hop", pad: Secret) -> None:
        """A hop shows a pad: what it released must be on its disk, and all must have signed for it."""
        core = hop.core
        shown = next((p for p in core.padded.values() if pad_digest(p.pad) == pad_digest(pad)), None)
        if shown is None:
            raise Violation(f"{hop.name} showed a pad that it does not hold")
        m, name = shown.manifest, hop.name
        if name not in self.tainted:
            facts = hop.disk.content.facts
            self.expect(
                ("released", shown.round, m.hex()) in facts, f"{name} showed a pad before it remembered for whom"
            )
            for other in shown.chain:
                signed = other in self.tainted or (other, m) in self._signed
                self.expect(signed, f"{name} showed a pad before {other} had signed")
            sealed = m in self._sealed or LEAD in self.tainted or self.scene.shape.lies
            self.expect(sealed, f"{name} showed a pad before the aggregator had signed")
            before = self._by_hop.setdefault((name, shown.model), shown.silos)
            self.expect(before == shown.silos, f"{name} showed pads for two cohorts of one model")
        self._shown.setdefault(m, set()).add(name)
        if self._shown[m] >= set(shown.chain):
            cohorts = self.learned.setdefault(shown.model, set())
            cohorts.add(shown.silos)
            self.expect(len(cohorts) == 1, "two cohorts of one model can be read")
            least = self.scene.federation.minimum_cohort
            self.expect(len(shown.silos) >= least, f"a sum of {len(shown.silos)} silos can be read")

    # The log

    def _makes(self, name: str, record: Record) -> None:
        """An aggregator signs one record of a round, unless its disk has lost the first and nobody can tell it.

        Such a one was on its way to hops when the disk was put back. If a hop that this process has heard had stored
        it, the process knows of it. A hop that was away may hold it all the same: once it is asked to store the other
        it holds two, and that is a fork, whoever had an old disk.
        """
        if name in self.scene.federation.chain:
            self._stored.setdefault(record.digest, set()).add(name)
        if name != LEAD or self.scene.shape.lies:
            return
        known = self._made.setdefault(record.round, record.digest)
        if known == record.digest:
            return
        self.expect(name in self.tainted, f"the aggregator signed two records of round {record.round}")
        heard = set(self.scene.world.nodes[LEAD].core.heard)
        told = (self._stored.get(known, set()) & heard) - self.tainted
        self.expect(not told, f"the aggregator signed a second record of round {record.round}, though {told} has one")
        self._made[record.round] = record.digest

    def _records(self, name: str, record: Record) -> None:
        try:
            check_countersigned(record, self.scene.federation)
        except Exception:
            counts = False
        else:
            counts = True
            known = self.counted.setdefault(record.round, record.digest)
            self.expect(known == record.digest, f"two records of round {record.round} count")
        if name in self.tainted:
            return
        last = self._logs.get(name)
        if last is not None:
            same = record.round == last.round and (record.digest == last.digest or counts)
            goes_on = record.round == last.round + 1 and record.previous == last.digest
            self.expect(same or goes_on, f"the log of {name} has a gap after round {last.round}")
            if goes_on:
                self.expect(record.model_before == last.model_after, f"the log of {name} skips a model")
        self._logs[name] = record

    # Silos

    def joins(self, name: str, m: Manifest, log: RoundLog) -> None:
        """A silo joins an attempt."""
        if name in self.tainted:
            return
        self.expect(m.head == log.head, f"{name} joined round {m.round}, which does not go on from its log")
        number = (m.round, m.attempt)
        self.expect(number >= self._open.get(name, (0, 0)), f"{name} went back to attempt {number}")
        self._open[name] = number

    def trains(self, name: str, model: bytes, body: Bytes, vector: Vector) -> None:
        """A silo has trained."""
        self._vectors[fast_hash(body.data)] = vector

    def sends(self, name: str, m: Manifest, header: Header, body: Bytes) -> None:
        """A silo sends its integers, under a header that names them."""
        self._sent.setdefault(header.digest, []).append(fast_hash(body.data))
        if name not in self.tainted:
            known = self._sent_for.setdefault((name, m.model), fast_hash(body.data))
            self.expect(known == fast_hash(body.data), f"{name} sent other integers for the same model")

    def refuses(self, name: str, record: Record, why: str) -> None:
        """A silo refuses a sum that it was given: an honest aggregator with a whole disk gives the one on record."""
        honest = LEAD not in self.tainted | self._damaged and not self.scene.shape.lies
        self.expect(not honest, f"{name} was given another sum of round {record.round} than is on record: {why}")

    def computes(self, name: str, record: Record, found: tuple[bytes, bytes]) -> None:
        """A silo has computed the model that a record names."""
        self.expect(found == (record.model_after, record.state_after), f"{name} computed another model than on record")

    # The aggregator

    def gives_up(self, effect: aggregator.GiveUp) -> None:
        """An attempt ended without a sum."""
        self.gave_up.append(effect)

    def applies(self, transcript: Transcript, total: Vector) -> None:
        """A sum is made into a model: it is that of its cohort, each silo once, and of nobody else."""
        m, cohort = transcript.manifest, {p.silo: p.header for p in transcript.cohort.participants}
        for place, name in enumerate(self.scene.federation.silo_names):
            digits = tuple(value // 4**place % 4 * 4**place for value in total)
            if name not in cohort:
                self.expect(not any(digits), f"{name} is not in the cohort of round {m.round}, and is in its sum")
                continue
            # Without masks a silo's headers in an attempt are all the same, also if a restored one trained anew.
            sent = [self._vectors.get(body) for body in self._sent[cohort[name]]]
            self.expect(
                digits in sent, f"the sum of round {m.round} is {total}: {name} has {digits} in it, and sent {sent}"
            )
            expected = self.scene.vector(name, m.applied, 0)
            self.expect(digits[:2] == expected[:2], f"{name} is in round {m.round} with another model's integers")
        self.expect(max(total) < 4 ** len(self.scene.federation.silos), f"the sum of round {m.round} is {total}")
        self._once(m, transcript.cohort.silos, total)

    def _once(self, m: Manifest, silos: tuple[str, ...], total: Vector) -> None:
        """A model is stepped from with one sum, whatever happened to the aggregator.

        A sum that was lost before its round was on record is made again, in a further attempt or a further round. It
        must be the same one: of the same silos, and to the digit, since a silo sends the same integers for the same
        model. Only a silo whose disk was put back may have trained anew.
        """
        known, before = self.applied.setdefault(m.model, (silos, total))
        self.expect(known == silos, f"round {m.round} was applied twice, with the sums of two cohorts")
        for place, name in enumerate(self.scene.federation.silo_names):
            same = all(a // 4**place % 4 == b // 4**place % 4 for a, b in zip(before, total, strict=True))
            self.expect(same or name in self.tainted, f"round {m.round} was applied twice: {name} differs in the sums")

    # The end

    def ended(self, log: RoundLog, since: float) -> None:
        """The federation has come to its end: look at its history as a whole."""
        steps: dict[bytes, bytes] = {}
        for before, record in zip(log.records, log.records[1:], strict=False):
            self.expect(record.previous == before.digest, f"record {record.round} does not name the one before")
            if record.outcome is Outcome.APPLIED:
                self.expect(record.model_before not in steps, f"two rounds stepped from one model: {record.round}")
                steps[record.model_before] = record.model_after
                cohorts = self.learned.get(record.model_before, set())
                self.expect(
                    record.silos in cohorts, f"round {record.round} was applied for silos that were not released"
                )
