"""What a silo takes of the aggregator on its way to the newest model, and what it does not."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tests.core.protocol.federations import (
    AGGREGATOR,
    SCHEMA,
    applied,
    cohort,
    counted,
    federation,
    flipped,
    headers,
    identity,
    manifest,
    ready,
    recorded,
)
from tests.core.protocol.test_lineage import Story, on_record, one_bit, story, with_
from tests.nodes.alone import Little, Peers, alone, config_of, ended

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.learning.bounds import bounds_of
from silomix.runtime.core.learning.optimise import Optimiser
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.core.policy import AUTO, Server
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.lineage import Tensors
from silomix.runtime.core.protocol.roundlog import Record, RoundLog, computed_digest, genesis
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.net.history import write_signatures, write_transcript
from silomix.runtime.nodes.facts import read_lie
from silomix.runtime.nodes.follow import MODEL_SLACK_BYTES, Follower
from silomix.runtime.nodes.silo import SiloNode
from silomix.runtime.store.modelfile import model_digest, write_model
from silomix.v1 import body_pb2, services_pb2

REFUSED = grpc.StatusCode.FAILED_PRECONDITION
Part = services_pb2.ModelPart
SumPart = services_pb2.SumPart
FIRST: Tensors = {t.name: np.zeros(t.shape, np.float32) for t in SCHEMA.tensors}
OTHER: Tensors = {t.name: np.ones(t.shape, np.float32) for t in SCHEMA.tensors}
OTHER_SCHEMA = Schema((TensorSpec("c", (7,)),))


def refused(reason: Reason) -> grpc.aio.AioRpcError:
    return ended(REFUSED, f"{reason}: so it is")


def model(tensors: Tensors = FIRST, schema: Schema = SCHEMA, computed: Any = ()) -> list[Part]:
    """A model as the aggregator sends it, with the signatures of silos that have computed it."""
    data = write_model(schema, tensors)
    return [Part(data=data[:9], total_bytes=len(data), computed=write_signatures(computed)), Part(data=data[9:])]


def released(told: Story) -> list[SumPart]:
    """A released sum as the aggregator sends it."""
    shape = layout(told.transcript.manifest)
    parts = [SumPart(transcript=write_transcript(told.transcript))]
    for i in range(shape.chunks):
        planes = [bytes(plane) for plane in shape.planes(shape.part(told.body, i).data, i)]
        parts.append(SumPart(chunk=body_pb2.Chunk(index=i, first_parameter=shape.start(i), planes=planes)))
    return parts


def log_of(told: Story) -> RoundLog:
    return RoundLog(told.net.f, [told.net.core.log.records[0], told.record])


def computed(record: Record, *silos: str) -> list[tuple[str, bytes]]:
    return [(silo, identity(silo).sign(computed_digest(record.digest, silo))) for silo in silos]


def followed(
    directory: Path,
    log: RoundLog,
    work: Callable[[Follower, Peers, SiloNode], Coroutine[Any, Any, Any]],
    schema: Schema = SCHEMA,
    **stories: Any,
) -> Any:
    """Have something done with a silo's follower, to which the aggregator tells these stories, method by method."""
    peers = Peers(**{"Confirm": [services_pb2.ConfirmResponse()], **stories})

    async def go(node: SiloNode) -> Any:
        node.line = peers  # type: ignore[method-assign, assignment]
        return await work(Follower(node, log, schema), peers, node)

    return alone(lambda: SiloNode(config_of(directory, log.federation, "silo-1"), Little()), go)


async def follow(follower: Follower, _: Peers, __: SiloNode) -> Tensors:
    return await follower.follow()


def why(directory: Path, log: RoundLog, **stories: Any) -> Reason:
    """Why a follower does not get to the newest model."""
    with pytest.raises(PeerFault) as caught:
        followed(directory, log, follow, **stories)
    return caught.value.reason


