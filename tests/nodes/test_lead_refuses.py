"""What an aggregator refuses of its peers: whoever is not the last hop, not a silo, or asks for what is not theirs."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from tests.nodes.federations import run, until
from tests.nodes.leads import ROUNDS, answers, call_of, kept, leading, refused

from silomix.runtime.config.certificates import load_identity
from silomix.runtime.config.load import load_node
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol.aggregator import SumIn
from silomix.runtime.core.protocol.check.blame import Case, Charge, EquivocationError, Verdict
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.roundlog import Outcome, computed_digest
from silomix.runtime.net.history import read_record, write_transcript
from silomix.runtime.net.wire import read_manifest
from silomix.runtime.nodes import sums
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.runtime.nodes.lead.service import Service
from silomix.runtime.nodes.passage import Passage
from silomix.runtime.nodes.rows import make_passage
from silomix.runtime.nodes.shuffler import LATE_S
from silomix.runtime.store.modelfile import write_model
from silomix.v1 import manifest_pb2, services_pb2

NOT_LAST = (Reason.WRONG_CHAIN, "shuffler-1 is not the last hop")
NOT_OPEN = (Reason.WRONG_MANIFEST, "the stream belongs to no open attempt")


def opening(hop: str, manifest: bytes) -> services_pb2.RelayFrame:
    return services_pb2.RelayFrame(open=services_pb2.RelayOpen(hop=hop, manifest_digest=manifest))


def opened(node: AggregatorNode, manifest: Manifest) -> Passage:
    """What an aggregator has when an attempt is open."""
    node.passage, node._opened_at = make_passage(manifest, node.config.name, node.workers), node.clock()
    return node.passage


# Sums on their way in


async def test_nobody_delivers_a_sum_while_no_attempt_is_open(led: Path) -> None:
    async with leading(led) as node:
        manifest = kept(node, 1).manifest
        deliver = partial(refused, node, "Deliver", "shuffler-2")
        assert await deliver() == (Reason.WRONG_MANIFEST, "no attempt is open here")
        node._taken = (manifest, services_pb2.Delivery())
        assert node.last_hops() == ("shuffler-2",)
        other = kept(node, 2).manifest
        assert await deliver(opening("shuffler-2", other.digest)) == NOT_OPEN
        node._taken = None
        opened(node, manifest)
        assert node.last_hops() == ("shuffler-2",)
        assert await deliver(opening("shuffler-2", other.digest)) == NOT_OPEN
        reason, _ = await deliver(opening("shuffler-2", manifest.digest[:-1]))
        assert reason is Reason.WRONG_LENGTH


async def test_a_sum_comes_from_the_last_hop_of_its_own_attempt_and_from_nobody_else(led: Path) -> None:
    """Two attempts may have two chains: whoever is last in one has no part in the sum of the other."""
    async with leading(led) as node:
        taken, at_work = kept(node, 1).manifest, kept(node, 2).manifest
        turned = replace(at_work, chain=at_work.chain[::-1])
        node._taken = (taken, services_pb2.Delivery(name="aggregator"))
        assert await refused(node, "Deliver", "shuffler-1") == NOT_LAST  # before anything is read
        assert await refused(node, "Deliver", "shuffler-1", opening("shuffler-1", taken.digest)) == NOT_LAST
        opened(node, turned)
        assert node.last_hops() == ("shuffler-1", "shuffler-2")
        assert await refused(node, "Deliver", "shuffler-1", opening("shuffler-1", taken.digest)) == NOT_LAST
        assert await refused(node, "Deliver", "shuffler-1", opening("shuffler-2", taken.digest)) == NOT_LAST
        not_own = (Reason.WRONG_CHAIN, "shuffler-2 is not the last hop")
        assert await refused(node, "Deliver", "shuffler-2", opening("shuffler-1", taken.digest)) == not_own
        assert await refused(node, "Deliver", "shuffler-2", opening("shuffler-2", turned.digest)) == not_own
        assert await refused(node, "Deliver", "shuffler-2", opening("shuffler-1", turned.digest)) == not_own
        (word,) = await answers(node, "Deliver", "shuffler-2", opening("shuffler-2", taken.digest))
        assert services_pb2.Delivery.FromString(word) == node._taken[1]


async def test_a_sum_of_an_attempt_that_was_given_up_meanwhile_gets_no_word(
    led: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last hop would wipe its own copy on that word."""
    async with leading(led) as node:
        manifest = kept(node, 1).manifest
        passage = opened(node, manifest)

        async def all_of_it(*_: Any) -> bytes:
            node.passage = None
            return bytes(32)

        monkeypatch.setattr(passage, "receive", all_of_it)
        found = await refused(node, "Deliver", "shuffler-2", opening("shuffler-2", manifest.digest))
        assert found == (Reason.WRONG_ATTEMPT, "the attempt was given up")
        assert node._taken is None


