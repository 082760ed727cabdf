"""The aggregator's part in the tamper check: it asks, relays and measures, and keeps the evidence if it fails."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import grpc
import numpy as np

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.tamper import Finding
from silomix.runtime.core.protocol import aggregator as core
from silomix.runtime.core.protocol.check.blame import Case, Defence, defend, signed_root
from silomix.runtime.core.protocol.check.forms import scalars_of
from silomix.runtime.core.protocol.check.said import CheckTranscript, Statement, Subject, Toss
from silomix.runtime.core.protocol.check.trapped import NO_TRAPS, Trapped, Traps
from silomix.runtime.core.protocol.lineage import false_pad
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.net.answers import fault_of
from silomix.runtime.net.check.case import write_case
from silomix.runtime.net.check.said import (
    read_defence,
    read_proof,
    read_statement,
    read_toss,
    write_bodies,
    write_check,
    write_toss,
)
from silomix.runtime.net.history import write_trail
from silomix.runtime.net.limits import SMALL_BYTES
from silomix.runtime.net.lines import Line, method
from silomix.runtime.nodes.check.evidence import keep
from silomix.runtime.nodes.lead.asking import GIVEN_UP, calling
from silomix.v1 import services_pb2

if TYPE_CHECKING:
    from silomix.runtime.nodes.aggregator import AggregatorNode


class Checking:
    """What an aggregator does in a check."""

    def __init__(self, node: "AggregatorNode") -> None:
        """Nothing is made before it is needed."""
        self._node = node
        self.evidence = node.config.state.evidence

    async def heard(self, silo: str, request: services_pb2.SayRequest) -> None:
        """Take in a silo's share, or its scalars."""
        node = self._node
        kind = request.WhichOneof("said")
        if kind == "toss":
            toss = read_toss(request.toss)
            self._check_own(silo, toss.silo)
            await node.step(core.TossIn(toss, node.clock()))
        elif kind == "statement":
            said = read_statement(request.statement, node.federation.plan)
            self._check_own(silo, said.name)
            await node.step(core.StatedIn(said, node.clock()))
        else:
            raise PeerFault(Reason.MALFORMED, f"{silo} called and said nothing", peer=silo)

    def _check_own(self, silo: str, name: str) -> None:
        if silo != name:
            raise PeerFault(Reason.UNKNOWN_PEER, f"{silo} speaks for {name}", peer=silo)

    async def ask_scalars(self, hop: str, manifest: Manifest, subject: Subject, tosses: tuple[Toss, ...]) -> None:
        """Have a hop answer the coin."""
        node = self._node
        request = services_pb2.AnswerRequest(
            manifest_digest=manifest.digest,
            trails=[write_trail(trail) for trail in subject.ready.trails],
            bodies=write_bodies(subject.bodies),
            tosses=[write_toss(toss) for toss in tosses],
        )
        limit, patience = node.limits.said, float(node.federation.policy.release_s)
        call = calling("Answer", request, services_pb2.AnswerResponse, limit, patience)
        wanted = partial(node.is_in, core.Phase.CHECKING, manifest.digest)
        answer = await node.asking.until_answered(hop, wanted, call, GIVEN_UP)
        if isinstance(answer, services_pb2.AnswerResponse):
            wire = answer.statement
            said = lambda: core.StatedIn(read_statement(wire, node.federation.plan), node.clock())  # noqa: E731
            await node.asking.tell_core(hop, said)
        elif answer is not None:
            await node.asking.lost(hop, manifest.digest, answer)

    async def measure(self, manifest: Manifest, subject: Subject, coin: bytes) -> None:
        """Answer the coin oneself, from what the last hop sent."""
        node = self._node
        scalars = await node.work(self._fold, manifest, coin)
        trapped = await node.work(self._trapped, manifest, coin)
        said = Statement(node.config.name, subject.context, coin, tuple(scalars), trapped=trapped).signed(node.identity)
        await self._answer(core.Phase.CHECKING, manifest, core.StatedIn(said, node.clock()))

    async def _answer(self, phase: core.Phase, manifest: Manifest, said: core.Event) -> None:
        """Give the machine this node's own answer, unless the attempt is over."""
        if self._node.is_in(phase, manifest.digest):
            with suppress(PeerFault):  # a hop's loss, or the clock, may have its turn first and end the check
                await self._node.insist(said)

    def _fold(self, manifest: Manifest, coin: bytes) -> list[tuple[tuple[int, ...], ...]]:
        return scalars_of(coin, layout(manifest), [self._node.sums.vector(manifest)])

    def _trapped(self, manifest: Manifest, coin: bytes) -> Trapped:
        traps = Traps.drawn(coin, manifest, self._node.federation.policy)
        return traps.of_aggregator(self._node.sums.vector(manifest)) if traps else NO_TRAPS

    async def ask_proof(self, hop: str, manifest: Manifest, subject: Subject, check: CheckTranscript) -> None:
        """Have a hop prove what it removed at the traps, or say whose commitment keeps it from that."""
        node = self._node
        request = services_pb2.ProveRequest(
            manifest_digest=manifest.digest,
            trails=[write_trail(trail) for trail in subject.ready.trails],
            bodies=write_bodies(subject.bodies),
            check=write_check(check),
        )
        limit, patience = node.limits.proved, float(node.federation.policy.release_s)
        call = calling("Prove", request, services_pb2.ProveResponse, limit, patience)
        wanted = partial(node.is_in, core.Phase.PROVING, manifest.digest)
        answer = await node.asking.until_answered(hop, wanted, call, GIVEN_UP)
        if isinstance(answer, services_pb2.ProveResponse):
            await node.asking.tell_core(hop, partial(self._proved, hop, answer))
        elif answer is not None:
            await node.asking.lost(hop, manifest.digest, answer)

    def _proved(self, hop: str, answer: services_pb2.ProveResponse) -> core.ProofIn | core.DefenceIn:
        """Read what a hop answers. It speaks for itself alone."""
        now, kind = self._node.clock(), answer.WhichOneof("said")
        if kind == "proof":
            proof = read_proof(answer.proof)
            self._check_own(hop, proof.hop)
            return core.ProofIn(proof, now)
        if kind == "defence":
            defence = read_defence(answer.defence)
            self._check_own(hop, defence.node)
            return core.DefenceIn(defence, now)
        raise PeerFault(Reason.MALFORMED, f"{hop} was asked for proofs, and said nothing", peer=hop)

    async def ask_defence(self, manifest: Manifest, finding: Finding, subject: Subject, check: CheckTranscript) -> None:
        """Have the node defend itself where an equation fails; it may be this one."""
        node, hop = self._node, finding.where
        if hop == node.config.name:
            made = await node.work(self._defend, manifest, finding, subject, check)
            await self._answer(core.Phase.BLAMING, manifest, made)
            return
        request = services_pb2.DefendRequest(
            manifest_digest=manifest.digest,
            trails=[write_trail(trail) for trail in subject.ready.trails],
            bodies=write_bodies(subject.bodies),
            check=write_check(check),
        )
        wanted = partial(node.is_in, core.Phase.BLAMING, manifest.digest)
        call = partial(self._defence, request, manifest)
        answer = await node.asking.until_answered(hop, wanted, call, GIVEN_UP)
        if isinstance(answer, tuple):
            defence, vector = answer
            await node.asking.tell_core(hop, lambda: core.DefenceIn(defence, node.clock(), vector))
        elif answer is not None:
            await node.asking.lost(hop, manifest.digest, answer)

    async def _defence(
        self, request: services_pb2.DefendRequest, manifest: Manifest, line: Line
    ) -> tuple[Defence, Bytes | None]:
        """Listen to a defence, and to the vector that goes with it."""
        node, shape = self._node, layout(manifest)
        what, limit = method("ShufflerService", "Defend"), max(node.limits.chunk, SMALL_BYTES)
        patience = float(node.federation.policy.release_s)
        defence: Defence | None = None
        vector, due = shape.body(), 0
        async for part in line.listen(what, request, services_pb2.DefencePart, limit, patience):
            if defence is None and part.WhichOneof("kind") == "defence":
                defence = read_defence(part.defence)
            elif defence is not None and part.WhichOneof("kind") == "chunk" and part.chunk.index == due < shape.chunks:
                shape.part(vector, due)[:] = np.concatenate(shape.check(due, list(part.chunk.planes)))
                due += 1
            else:
                raise PeerFault(Reason.WRONG_SEQUENCE, "a part of a defence out of turn")
        if defence is None or due != (shape.chunks if defence.root else 0):
            raise PeerFault(Reason.WRONG_SEQUENCE, "a defence that ended early")
        return defence, vector if defence.root else None

    def _defend(self, manifest: Manifest, finding: Finding, subject: Subject, check: CheckTranscript) -> core.DefenceIn:
        node, last = self._node, manifest.chain[-1]
        vector = node.sums.vector(manifest)
        true = {last: Traps.drawn(check.coin, manifest, node.federation.policy).forms([vector])[0]}
        roots = {last: signed_root(subject, node.config.name, last, manifest)}
        made = defend(finding, check, manifest.chain, true, {}, roots, node.identity)
        return core.DefenceIn(made, node.clock(), vector)

    def false_pad(self, manifest: Manifest, pads: tuple[tuple[str, Secret], ...]) -> Case | None:
        """Recompute what the hops have stated of their pads, now that these are shown."""
        kept = self._node.sums.read(manifest.round, manifest.attempt)
        if kept is None:
            return None
        return false_pad(replace(kept, pads=tuple(pad for _, pad in pads)), self._node.federation)

    async def convict(self, effect: core.Convict) -> None:
        """Keep the evidence, tell operators, and show it to hop 1 if a silo has to sit out."""
        node, verdict = self._node, effect.verdict
        path = await node.work(keep, self.evidence, verdict.case, effect.vector)
        node.metrics.rejected(Reason.TAMPERED)
        node.log.error(
            f"TAMPERED: {verdict.sentence}; the evidence is in {path}",
            peer=verdict.culprit,
            reason=str(Reason.TAMPERED),
        )
        if verdict.culprit in node.federation.silo_names and effect.vector is None:
            node.spawn(self._show(verdict.case))

    async def _show(self, case: Case) -> None:
        """Show hop 1 the evidence against a silo. If it does not hear, the silo is named again in the next attempt."""
        node, hop = self._node, case.manifest.chain[0]
        request = services_pb2.ConvictRequest(case=write_case(case))
        what, patience = method("ShufflerService", "Convict"), float(node.federation.policy.release_s)
        try:
            await node.line(hop).ask(what, request, services_pb2.ConvictResponse, SMALL_BYTES, patience)
        except grpc.aio.AioRpcError as error:
            fault = fault_of(error)
            node.log.warning(f"{hop} did not take evidence: {fault or error.code().name}", peer=hop)
        except PeerFault as fault:
            node.metrics.rejected(fault.reason)
            node.log.fault("what a hop answered to evidence cannot be read", fault, peer=hop)