def assert_same(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    assert all((one[name] == other[name]).all() for name in one)


def test_a_silo_computes_the_model_on_record_and_gives_it_to_whoever_wants_that_one(tmp_path: Path) -> None:
    told = story()

    async def go(follower: Follower, peers: Peers, _: SiloNode) -> None:
        found = await follower.follow()
        assert model_digest(SCHEMA, found) == told.record.model_after
        assert follower.at_head
        assert await follower.follow(told.record.model_after) is found
        with pytest.raises(PeerFault) as over:
            await follower.follow(told.record.model_before)
        assert over.value.reason is Reason.WRONG_MODEL
        assert [name for name, _ in peers.asked if name != "Confirm"] == ["GetModel", "GetSum"]

    followed(tmp_path, log_of(told), go, GetModel=[model()], GetSum=[released(told)])


def test_nothing_is_computed_for_an_aggregator_that_was_seen_to_lie(tmp_path: Path) -> None:
    async def go(follower: Follower, peers: Peers, _: SiloNode) -> None:
        follower.liar = "it lied"
        with pytest.raises(PeerFault, match="it lied") as caught:
            await follower.follow()
        assert caught.value.reason is Reason.WRONG_STEP
        with pytest.raises(PeerFault, match="it lied"):
            follower.check_honest()
        assert not peers.asked

    followed(tmp_path, log_of(story()), go)


@pytest.mark.parametrize("changes", [{"model_after": bytes(32)}, {"state_after": bytes(32)}], ids=["model", "state"])
def test_an_aggregator_that_signs_for_another_model_is_a_liar_from_then_on(tmp_path: Path, changes: Any) -> None:
    told = on_record(story(), **changes)

    async def go(follower: Follower, peers: Peers, node: SiloNode) -> None:
        with pytest.raises(PeerFault, match="trains on nothing more") as caught:
            await follower.follow()
        assert caught.value.reason is Reason.WRONG_STEP
        assert caught.value.details["peer"] == AGGREGATOR
        asked = len(peers.asked)
        with pytest.raises(PeerFault, match="trains on nothing more"):
            await follower.follow()
        assert len(peers.asked) == asked
        assert read_lie(node.journal) == follower.liar
        assert follower.at == 0

    followed(tmp_path, log_of(told), go, GetModel=[model()], GetSum=[released(told)])


def test_a_sum_that_is_not_the_one_that_was_released_is_refused(tmp_path: Path) -> None:
    told = story()
    lies = {
        Reason.WRONG_PAD: with_(told, pads=told.transcript.pads[::-1]),
        Reason.ROOT_MISMATCH: one_bit(told, 0),
        Reason.BAD_SIGNATURE: with_(told, cohort=replace(told.transcript.cohort, signature=bytes(64))),
    }
    for reason, lie in lies.items():
        assert why(tmp_path, log_of(told), GetModel=[model()], GetSum=[released(lie)]) is reason


def _without_transcript(parts: list[SumPart]) -> list[SumPart]:
    return parts[1:]


def _swapped(parts: list[SumPart]) -> list[SumPart]:
    return [parts[0], *parts[:0:-1]]


def _one_more(parts: list[SumPart]) -> list[SumPart]:
    more = SumPart(chunk=body_pb2.Chunk(index=len(parts) - 1, planes=list(parts[1].chunk.planes)))
    return [*parts, more]


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: [],
        _without_transcript,
        lambda parts: [parts[0], parts[0], *parts[1:]],
        _swapped,
        lambda parts: [parts[0], parts[1], *parts[1:]],
        lambda parts: parts[:-1],
        _one_more,
    ],
    ids=["nothing", "no transcript", "two transcripts", "swapped", "a chunk twice", "a chunk less", "a chunk more"],
)
def test_a_released_sum_has_its_transcript_and_each_chunk_once_and_in_order(
    tmp_path: Path, change: Callable[[list[SumPart]], list[SumPart]]
) -> None:
    told = story()
    assert len(released(told)) == 3
    told_otherwise = change(released(told))
    assert why(tmp_path, log_of(told), GetModel=[model()], GetSum=[told_otherwise]) is Reason.WRONG_SEQUENCE