async def test_a_sum_gets_no_word_before_it_is_taken_in(led: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last hop would forget its keys, and nobody would ask for signatures."""
    async with leading(led) as node:
        manifest = kept(node, 1).manifest
        passage = opened(node, manifest)

        async def all_of_it(*_: Any) -> bytes:
            return bytes(32)

        async def not_taken(event: Any) -> Any:
            assert isinstance(event, SumIn)
            raise PeerFault(Reason.WRONG_SEQUENCE, "no sum is due")

        monkeypatch.setattr(passage, "receive", all_of_it)
        monkeypatch.setattr(node, "step", not_taken)
        found = await refused(node, "Deliver", "shuffler-2", opening("shuffler-2", manifest.digest))
        assert found == (Reason.WRONG_SEQUENCE, "no sum is due")
        assert node._taken is None


async def test_a_hop_that_tells_two_stories_is_told_that_it_was_caught(
    led: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(led) as node:
        manifest = kept(node, 1).manifest
        passage = opened(node, manifest)

        async def two_stories(*_: Any) -> bytes:
            raise EquivocationError(Verdict("shuffler-2", "it signed two trails", Case(Charge.TRAILS, manifest)))

        monkeypatch.setattr(passage, "receive", two_stories)
        found = await refused(node, "Deliver", "shuffler-2", opening("shuffler-2", manifest.digest))
        assert found == (Reason.TAMPERED, "it signed two trails")


async def test_a_sum_that_begins_and_stalls_is_refused_when_the_attempt_is_over(led: Path) -> None:
    """Chunks come as the hops are done with them, so none has a time of its own."""
    async with leading(led) as node:
        manifest = kept(node, 1).manifest
        opened(node, manifest)
        node._opened_at -= node.limits.round_s + LATE_S - 0.05
        call, _ = call_of("shuffler-2", opening("shuffler-2", manifest.digest), silent=True)
        with pytest.raises(PeerFault, match="did not come to an end in time") as caught:
            async with asyncio.timeout(5):
                await Service(node).methods["Deliver"].answer(call)
        assert caught.value.reason is Reason.COHORT_CLOSED


# Sums on their way out


def sum_of(round_: int) -> services_pb2.GetSumRequest:
    return services_pb2.GetSumRequest(round=round_)


async def test_a_sum_is_given_only_of_a_round_that_was_applied_and_counts(led: Path) -> None:
    async with leading(led) as node:
        for round_ in (1, 2):
            parts = await answers(node, "GetSum", "silo-01", sum_of(round_))
            assert len(parts) == 1 + 4
        for round_ in (0, ROUNDS + 1, 1 << 60):
            found = await refused(node, "GetSum", "silo-01", sum_of(round_))
            assert found == (Reason.WRONG_ROUND, f"the sum of round {round_} is not kept here")
        node._published = 2  # the record of round 2 is here, and not enough hops have stored it
        assert (await refused(node, "GetSum", "silo-01", sum_of(2)))[0] is Reason.WRONG_ROUND
        node._published = 3
        records = node.core.log.records
        records[2] = replace(records[2], outcome=Outcome.ABANDONED)
        assert (await refused(node, "GetSum", "silo-01", sum_of(2)))[0] is Reason.WRONG_ROUND
        node.sums.write(replace(kept(node, 1), pads=()))
        assert (await refused(node, "GetSum", "silo-01", sum_of(1)))[0] is Reason.WRONG_ROUND


async def test_no_more_is_read_of_a_sum_than_where_its_chunks_lie(led: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small request asks for it, and to take a transcript apart keeps a worker busy."""
    async with leading(led) as node:
        whole = write_transcript(kept(node, 1))
        monkeypatch.setattr(sums, "read_transcript", None)
        first, *chunks = await answers(node, "GetSum", "silo-01", sum_of(1))
        assert services_pb2.SumPart.FromString(first).transcript == whole
        assert len(chunks) == 4
        path = node.sums._transcript(1, 1)
        path.write_bytes(b"damaged")
        assert (await refused(node, "GetSum", "silo-01", sum_of(1)))[0] is Reason.WRONG_ROUND
        path.write_bytes(b"")
        assert (await refused(node, "GetSum", "silo-01", sum_of(1)))[0] is Reason.WRONG_ROUND


async def test_nothing_but_the_part_that_is_next_is_kept_of_a_sum_while_it_is_given(
    led: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All silos ask for it at once, and each may take as long as it likes."""
    read: list[Callable[[], Manifest | None]] = []

    def note(wire: manifest_pb2.Manifest) -> Manifest:
        manifest = read_manifest(wire)
        read.append(weakref.ref(manifest))
        return manifest

    monkeypatch.setattr(sums, "read_manifest", note)
    async with leading(led) as node:
        parts: Any = node.sum_parts(1)
        assert services_pb2.SumPart.FromString(next(parts)).HasField("transcript")
        kept_by_it = [each for each in parts.gi_frame.f_locals.values() if isinstance(each, Message | bytes)]
        (manifest,) = read
        assert (manifest(), kept_by_it) == (None, [])


@pytest.mark.parametrize("method", ["Watch", "GetModel", "GetSum", "Confirm", "Say", "GiveModel"])
async def test_what_is_for_silos_is_for_no_hop(led: Path, method: str) -> None:
    async with leading(led) as node:
        found = await refused(node, method, "shuffler-1")
        assert found == (Reason.UNKNOWN_PEER, "shuffler-1 is not a silo: models are for silos")


# Models


def model(digest: bytes, *, state: bool = False) -> services_pb2.GetModelRequest:
    return services_pb2.GetModelRequest(model_digest=digest, state=state)


async def given(node: AggregatorNode, request: services_pb2.GetModelRequest) -> bytes:
    parts = await answers(node, "GetModel", "silo-01", request)
    return b"".join(services_pb2.ModelPart.FromString(part).data for part in parts)


async def test_three_models_are_given_and_no_other(led: Path) -> None:
    """The newest, the first, and the one before the newest where bounds follow from it."""
    async with leading(led) as node:
        digest, path = node.initial
        before = node.core.log.before
        assert len({digest, before, node.model}) == 3
        assert await given(node, model(node.model)) == node.data
        assert await given(node, model(digest)) == path.read_bytes()
        assert await given(node, model(before)) == node.config.state.model(before).read_bytes()
        assert await given(node, model(node.model, state=True)) == write_model(
            node.optimiser.state_schema(node.schema), node.moments
        )
        not_current = (Reason.WRONG_MODEL, "that is not the current model")
        assert await refused(node, "GetModel", "silo-01", model(bytes(32))) == not_current
        assert await refused(node, "GetModel", "silo-01", model(bytes(32), state=True)) == not_current
        for length in (0, 31, 33):
            assert (await refused(node, "GetModel", "silo-01", model(bytes(length))))[0] is Reason.WRONG_LENGTH
        policy = replace(node.federation.policy, bound=0.5)
        node.federation = replace(node.federation, policy=policy)
        assert await refused(node, "GetModel", "silo-01", model(before)) == not_current


async def test_a_slow_reader_does_not_get_the_rest_of_a_model_that_is_not_the_newest_any_more(
    led: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silomix.runtime.nodes.lead.service.PART_BYTES", 1000)
    async with leading(led) as node:
        call, context = call_of("silo-01", model(node.model))

        async def write(raw: bytes) -> None:
            context.sent.append(raw)
            node.model = bytes(32)  # a round is applied

        monkeypatch.setattr(context, "write", write)
        with pytest.raises(PeerFault) as caught:
            await Service(node).methods["GetModel"].answer(call)
        assert caught.value.reason is Reason.WRONG_MODEL
        assert len(context.sent) == 1


async def test_a_file_is_read_or_made_once_for_all_that_are_given_it_and_one_at_a_time(
    led: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one silo with two calls could keep both workers of a small host busy."""
    async with leading(led) as node:
        made: list[Any] = []
        busy, giving, goes_on = 0, 0, asyncio.Event()
        work = node.work

        async def counted(run: Any, *arguments: Any) -> Any:
            nonlocal busy
            busy += 1
            made.append(run)
            assert busy == 1
            found = await work(run, *arguments)
            busy -= 1
            return found

        async def write(_: bytes) -> None:
            nonlocal giving
            giving += 1
            await goes_on.wait()

        monkeypatch.setattr(node, "work", counted)
        answer: Any = Service(node).methods["GetModel"].answer
        requests = (model(node.model, state=True), model(node.initial[0]), model(node.core.log.before))
        calls = [call_of("silo-01", request) for request in requests for _ in range(3)]
        for _, context in calls:
            monkeypatch.setattr(context, "write", write)
        given = [asyncio.ensure_future(answer(call)) for call, _ in calls]
        await until(lambda: giving == len(calls), "all are being given")
        goes_on.set()
        await asyncio.gather(*given)
        assert len(made) == 3
        del given
        gc.collect()
        await answer(call_of("silo-01", requests[0])[0])
        assert len(made) == 4, "nothing is kept that nobody is given"


async def test_no_state_is_written_for_a_model_that_is_not_given(led: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with leading(led) as node:
        monkeypatch.setattr(node, "work", None)
        assert (await refused(node, "GetModel", "silo-01", model(bytes(32), state=True)))[0] is Reason.WRONG_MODEL


# Who has computed the model


def word(home: Path, silo: str, record: bytes) -> services_pb2.ConfirmRequest:
    """What a silo signs: here every silo has the aggregator's key."""
    signer = Identity(silo, load_identity(load_node(home).identity))
    signature = signer.sign(computed_digest(record, silo))
    return services_pb2.ConfirmRequest(record_digest=record, signature=signature)


async def test_a_silos_word_counts_for_the_newest_record_that_is_published_and_with_its_signature(
    led: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leading(led) as node:
        head = node.core.log.head
        one = replace(node.federation.member("silo-01"), key=node.federation.aggregator.key)
        others = tuple(silo for silo in node.federation.silos if silo.name != "silo-01")
        node.federation = replace(node.federation, silos=(one, *others))
        old = node.core.log.records[1].digest
        not_newest = (Reason.WRONG_HEAD, "that is not the newest record")
        assert await refused(node, "Confirm", "silo-01", word(led, "silo-01", old)) == not_newest
        node._published = ROUNDS
        assert await refused(node, "Confirm", "silo-01", word(led, "silo-01", head)) == not_newest
        node._published = ROUNDS + 1
        found = await refused(node, "Confirm", "silo-01", word(led, "silo-02", head))
        assert found[0] is Reason.BAD_SIGNATURE
        assert not node.computed
        monkeypatch.setattr(node, "spawn", None)  # it wakes nobody: all silos watch, and any may say it again and again
        assert len(await answers(node, "Confirm", "silo-01", word(led, "silo-01", head))) == 1
        assert set(node.computed) == {"silo-01"}


# News


RAW = services_pb2.Announcement(finished=services_pb2.Finished(round=7)).SerializeToString()
CALLED = services_pb2.Announcement(coin=services_pb2.Coin()).SerializeToString()


async def heard(news: AsyncIterator[bytes]) -> list[bytes]:
    return [raw async for raw in news]


def test_a_silo_with_records_that_the_aggregator_lacks_is_told_that_this_is_an_old_copy(led: Path) -> None:
    async def go() -> None:
        async with leading(led) as node:
            node.announced, node._leaving = RAW, True
            assert await heard(node.news("silo-01", 3)) == [RAW]
            with pytest.raises(
                PeerFault, match=r"silo-01 has 4 records, and the aggregator 3: .* an old copy"
            ) as caught:
                await heard(node.news("silo-01", 4))
            assert (caught.value.reason, caught.value.details["found"]) == (Reason.WRONG_HEAD, 4)
            assert not node.present

    run(go(), 5)


def test_a_silo_gets_the_records_that_it_lacks_then_the_newest_announcement_and_is_known_to_be_there_until_it_leaves(
    led: Path,
) -> None:
    """Also after the last announcement: an aggregator that is done waits for who still computes."""

    async def go() -> None:
        async with leading(led) as node:
            node.announced = RAW
            news = node.news("silo-01", 1)
            records, last = await anext(news), await anext(news)
            shown = services_pb2.Announcement.FromString(records).records.records
            assert [read_record(record).round for record in shown] == [1, 2]
            assert last == RAW
            more = asyncio.ensure_future(anext(news, None))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not more.done()
            assert node.present == {"silo-01": 1}
            more.cancel()
            await asyncio.wait([more])
            assert not node.present

    run(go(), 5)


def test_an_aggregator_that_leaves_says_first_what_it_has_to_say(led: Path) -> None:
    """Else whoever comes back to the next one has missed it."""

    async def go() -> None:
        async with leading(led) as node:
            node._leaving = True
            assert len(await heard(node.news("silo-01", 1))) == 1
            assert await heard(node.news("silo-01", 3)) == []
            node.announced = RAW
            assert await heard(node.news("silo-01", 3)) == [RAW]
            node._leaving = False
            news = node.news("silo-01", 3)
            assert await anext(news) == RAW
            node.called, node._leaving = (CALLED,), True
            assert await heard(news) == [CALLED]

    run(go(), 5)


def test_an_aggregator_that_leaves_before_it_has_heard_the_hops_does_not_pass_for_an_old_copy(led: Path) -> None:
    async def go() -> None:
        async with leading(led) as node:
            node._knows, node._published, node._leaving = False, 0, True
            assert await heard(node.news("silo-01", 3)) == []

    run(go(), 5)


async def test_who_watches_says_which_federation_it_is_in(led: Path) -> None:
    async with leading(led) as node:
        node.announced, node._leaving = RAW, True
        request = services_pb2.WatchRequest(federation_digest=node.federation.digest, records=3)
        assert await answers(node, "Watch", "silo-01", request) == [RAW]
        request.federation_digest = bytes(32)
        assert (await refused(node, "Watch", "silo-01", request))[0] is Reason.WRONG_FEDERATION


# The end


async def test_an_aggregator_that_is_done_waits_for_silos_that_compute_and_not_for_those_that_have_left(
    led: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("silomix.runtime.nodes.aggregator.FAREWELL_S", 0.0)
    monkeypatch.setattr("silomix.runtime.nodes.aggregator.LOOK_S", 0.0)
    async with leading(led) as node:
        node.present["silo-01"], node.computed = 1, {}
        farewell = asyncio.create_task(node._farewell())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not farewell.done()
        del node.present["silo-01"]
        for _ in range(10):
            await asyncio.sleep(0)
        assert farewell.done()
        await farewell
