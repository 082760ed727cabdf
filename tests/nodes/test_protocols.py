"""Nodes of before and after do not mix: whoever meets another protocol says so, and says who has to be upgraded."""

from pathlib import Path
from typing import Any

import pytest
from tests.nodes.federations import make, manifest_at, peer, refusal, rejections, run, until

from silomix.runtime.config.load import load_node
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.local import InProcess, fetch_status
from silomix.runtime.net.answers import fault_of
from silomix.runtime.net.calls import Unseen
from silomix.runtime.net.health import has_attempt
from silomix.runtime.net.lines import Line, method
from silomix.runtime.net.meeting import OnlyPins, meet
from silomix.runtime.net.version import PROTOCOL, PROTOCOL_NAME, SAID, check_protocol, difference
from silomix.v1 import body_pb2, services_pb2

ANSWERS = ("silomix.runtime.net.calls.SAID", "silomix.runtime.net.answers.SAID")
"""What a node names when it answers, and when it refuses."""
WATCH = method("AggregatorService", "Watch")


def answering(named: tuple[tuple[str, str], ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every node that is called name another protocol, or none."""
    for where in ANSWERS:
        monkeypatch.setattr(where, named)


@pytest.mark.parametrize(
    ("word", "found", "do"),
    [
        ("1", "hop-1 speaks protocol 1, and silo-1 speaks protocol 4", "upgrade hop-1 to a silomix of protocol 4"),
        ("5", "hop-1 speaks protocol 5, and silo-1 speaks protocol 4", "upgrade silo-1 to a silomix of protocol 5"),
        *(
            (word, "names no protocol number, as nodes before 2 do", "upgrade hop-1 to a silomix of protocol 4")
            for word in ("", "0", "1.0", "two", "-3", "9" * 10, "\u0663")
        ),
    ],
)
def test_it_is_the_older_one_that_has_to_be_upgraded(word: str, found: str, do: str) -> None:
    assert PROTOCOL == 4, "these sentences are of protocol 4"
    said = difference(word, "hop-1", "silo-1")
    assert said is not None
    assert found in said[0]
    assert said[1] == do
    with pytest.raises(PeerFault) as caught:
        check_protocol(((PROTOCOL_NAME, word),), "hop-1")
    assert (caught.value.reason, caught.value.details["peer"]) == (Reason.WRONG_PROTOCOL, "hop-1")


def test_ones_own_number_is_in_order() -> None:
    assert difference(str(PROTOCOL), "hop-1") is None
    check_protocol(SAID, "hop-1")


def test_nobody_of_another_protocol_is_answered_or_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over gRPC and TLS, in both directions, at both kinds of node that are called; and never as another file."""
    home = tmp_path / "f"
    make(home, 4, 1, deadline_s=600)

    async def called(target: str, metadata: Any) -> PeerFault:
        async with peer(home, "silo-04", target) as caller:
            if target == "aggregator":
                asked = services_pb2.WatchRequest(federation_digest=bytes(32))  # another federation's, too
                error = await refusal(lambda: _first(caller.aggregator.Watch(asked, metadata=metadata)))
            else:
                frames = [body_pb2.Frame()]
                error = await refusal(lambda: caller.shuffler.Submit(frames, metadata=metadata))
        fault = fault_of(error)
        assert fault is not None
        return fault

    async def calls(target: str, asked: services_pb2.WatchRequest) -> PeerFault:
        async with peer(home, "silo-04", target) as caller:
            line = Line(caller.channel, target, caller.metadata, Unseen())
            with pytest.raises(PeerFault) as caught:
                async for _ in line.listen(WATCH, asked, services_pb2.Announcement, 1 << 20, 10.0):
                    pass
        return caught.value

    async def go() -> None:
        async with InProcess(home, without=("silo-04",)) as running:
            manifest = await manifest_at(running)
            for target in ("aggregator", "shuffler-1"):
                for metadata, older in (((), "silo-04"), (((PROTOCOL_NAME, "7"),), "the node that refuses it")):
                    fault = await called(target, metadata)
                    assert fault.reason is Reason.WRONG_PROTOCOL
                    assert f"upgrade {older} to" in fault.message
                assert rejections(running.nodes[target], Reason.WRONG_PROTOCOL) == 2

            known = services_pb2.WatchRequest(federation_digest=running.federation.digest)
            for answer, older in (((), "aggregator"), (((PROTOCOL_NAME, "7"),), "the node that refuses it")):
                answering(answer, monkeypatch)
                for asked in (known, services_pb2.WatchRequest(federation_digest=bytes(32))):
                    fault = await calls("aggregator", asked)  # its news, and its refusal for another reason
                    assert fault.reason is Reason.WRONG_PROTOCOL
                    assert f"upgrade {older} to" in fault.message
            # What people and probes ask is answered all the same.
            config = load_node(home / "silo-04")
            assert (await fetch_status(config)).protocol == PROTOCOL
            assert (await meet(config, "aggregator", running.aggregator.tls, OnlyPins(()), 10.0)).protocol == str(
                PROTOCOL
            )
            async with peer(home, "silo-04", "shuffler-1") as caller:
                assert not await has_attempt(caller.channel, manifest.digest, 10.0)
            monkeypatch.undo()

    run(go(), 60)


async def _first(answers: Any) -> Any:
    return await anext(aiter(answers))


def test_a_federation_waits_for_the_upgrade_and_then_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "f"
    make(home, 3, 1)
    silos = ("silo-01", "silo-02", "silo-03")

    async def go() -> None:
        answering((), monkeypatch)  # everybody who is called is of before
        async with InProcess(home, without=silos) as running:
            core = running.aggregator.core
            await until(lambda: "upgrade shuffler-1 to" in core.trouble.get("shuffler-1", ""), "a hop of before")
            assert not core.log.records  # nothing is signed before the hop was heard
            monkeypatch.undo()
            await until(lambda: core.phase == "collecting", "the hop of now")

            answering((), monkeypatch)
            for name in silos:
                running.start(name)
            nodes = [running.nodes[name] for name in silos]
            await until(lambda: all(rejections(n, Reason.WRONG_PROTOCOL) for n in nodes), "an aggregator of before")
            assert not any(running.tasks[name].done() for name in silos), "they wait"
            assert core.phase == "collecting"
            monkeypatch.undo()
            assert [done.cohort for done in await running.finished()] == [3]

    run(go(), 60)