async def _parts(*parts: SumPart) -> AsyncIterator[SumPart]:
    for part in parts:
        yield part


def test_no_room_is_made_for_a_sum_of_another_attempt_or_of_another_task(tmp_path: Path) -> None:
    told = story()
    first = released(told)[0]
    other = replace(told.record, attempts=(replace(told.record.attempts[-1], manifest=bytes(32)),))

    async def go(follower: Follower, _: Peers, __: SiloNode) -> Reason:
        with pytest.raises(PeerFault) as attempt:
            await follower._put_together(other, _parts(first))
        assert attempt.value.reason is Reason.WRONG_MANIFEST
        with pytest.raises(PeerFault) as caught:
            await follower._put_together(told.record, _parts(first))
        return caught.value.reason

    assert followed(tmp_path, log_of(told), go) is Reason.WRONG_SEQUENCE
    assert followed(tmp_path, log_of(told), go, schema=OTHER_SCHEMA) is Reason.WRONG_SCHEMA


def test_a_sum_that_the_aggregator_refuses_is_not_asked_for_again(tmp_path: Path) -> None:
    told = story()
    stories = {"GetModel": [model()], "GetSum": [[refused(Reason.UNKNOWN_PEER)], released(told)]}
    assert why(tmp_path, log_of(told), **stories) is Reason.UNKNOWN_PEER


def test_a_sum_is_asked_for_again_when_the_line_broke(tmp_path: Path) -> None:
    told = story()
    broken = [released(told)[0], ended(grpc.StatusCode.UNAVAILABLE)]
    found = followed(tmp_path, log_of(told), follow, GetModel=[model()], GetSum=[broken, released(told)])
    assert model_digest(SCHEMA, found) == told.record.model_after


# Taking a model as it is


def late(told: Story) -> tuple[Tensors, Tensors]:
    """The model and the state after a round."""
    net = told.net
    return net.compute(told.transcript, told.body.copy(), told.record, *told.before)


def adopting(told: Story, signed: Any, sums: Any, first: Any = None) -> dict[str, Any]:
    """The aggregator has not kept a sum any more, or the first model: it offers the newest one."""
    found, state = late(told)
    optimiser = Optimiser.of(told.net.f.policy)
    newest = [model(found, computed=signed), model(state, optimiser.state_schema(SCHEMA))]
    return {"GetModel": [model() if first is None else first, *newest], "GetSum": [sums]}


GONE = [
    ("a sum that is gone", {"sums": [refused(Reason.WRONG_ROUND)]}),
    ("a sum that nobody knows of", {"sums": [ended(grpc.StatusCode.UNIMPLEMENTED)]}),
    ("the first model is gone", {"sums": [], "first": [refused(Reason.WRONG_MODEL)]}),
    ("the first model is not served", {"sums": [], "first": [ended(grpc.StatusCode.UNIMPLEMENTED)]}),
]


@pytest.mark.parametrize("gone", [gone for _, gone in GONE], ids=[name for name, _ in GONE])
def test_a_silo_that_comes_too_late_adopts_a_model_that_a_majority_has_signed_for(tmp_path: Path, gone: Any) -> None:
    told = story()

    async def go(follower: Follower, peers: Peers, _: SiloNode) -> None:
        found = await follower.follow()
        assert_same(found, late(told)[0])
        assert follower.at_head
        assert "Confirm" not in [name for name, _ in peers.asked], "whoever adopts a model does not sign for it"

    signed = computed(told.record, "silo-2", "silo-3", "silo-4")
    followed(tmp_path, log_of(told), go, **adopting(told, signed, **gone))


