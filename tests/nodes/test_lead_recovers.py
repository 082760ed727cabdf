"""What an aggregator that begins takes from others: records that it can check, and the very model that is on record."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.nodes.federations import until
from tests.nodes.leads import ROUNDS, OneLine, answers, call_of, leading, refused

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol import aggregator as core
from silomix.runtime.core.protocol.hearing import MOST_MISSED, Life, Shown, life_after, number_of
from silomix.runtime.core.protocol.roundlog import Outcome, Record, RoundLog
from silomix.runtime.net.history import read_shown, write_record
from silomix.runtime.net.limits import PART_BYTES
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.runtime.nodes.lead import recovery as module
from silomix.runtime.nodes.lead.recovery import Want
from silomix.runtime.nodes.lead.service import Service
from silomix.runtime.store.modelfile import model_digest, read_model, write_model
from silomix.v1 import services_pb2

# What hops show


def shown(
    life: bytes, records: Sequence[Record], total: int, signature: bytes = bytes(64)
) -> services_pb2.ShowResponse:
    shows = [write_record(record) for record in records]
    return services_pb2.ShowResponse(life=life, total=total, records=shows, signature=signature)


@asynccontextmanager
async def asking(home: Path) -> AsyncIterator[AggregatorNode]:
    """A process that has a life, and asks the hops."""
    async with leading(home) as node:
        await node.step(core.Awake(node.clock()))
        yield node


async def told(
    node: AggregatorNode, monkeypatch: pytest.MonkeyPatch, line: OneLine | Callable[[str], OneLine]
) -> Shown:
    """Have a hop show what it knows, and return what the machine would hear."""
    found: list[Shown] = []

    async def hear(hop: str, what: Shown) -> None:
        found.append(what)

    monkeypatch.setattr(node.recovery, "_hear", hear)
    monkeypatch.setattr(node, "line", (lambda _: line) if isinstance(line, OneLine) else line)
    await node.recovery.show("shuffler-1")
    (one,) = found
    return one


async def test_a_hop_is_asked_from_the_newest_record_on_that_is_here_and_is_heard(
    led: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(led) as node:
        records = node.core.log.records
        line = OneLine([shown(node.core.life, records[-1:], ROUNDS + 1)])
        monkeypatch.setattr(node, "line", lambda _: line)
        await node.recovery.show("shuffler-1")
        assert [request.start for request in line.asked] == [ROUNDS]
        assert node.core.heard["shuffler-1"].records == tuple(records[-1:])


async def test_what_a_hop_shows_is_not_read_on_the_event_loop(led: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hop can make it as long as records may be: that took seconds of a large federation's aggregator."""
    read: list[bool] = []

    def note(*about: Any) -> Shown:
        read.append(threading.current_thread() is threading.main_thread())
        return read_shown(*about)

    monkeypatch.setattr(module, "read_shown", note)
    async with asking(led) as node:
        records = node.core.log.records
        await told(node, monkeypatch, OneLine([shown(node.core.life, records[-1:], ROUNDS + 1)]))
    assert read == [False]


