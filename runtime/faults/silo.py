"""A silo in memory. It trains by drawing a number, so that training twice on one model would show."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from silomix.runtime.core.digest import fast_hash
from silomix.runtime.core.errors import LocalFault, PeerFault, UserError
from silomix.runtime.core.numbers.codec import Codec
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.protocol import silo
from silomix.runtime.core.protocol.identity import verify
from silomix.runtime.core.protocol.messages import Manifest, Receipt, body_root, trailer_digest
from silomix.runtime.core.protocol.roundlog import Fork, Outcome, Record, computed_digest
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.faults.disk import MemoryJournal
from silomix.runtime.faults.process import RETRY_S, Node
from silomix.runtime.faults.streams import GetModel, GetSum, News, Submit, Wanted, Watch, chunk_of, cover, cut, parts_of
from silomix.runtime.faults.world import Reply
from silomix.runtime.net.answers import ANSWERS
from silomix.runtime.nodes.facts import read_silo, write_silo
from silomix.runtime.store.frozen import checksum, frozen_name, whole
from silomix.runtime.store.modelfile import model_digest, read_model, write_model

POLL_S = 10.0


class Silo(Node):
    """A silo."""

    core: silo.Silo

    def begin(self) -> None:
        """Recall what the journal has, and load the newest model."""
        self.journal = MemoryJournal(self.disk)
        self.core = self.scene.make_silo(self.name)
        for fact in read_silo(self.journal):
            self.core.recall(fact)
        self.at, (self.model, self.state) = 0, self.scene.first
        self.own = True
        """Whether it has computed its model, and not adopted it."""
        any(self._load(record) for record in reversed(self.core.log.records[1:]))
        self.following = False
        self.taking: Manifest | None = None

    def _load(self, record: Record) -> bool:
        data = self.disk.content.files.get(f"model-{record.model_after.hex()}")
        if data is None:
            return False
        try:
            schema, tensors = read_model(data)
        except LocalFault:  # damaged: it is computed again
            return False
        if self.disk.checked and model_digest(schema, tensors) != record.model_after:
            return False
        self.at, self.model = record.round, tensors
        return True

    def started(self) -> None:
        """Ask what is new, again and again."""
        life = self.life

        def hear(answer: Any) -> None:
            if self.life == life and self.up and isinstance(answer, News):
                self.doing(lambda: self._heard(answer))

        self.world.send(self.name, self.scene.lead, self._watch(), hear)
        self.later(POLL_S, self.started)

    def _watch(self) -> Watch:
        log = self.core.log
        if not self.own or self.at != log.round - 1 or not log.records:
            return Watch(log.round)
        return Watch(log.round, log.head, self.identity.sign(computed_digest(log.head, self.name)))

    def remember(self, fact: silo.Fact) -> None:
        """Write a fact."""
        write_silo(self.journal, fact)

    def answer(self, sender: str, request: Any, reply: Reply) -> None:
        """Hear news that were sent at once."""
        if isinstance(request, News):
            self._heard(request)
        if isinstance(request, Wanted):
            data = self.disk.content.files.get(f"model-{request.model.hex()}")
            if self.core.log.records and self.core.log.records[self.at].model_after == request.model:
                data = write_model(self.scene.schema, self.model)
            reply(data or b"")

    def _heard(self, news: News) -> None:
        try:
            if news.records:
                self.insist(silo.RecordsIn(news.records))
            self._follow()
            if news.manifest is not None:
                self.insist(silo.Announced(news.manifest))
        except Fork as fork:
            self.insist(silo.ForkSeen(fork))
        except PeerFault as fault:
            self.scene.watch.refusals[fault.reason] += 1

    def perform(self, effect: silo.Effect) -> None:
        """Carry one decision out."""
        match effect:
            case silo.Follow():
                self._follow()
            case silo.TakePart(manifest):
                self.scene.watch.joins(self.name, manifest, self.core.log)
                self.taking = manifest
                self._take_part(manifest)
            case silo.Done(manifest):
                self.scene.watch.receipts.add((self.name, manifest.digest))

    # The model

    def _follow(self) -> None:
        """Compute the models of the rounds that were applied since, from the sums that were released."""
        while not self.following and self.at < self.core.log.round - 1:
            record = self.core.log.records[self.at + 1]
            if record.outcome is Outcome.APPLIED:
                self._download(record)
            else:
                self.at = record.round

    def _download(self, record: Record) -> None:
        self.following = True
        request = GetSum(record.round)
        wanted, take = lambda: self.at + 1 == record.round, partial(self._computed, record)
        self.ask(self.scene.lead, lambda: request, wanted, take)

    def _computed(self, record: Record, answer: Any) -> bool:
        if isinstance(answer, PeerFault):
            self._adopt(record)
            return False
        transcript, body = answer
        try:
            found = self.scene.compute(transcript, body.copy(), record, self.model, self.state)
        except PeerFault as fault:  # what the aggregator has kept is damaged: it is asked again
            self.scene.watch.refusals[fault.reason] += 1
            self.scene.watch.refuses(self.name, record, str(fault))
            return False
        self.scene.watch.computes(self.name, record, self.scene.digests(*found))
        (self.model, self.state), self.at, self.following, self.own = found, record.round, False, True
        with suppress(OSError):  # it is computed again after a restart
            self.disk.put_file(f"model-{record.model_after.hex()}", write_model(self.scene.schema, self.model))
        self._follow()
        return True

    def _adopt(self, behind: Record) -> None:
        """Take the newest model if a majority of the roster has computed it: the sum of a round is kept no more."""
        newest, life = self.core.log.records[-1], self.life

        def hear(answer: Any) -> None:
            late = (
                self.life != life or not self.up or self.at + 1 != behind.round or self.core.log.head != newest.digest
            )
            if late or isinstance(answer, PeerFault | OSError):
                return
            data, computed = answer
            for name, signature in computed.items():
                key = self.scene.federation.member(name).key
                verify(key, computed_digest(newest.digest, name), signature, name)
            _, tensors = read_model(data)
            if 2 * len(computed) > len(self.scene.federation.silos):
                found = self.scene.digests(tensors, self.scene.first[1])  # the average keeps no state
                self.scene.watch.computes(self.name, newest, found)
                self.model, self.state, self.own = tensors, self.scene.first[1], False
                self.at, self.following = newest.round, False
                self._follow()

        self.world.send(self.name, self.scene.lead, GetModel(newest.digest), lambda a: self.doing(lambda: hear(a)))

    # The body

    def _take_part(self, m: Manifest) -> None:
        """Train unless the round's integers are frozen already, and send them."""
        if self.taking is not m:
            return
        if self.core.log.model != m.model:
            return
        name = frozen_name(m, self.scene.federation)
        data = self.disk.content.files.get(f"frozen-{name}")
        try:
            if data is not None:
                array = np.frombuffer(data, np.uint8)
                body = whole(name, array, Path(self.name)) if self.disk.checked else array[:-32]
            elif self.at < self.core.log.round - 1:
                self.later(RETRY_S, lambda: self._take_part(m))
                return
            else:
                body = self._train(m)
                self._clear()
                self.disk.put_file(f"frozen-{name}", body.tobytes() + checksum(name, fast_hash(body.data)))
        except UserError as error:  # damaged: it sits the round out, and says so
            if isinstance(error, OSError):
                self.later(RETRY_S, lambda: self._take_part(m))
            else:
                self.scene.watch.sits_out(self.name, str(error))
            return
        self._submit(m, body)

    def _clear(self) -> None:
        for old in [name for name in self.disk.content.files if name.startswith("frozen-")]:
            del self.disk.content.files[old]

    def _train(self, m: Manifest) -> Bytes:
        vector = self.scene.vector(self.name, m.applied, self.world.random.randrange(4))
        values = np.array(vector, np.float64) / m.plan.v * m.bounds[0]
        body = layout(m).body()
        codec = Codec(m.schema, m.bounds, m.plan, m.chunk_parameters)
        for _ in codec.encode({m.schema.tensors[0].name: values.astype(np.float32)}, body=body):
            pass
        self.scene.watch.trains(self.name, m.model, body, vector)
        return body

    def _submit(self, m: Manifest, frozen: Bytes) -> None:
        sealing = self.core.sealing(m, self.scene.rng)
        header, body = sealing.header, frozen.copy()
        cover(1, body, m, [(seed, m.context(layer)) for layer, seed in sealing.seeds])
        parts = parts_of(body, m)
        root = body_root([chunk_of(part, m, i) for i, part in enumerate(parts)])
        signature = self.identity.sign(trailer_digest(header.digest, root))
        stream = Submit(header, parts, (root, signature))
        self.scene.watch.sends(self.name, m, header, frozen)

        def wanted() -> bool:
            return self.taking is m and self.core.log.round == m.round

        self.ask(m.chain[0], lambda: cut(stream, self.world), wanted, partial(self._answered, root))

    def _answered(self, root: bytes, answer: Any) -> bool:
        if isinstance(answer, Receipt):
            try:
                self.insist(silo.ReceiptIn(answer, root))
            except PeerFault as fault:
                self.scene.watch.refusals[fault.reason] += 1
            return True
        assert isinstance(answer, PeerFault)
        return not ANSWERS[answer.reason].again