@pytest.mark.parametrize(
    ("silos", "forged", "reason"),
    [
        ((), False, Reason.WRONG_STEP),
        (("silo-2", "silo-3"), False, Reason.WRONG_STEP),
        (("silo-2", "silo-2", "silo-2"), False, Reason.WRONG_STEP),
        (("silo-2", "silo-3", "hop-1", "hop-2"), False, Reason.WRONG_STEP),
        (("silo-2", "silo-3", "silo-4"), True, Reason.BAD_SIGNATURE),
    ],
    ids=["nobody", "half", "one who signs twice", "hops", "forged"],
)
def test_a_silo_adopts_no_model_without_a_majority_of_the_roster(
    tmp_path: Path, silos: Any, forged: bool, reason: Reason
) -> None:
    told = story()
    signed = computed(told.record, *silos)
    if forged:
        signed[0] = (signed[0][0], flipped(signed[0][1]))

    async def go(follower: Follower, _: Peers, __: SiloNode) -> None:
        with pytest.raises(PeerFault) as caught:
            await follower.follow()
        assert caught.value.reason is reason
        assert not follower.at_head
        assert_same(follower.model, FIRST)

    followed(tmp_path, log_of(told), go, **adopting(told, signed, [refused(Reason.WRONG_ROUND)]))


def test_a_model_that_is_none_or_another_or_of_another_task_is_refused(tmp_path: Path) -> None:
    log = RoundLog(story().net.f, [story().net.core.log.records[0]])
    other: Tensors = {"c": np.zeros(7, np.float32)}
    assert why(tmp_path, log, GetModel=[[Part(data=b"no model")]]) is Reason.MALFORMED
    assert why(tmp_path, log, GetModel=[model(OTHER)]) is Reason.WRONG_STEP
    records = [replace(log.records[0], model_after=model_digest(OTHER_SCHEMA, other))]
    assert why(tmp_path, RoundLog(log.federation, records), GetModel=[model(other, OTHER_SCHEMA)]) is (
        Reason.WRONG_SCHEMA
    )


def test_the_state_of_the_server_begins_at_rest(tmp_path: Path) -> None:
    f = story().net.f
    optimiser = Optimiser.of(f.policy)
    assert optimiser.slots
    schema = optimiser.state_schema(SCHEMA)
    moved: Tensors = {name: tensor + 1 for name, tensor in optimiser.start(SCHEMA).items()}
    first = genesis(f, model_digest(SCHEMA, FIRST), model_digest(schema, moved)).signed(identity(AGGREGATOR))
    assert why(tmp_path, RoundLog(f, [first]), GetModel=[model(), model(moved, schema)]) is Reason.WRONG_STEP


def test_a_model_is_not_longer_than_it_can_be(tmp_path: Path) -> None:
    most = 16 * SCHEMA.parameters + MODEL_SLACK_BYTES
    twice = most + 16 * SCHEMA.parameters

    async def length(follower: Follower, size: int, said: int, *, state: bool) -> int | Reason:
        peers = Peers(GetModel=[[Part(data=bytes(size - 5), total_bytes=said), Part(data=bytes(5))], [Part()]])
        follower._node.line = peers  # type: ignore[method-assign, assignment]
        try:
            return len((await follower._get(bytes(32), state=state))[0])
        except PeerFault as fault:
            return fault.reason

    async def go(follower: Follower, _: Peers, __: SiloNode) -> None:
        assert await length(follower, most, most, state=False) == most
        assert await length(follower, most + 1, 0, state=False) is Reason.WRONG_LENGTH
        assert await length(follower, 9, most + 1, state=False) is Reason.WRONG_LENGTH
        assert await length(follower, twice, twice, state=True) == twice
        assert await length(follower, twice + 1, 0, state=True) is Reason.WRONG_LENGTH

    followed(tmp_path, log_of(story()), go)