async def test_a_hop_is_asked_page_by_page_and_no_longer_than_it_has_any(
    led: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(led) as node:
        records = tuple(node.core.log.records)
        node.core.log = RoundLog(node.federation, epochs=node.config.epochs)  # an emptied disk
        life = node.core.life
        line = OneLine([shown(life, records[:2], 3), shown(life, records[2:], 3)])
        assert (await told(node, monkeypatch, line)).records == records
        assert [request.start for request in line.asked] == [0, 2]


async def test_a_hop_that_shows_more_records_than_there_are_rounds_is_not_listened_to(
    led: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could go on for ever."""
    async with asking(led) as node:
        records = tuple(node.core.log.records)
        node.core.log = RoundLog(node.federation, epochs=node.config.epochs)
        line = OneLine([shown(node.core.life, [one], 1 << 40) for one in (*records, *records)])
        with pytest.raises(PeerFault, match="shuffler-1 shows more records than there can be") as caught:
            await told(node, monkeypatch, line)
        assert caught.value.reason is Reason.WRONG_LENGTH
        assert len(line.asked) == ROUNDS + 2


async def test_a_hop_that_shows_an_earlier_process_than_the_one_that_asks_is_refused(
    led: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would be heard of it, and it would be asked again at once and for ever. A later process is heard of."""
    async with asking(led) as node:
        records, life = node.core.log.records[-1:], node.core.life
        earlier = OneLine([shown(life_after(number_of(life) - 2, bytes), records, ROUNDS + 1)])
        with pytest.raises(PeerFault, match="an earlier process") as caught:
            await told(node, monkeypatch, earlier)
        assert caught.value.reason is Reason.MALFORMED
        later = life_after(number_of(life), bytes)
        assert (await told(node, monkeypatch, OneLine([shown(later, records, ROUNDS + 1)]))).life == later


async def test_a_later_process_that_a_hop_makes_up_is_not_believed_and_the_others_are_heard(
    led: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is never on the disk; the other hop is asked on behalf of the same process, with its signature."""
    async with asking(led) as node:
        life, records = node.core.life, node.core.log.records[-1:]
        lines = {
            "shuffler-1": OneLine([shown(life_after(number_of(life) + MOST_MISSED - 1, bytes), records, ROUNDS + 1)]),
            "shuffler-2": OneLine([shown(life, records, ROUNDS + 1)]),
        }
        monkeypatch.setattr(node, "line", lambda hop: lines[hop])
        with pytest.raises(PeerFault, match=r"shuffler-1 shows a later process .* not signed") as caught:
            await node.recovery.show("shuffler-1")
        assert caught.value.reason is Reason.BAD_SIGNATURE
        await node.recovery.show("shuffler-2")
        assert set(node.core.heard) == {"shuffler-2"}
        assert [(value, node.core.life) for _, _, value in node.journal.facts("lived")] == [(life, life)]
        (asked,) = lines["shuffler-2"].asked
        Life(node.federation.aggregator.name, asked.life, asked.signature).check(node.federation)


async def test_each_question_to_a_hop_goes_over_the_line_that_there_is_by_then(
    led: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hop that changes its certificate meanwhile has its old line closed: nothing can be asked over that any more."""
    async with asking(led) as node:
        records = tuple(node.core.log.records)
        node.core.log = RoundLog(node.federation, epochs=node.config.epochs)
        lines = [OneLine([shown(node.core.life, [one], len(records))]) for one in records]
        left = iter(lines)
        assert (await told(node, monkeypatch, lambda _: next(left))).records == records
        assert [len(one.asked) for one in lines] == [1] * len(records)


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        (lambda record: replace(record, signature=bytes(64)), Reason.BAD_SIGNATURE),
        (lambda record: replace(record, round=record.round + 1), Reason.WRONG_HEAD),
        (lambda record: replace(record, countersignatures=record.countersignatures * 9), Reason.WRONG_LENGTH),
    ],
    ids=["made up", "out of order", "with more signatures than there are hops"],
)
async def test_a_hop_is_asked_for_no_more_once_it_has_shown_what_cannot_be(
    led: Path, monkeypatch: pytest.MonkeyPatch, spoilt: Callable[[Record], Record], reason: Reason
) -> None:
    """Each answer may be as long as records can be, and there may be as many answers as rounds."""
    async with asking(led) as node:
        records = node.core.log.records
        node.core.log = RoundLog(node.federation, epochs=node.config.epochs)
        pages = [[records[0]], [spoilt(records[1])], [records[2]]]
        line = OneLine([shown(node.core.life, page, ROUNDS + 1) for page in pages])
        with pytest.raises(PeerFault) as caught:
            await told(node, monkeypatch, line)
        assert caught.value.reason is reason
        assert len(line.asked) == 2


async def test_what_comes_after_the_end_of_this_epoch_is_not_asked_for(
    led: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(led) as node:
        records = node.core.log.records
        last = replace(records[1], next=node.federation.digest).signed(node.identity)
        node.core.log = RoundLog(node.federation, epochs=node.config.epochs)
        line = OneLine([shown(node.core.life, [records[0], last, records[2]], 1 << 40)])
        assert [one.round for one in (await told(node, monkeypatch, line)).records] == [0, 1]
        assert len(line.asked) == 1


# What the disk lacks


async def test_the_state_of_the_server_is_looked_for_under_the_last_round_that_was_applied(led: Path) -> None:
    async with leading(led) as node:
        log = node.core.log
        assert node.recovery.lacking() == []
        last = log.records[-1]
        abandoned = replace(
            last,
            round=last.round + 1,
            outcome=Outcome.ABANDONED,
            model_before=last.model_after,
            state_before=last.state_after,
        )
        node.core.log = RoundLog(node.federation, [*log.records, abandoned], epochs=node.config.epochs)
        assert node.recovery.lacking() == []
        node.config.state.moments(last.model_after, last.round).unlink()
        assert [(want.state, want.digest) for want in node.recovery.lacking()] == [(True, last.state_after)]


# What silos give


@pytest.fixture
def want(led: Path, tmp_path: Path) -> Want:
    """The model to begin with, as if it were on record and lost."""
    schema, tensors = read_model((led / "initial.safetensors").read_bytes())
    digest = model_digest(schema, tensors)
    return Want(digest, False, digest, schema, tmp_path / "back.safetensors")


def test_what_is_on_record_is_taken_and_nothing_else(led: Path, want: Want) -> None:
    data = (led / "initial.safetensors").read_bytes()
    schema, tensors = read_model(data)
    want.check(data)
    with pytest.raises(PeerFault, match="what came is no model") as caught:
        want.check(b"no model")
    assert caught.value.reason is Reason.MALFORMED
    changed = write_model(schema, {name: value + np.float32(1) for name, value in tensors.items()})
    with pytest.raises(PeerFault, match="what came is not what is on record") as caught:
        want.check(changed)
    assert caught.value.reason is Reason.WRONG_MODEL
    other = replace(schema, tensors=schema.tensors[:1])
    with pytest.raises(PeerFault, match="what came is not what is on record"):
        replace(want, schema=other).check(data)  # nobody can train that


def test_a_file_counts_as_there_only_if_it_is_whole(led: Path, want: Want, tmp_path: Path) -> None:
    data = (led / "initial.safetensors").read_bytes()
    assert want.is_here(led / "initial.safetensors")
    assert not want.is_here(tmp_path / "nothing")
    (tmp_path / "half").write_bytes(data[: len(data) // 2])
    assert not want.is_here(tmp_path / "half")


def part(data: bytes, model: bytes = b"", *, state: bool = False) -> services_pb2.GivenPart:
    what = services_pb2.Wanted(model_digest=model, state=state) if model else None
    return services_pb2.GivenPart(what=what, data=data)


async def test_a_silo_gives_back_what_is_wanted_in_parts_and_it_is_on_the_disk(led: Path, want: Want) -> None:
    data = (led / "initial.safetensors").read_bytes()
    async with leading(led) as node:
        node.recovery.want = want
        assert len(await answers(node, "GiveModel", "silo-01", part(data[:99], want.model), part(data[99:]))) == 1
        assert want.path.read_bytes() == data
        assert node.recovery._given.is_set()


async def test_what_nobody_wants_is_refused_before_any_of_it_is_kept(led: Path, want: Want) -> None:
    """Another silo may have been faster: that is nobody's fault, and no silo comes after others for it."""
    data = (led / "initial.safetensors").read_bytes()
    not_wanted = (Reason.WRONG_MODEL, "that is not wanted, or not any more")
    async with leading(led) as node:
        assert await refused(node, "GiveModel", "silo-01", part(data, want.model)) == not_wanted
        node.recovery.want = want
        assert await refused(node, "GiveModel", "silo-01", part(data, bytes(32))) == not_wanted
        assert await refused(node, "GiveModel", "silo-01", part(data, want.model, state=True)) == not_wanted
        assert not want.path.exists()
        assert not node.recovery._given.is_set()
        assert len(await answers(node, "GiveModel", "silo-01", part(data, want.model))) == 1


USELESS: dict[str, tuple[Callable[[bytes, bytes], list[services_pb2.GivenPart]], Reason]] = {
    "a digest that is none": (lambda data, model: [part(data, model[:-1])], Reason.WRONG_LENGTH),
    "nothing at all": (lambda data, model: [], Reason.WRONG_SEQUENCE),
    "two beginnings": (lambda data, model: [part(data[:99], model), part(data[99:], model)], Reason.WRONG_SEQUENCE),
    "a half": (lambda data, model: [part(data[:99], model)], Reason.MALFORMED),
    "a beginning with nothing in it": (lambda data, model: [part(b"", model), part(data)], Reason.WRONG_LENGTH),
    "a part with nothing in it": (lambda data, model: [part(data, model), part(b"")], Reason.WRONG_LENGTH),
}


@pytest.mark.parametrize("case", USELESS)
async def test_who_gives_something_else_is_refused_and_comes_after_the_others(led: Path, want: Want, case: str) -> None:
    data = (led / "initial.safetensors").read_bytes()
    given, reason = USELESS[case]
    async with leading(led) as node:
        node.recovery.want = want
        assert (await refused(node, "GiveModel", "silo-01", *given(data, want.model)))[0] is reason
        assert not want.path.exists()
        assert not node.recovery._given.is_set()
        assert (await refused(node, "GiveModel", "silo-01", part(data, want.model)))[0] is Reason.BUSY
        assert len(await answers(node, "GiveModel", "silo-02", part(data, want.model))) == 1
        assert want.path.read_bytes() == data


async def test_a_silo_that_drips_is_cut_off(led: Path, want: Want, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its parts comes in time, and there is no end to them."""
    monkeypatch.setattr(module, "SLOWEST_BYTES_S", want.most / 0.2)
    monkeypatch.setattr(module, "FRAME_S", 0.1)

    async def drips(*_: object) -> services_pb2.GivenPart:
        await asyncio.sleep(0.01)
        return part(b"x")

    async with leading(led) as node:
        node.recovery.want = want
        call, _ = call_of("silo-01", part(b"x", want.model))
        first = await node.recovery._part(call)
        parts = iter([first])

        async def next_part(of: object) -> services_pb2.GivenPart | None:
            return next(parts, None) or await drips()

        monkeypatch.setattr(node.recovery, "_part", next_part)
        with pytest.raises(PeerFault) as caught:
            await asyncio.wait_for(node.recovery.take(call), 10)
        assert caught.value.reason is Reason.TOO_SLOW
        assert (await refused(node, "GiveModel", "silo-01", part(b"x", want.model)))[0] is Reason.BUSY


async def test_what_is_lost_is_asked_for_until_it_is_here(
    led: Path, want: Want, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line may break, and whoever gave something useless may have something better by then."""
    monkeypatch.setattr(module, "SAY_S", 0.01)
    data, told = (led / "initial.safetensors").read_bytes(), list[services_pb2.Announcement]()
    async with leading(led) as node:

        async def tell(what: services_pb2.Announcement) -> None:
            told.append(what)

        monkeypatch.setattr(node, "tell", tell)
        getting = asyncio.ensure_future(node.recovery._get(want))
        await until(lambda: told, "it is asked for")
        assert (await refused(node, "GiveModel", "silo-01", part(b"no model", want.model)))[0] is Reason.MALFORMED
        more = len(told) + 2
        await until(lambda: len(told) >= more, "it is asked for again")
        assert {one.wanted.model_digest for one in told} == {want.model}
        assert len(await answers(node, "GiveModel", "silo-01", part(data, want.model))) == 1
        await asyncio.wait_for(getting, 10)
        assert want.path.read_bytes() == data


async def test_one_silo_that_gives_nothing_keeps_no_other_away(led: Path) -> None:
    async with leading(led) as node:
        room = Service(node).methods["GiveModel"].room
        with room.place("silo-01"), pytest.raises(PeerFault) as caught, room.place("silo-01"):
            pass
        assert caught.value.reason is Reason.BUSY
        with room.place("silo-01"), room.place("silo-02"), pytest.raises(PeerFault) as caught, room.place("silo-03"):
            pass
        assert caught.value.reason is Reason.BUSY


def parts(data: bytes, model: bytes) -> list[services_pb2.GivenPart]:
    """A whole file, as a silo gives it."""
    return [
        part(data[start : start + PART_BYTES], b"" if start else model) for start in range(0, len(data), PART_BYTES)
    ]


async def test_no_more_is_held_than_the_model_can_be_long(led: Path, want: Want) -> None:
    async with leading(led) as node:
        node.recovery.want = want
        longest, longer = (parts(bytes(length), want.model) for length in (want.most, want.most + 1))
        assert (await refused(node, "GiveModel", "silo-01", *longest))[0] is Reason.MALFORMED
        found = await refused(node, "GiveModel", "silo-02", *longer)
        assert found == (Reason.WRONG_LENGTH, f"the model is longer than {want.most} bytes")