def test_a_model_is_asked_for_again_when_the_line_broke_and_not_when_it_was_refused(tmp_path: Path) -> None:
    log = RoundLog(story().net.f, [story().net.core.log.records[0]])
    broken = [model()[0], ended(grpc.StatusCode.UNAVAILABLE)]
    assert_same(followed(tmp_path, log, follow, GetModel=[broken, model()]), FIRST)
    assert why(tmp_path, log, GetModel=[[refused(Reason.UNKNOWN_PEER)], model()]) is Reason.UNKNOWN_PEER
    assert why(tmp_path, log, GetModel=[[ended(grpc.StatusCode.UNIMPLEMENTED)], model()]) is Reason.WRONG_MODEL


def applied_log(f: Federation, last: bytes) -> RoundLog:
    """A log with one round that was applied, after which the model is this one."""
    rest = Optimiser.of(f.policy)
    state = model_digest(rest.state_schema(SCHEMA), rest.start(SCHEMA))
    begun = RoundLog(f, [genesis(f, model_digest(SCHEMA, FIRST), state).signed(identity(AGGREGATOR))])
    m = manifest(f, log=begun)
    c = cohort(m, headers(m, f))
    record = applied(begun, m, ready(m, c), c.silos, model_after=last)
    return RoundLog(f, [*begun.records, record])


def test_where_sums_leave_by_group_the_newest_model_is_the_word_of_the_aggregator(tmp_path: Path) -> None:
    log = applied_log(federation(silos=7, group_size=3), model_digest(SCHEMA, OTHER))

    async def go(follower: Follower, peers: Peers, _: SiloNode) -> None:
        assert_same(await follower.follow(), OTHER)
        assert follower.at_head
        assert [name for name, _ in peers.asked] == ["GetModel"]

    followed(tmp_path, log, go, GetModel=[model(OTHER)])


# On the disk

WRONG: list[tuple[str, Any]] = [
    ("nothing", None),
    ("no model", b"no model"),
    ("half of it", lambda data: data[: len(data) // 2]),
    ("one bit", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    ("another task's", write_model(OTHER_SCHEMA, {"c": np.zeros(7, np.float32)})),
]


def kept(follower: Follower, told: Story) -> tuple[Path, Path]:
    """Have a model on the disk that was computed before a restart; return its file, and that of the server's state."""
    follower._write(told.record, *late(told))
    home, after = follower._directory, told.record.model_after
    return home.model(after), home.moments(after, told.record.round)


def test_a_silo_that_was_started_again_goes_on_with_the_model_that_it_has_computed(tmp_path: Path) -> None:
    told = story()

    async def go(follower: Follower, peers: Peers, _: SiloNode) -> None:
        kept(follower, told)
        assert_same(await follower.follow(), late(told)[0])
        assert_same(follower._state, late(told)[1])
        assert follower.at_head
        assert {name for name, _ in peers.asked} <= {"Confirm"}

    followed(tmp_path, log_of(told), go)


class Growing(RoundLog):
    """A log to which the machine, in its thread, adds a record just when somebody has seen how many there are."""

    coming: list[Record]

    @property
    def round(self) -> int:
        seen = len(self.records)
        if seen == 2 and self.coming:
            self.records.append(self.coming.pop())
        return seen


def test_a_silo_signs_for_what_it_has_computed_and_for_no_record_that_comes_in_meanwhile(tmp_path: Path) -> None:
    told = story()
    log = Growing(told.net.f, log_of(told).records)
    log.coming = []

    async def go(follower: Follower, peers: Peers, _: SiloNode) -> None:
        kept(follower, told)
        await follower._node.work(follower._load)
        log.coming = [after(log_of(told), OTHER).records[-1]]
        await follower.follow()
        await follower.told()
        assert len(log.records) == 3
        assert [request.record_digest for _, request in peers.asked] == [told.record.digest]  # type: ignore[union-attr]

    followed(tmp_path, log, go)


def after(log: RoundLog, model: Tensors) -> RoundLog:
    """The log with one round more that was applied, after which the model is said to be this one."""
    m = manifest(log.federation, log.round, log=log)
    c = cohort(m, headers(m, log.federation))
    record = applied(log, m, ready(m, c), c.silos, model_after=model_digest(SCHEMA, model))
    return RoundLog(log.federation, [*log.records, record])


@pytest.mark.parametrize("again", [FIRST, OTHER], ids=["the one before", "the same"])
@pytest.mark.parametrize("abandoned", [0, 1])
def test_a_silo_that_was_started_again_takes_no_old_model_for_what_a_later_sum_has_made(
    tmp_path: Path, again: Tensors, abandoned: int
) -> None:
    """Both are on its disk: an aggregator that gives no sum could else have it train on either a second time."""
    f = federation(bound=AUTO)
    log = applied_log(f, model_digest(SCHEMA, OTHER))
    for _ in range(abandoned):
        log = RoundLog(f, [*log.records, counted(recorded(log), f)])

    async def go(follower: Follower, _: Peers, node: SiloNode) -> None:
        follower._write(log.records[0], FIRST, {})
        follower._write(log.records[1], OTHER, {})
        now = Follower(node, after(log, again), SCHEMA)
        now._load()
        assert (now.at, now.at_head) == (1 + abandoned, False)
        assert_same(now.model, OTHER)

    followed(tmp_path, log, go)


@pytest.mark.parametrize("computed", [1, 2])
def test_a_silo_that_was_started_again_has_what_it_computed_of_a_round_that_left_the_model_as_it_was(
    tmp_path: Path, computed: int
) -> None:
    """The server's state is kept by round, so that its file shows which rounds were computed here."""
    f = federation(server=Server.MOMENTUM)
    log = after(applied_log(f, model_digest(SCHEMA, OTHER)), OTHER)
    state = Optimiser.of(f.policy).start(SCHEMA)

    async def go(follower: Follower, _: Peers, node: SiloNode) -> None:
        for record in log.records[1 : computed + 1]:
            follower._write(record, OTHER, state)
        now = Follower(node, log, SCHEMA)
        now._load()
        assert (now.at, now.at_head) == (computed, computed == 2)

    followed(tmp_path, log, go)


@pytest.mark.parametrize("place", [0, 1], ids=["model", "state"])
@pytest.mark.parametrize("wrong", [wrong for _, wrong in WRONG], ids=[name for name, _ in WRONG])
def test_a_file_that_is_not_what_is_on_record_is_not_used(tmp_path: Path, wrong: Any, place: int) -> None:
    told = story()

    async def go(follower: Follower, _: Peers, __: SiloNode) -> None:
        path = kept(follower, told)[place]
        data = path.read_bytes()
        path.unlink()
        if wrong is not None:
            path.write_bytes(wrong(data) if callable(wrong) else wrong)
        follower._load()
        assert (follower.at, follower.model, follower._state, follower._own) == (-1, {}, {}, False)

    followed(tmp_path, log_of(told), go)


def test_a_silo_is_at_the_head_only_with_the_model_that_the_newest_record_names(tmp_path: Path) -> None:
    told = story()

    async def go(follower: Follower, _: Peers, __: SiloNode) -> None:
        assert not follower.at_head, "nothing is on record, and nothing is here"
        follower._log.records.append(told.net.core.log.records[0])
        assert not follower.at_head
        await follower.follow()
        assert follower.at_head
        follower._log.records.append(told.record)
        assert not follower.at_head

    followed(tmp_path, RoundLog(told.net.f), go, GetModel=[model()])


def test_a_silo_gives_the_models_that_it_has_and_the_state_beside_the_newest_alone(tmp_path: Path) -> None:
    told = story()
    found, state = late(told)
    newest, first = told.record.model_after, told.record.model_before

    async def go(follower: Follower, _: Peers, __: SiloNode) -> None:
        kept(follower, told)
        assert await follower.file_of(newest, state=False) == write_model(SCHEMA, found)
        of_state = Optimiser.of(told.net.f.policy).state_schema(SCHEMA)
        assert await follower.file_of(newest, state=True) == write_model(of_state, state)
        assert await follower.file_of(first, state=False) is None
        follower._directory.model(first).write_bytes(model_before := write_model(SCHEMA, FIRST))
        assert await follower.file_of(first, state=False) == model_before
        assert await follower.file_of(first, state=True) is None, "that would be a model in place of a state"

    followed(tmp_path, log_of(told), go)


def test_a_model_that_goes_while_it_is_to_be_given_is_none_that_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aggregator chooses when it wants which, and a newer one may take its place meanwhile."""
    told = story()
    first = told.record.model_before

    async def go(follower: Follower, _: Peers, node: SiloNode) -> None:
        kept(follower, told)
        path, work = follower._directory.model(first), node.work
        path.write_bytes(write_model(SCHEMA, FIRST))

        async def late(run: Any, *arguments: object) -> Any:
            path.unlink(missing_ok=True)
            return await work(run, *arguments)

        monkeypatch.setattr(node, "work", late)
        assert await follower.file_of(first, state=False) is None

    followed(tmp_path, log_of(told), go)


# Bounds


def test_bounds_that_the_policy_names_need_no_model(tmp_path: Path) -> None:
    async def go(follower: Follower, peers: Peers, _: SiloNode) -> None:
        await follower.check_bounds(story().transcript.manifest)
        assert not peers.asked

    followed(tmp_path, log_of(story()), go)


def test_automatic_bounds_are_those_that_follow_from_the_two_newest_models(tmp_path: Path) -> None:
    f = federation(bound=AUTO)
    log = applied_log(f, model_digest(SCHEMA, OTHER))
    first, second = (bounds_of(f.policy, SCHEMA, now, before) for now, before in ((FIRST, None), (OTHER, FIRST)))
    assert first != second
    m = manifest(federation())

    async def go(follower: Follower, _: Peers, __: SiloNode) -> None:
        for records, now, right, wrong in ((1, FIRST, first, second), (2, OTHER, second, first)):
            follower._log.records[:] = log.records[:records]
            follower.at, follower.model = records - 1, now
            digest = model_digest(SCHEMA, now)
            await follower.check_bounds(replace(m, model=digest, bounds=right))
            with pytest.raises(PeerFault):
                await follower.check_bounds(replace(m, model=digest, bounds=wrong))
            follower._past = (b"", {})

    followed(tmp_path, RoundLog(f), go, GetModel=[model(FIRST)])


def test_bounds_of_a_round_that_ended_meanwhile_are_not_judged_by_the_next_model(tmp_path: Path) -> None:
    f = federation(bound=AUTO)
    log = applied_log(f, model_digest(SCHEMA, OTHER))
    of_next = bounds_of(f.policy, SCHEMA, FIRST, FIRST)
    m = replace(manifest(federation()), model=model_digest(SCHEMA, FIRST), bounds=of_next)

    async def go(follower: Follower, _: Peers, __: SiloNode) -> None:
        async def ends() -> None:
            async with follower._turn:
                follower._log.records[:] = log.records

        await follower._turn.acquire()
        waiting = [asyncio.ensure_future(work) for work in (follower.check_bounds(m), ends())]
        await asyncio.sleep(0)  # both are in the queue: the round ends between the model and the bounds
        follower._turn.release()
        judged, none = await asyncio.gather(*waiting, return_exceptions=True)
        assert none is None
        assert isinstance(judged, PeerFault)
        assert judged.reason is Reason.WRONG_MODEL

    followed(tmp_path, RoundLog(f, log.records[:1]), go, GetModel=[model(FIRST)])
