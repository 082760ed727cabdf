"""Replays at a live federation: every one is refused with a reason, none is counted, and the round is unharmed."""

import json
import random
from pathlib import Path

import pytest
from tests.nodes.federations import assert_model, make, manifest_at, run, until

from silomix.attacks.resend import METHODS, Call, Thief, _same, calls, sample, variants
from silomix.runtime.cli import main
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import NodeConfig, load_node
from silomix.runtime.local import InProcess
from silomix.runtime.nodes.shuffler import ShufflerNode
from silomix.v1 import manifest_pb2, services_pb2

EVERYWHERE = {Role.SHUFFLER: {"capture": "capture"}, Role.AGGREGATOR: {"capture": "capture"}}
NODES = ("aggregator", "shuffler-1", "shuffler-2", "silo-01", "silo-02", "silo-03")


def members(home: Path) -> dict[str, NodeConfig]:
    return {name: load_node(home / name) for name in NODES}


def captured(home: Path, round_over: int, federation: InProcess) -> list[Call]:
    """What was captured so far: the round is over, so the captures have all of it but what is still being written."""
    found: list[Call] = []
    for node in ("aggregator", "shuffler-1", "shuffler-2"):
        capture = federation.nodes[node].capture
        assert capture is not None
        capture.flush()
        found += calls(home / node / "capture")
    assert len([c for c in found if c.method == "Submit"]) >= 3 * round_over
    return found


async def test_every_replay_is_refused_and_the_rounds_go_on(tmp_path: Path) -> None:
    home = tmp_path / "f"
    federation = make(home, 3, 2, rounds=3, settings=EVERYWHERE, silo_options=lambda i: {"silo": i, "slow_s": 1.0})

    async with InProcess(home) as running:
        await manifest_at(running, round_=2)  # the first round is over, and its sum acknowledged
        found = captured(home, 1, running)
        whole = [c for c in found if c.answer is not None]
        outcomes = await Thief(members(home), {}).resend(sample(whole, 2))
        await running.finished()
    assert [(r.round, r.attempts, r.cohort) for r in running.aggregator.history] == [(1, 1, 3), (2, 1, 3), (3, 1, 3)]
    assert_model(running.aggregator.tensors, [range(3)] * 3, federation.policy)
    assert {o.method for o in outcomes} == set(METHODS)
    assert not [o for o in outcomes if o.finding], [o for o in outcomes if o.finding]
    assert not [o for o in outcomes if o.result == "unreachable"]
    refused = [o for o in outcomes if o.result == "refused"]
    assert len(refused) >= 30
    # The sum of the last round again is acknowledged as it was, whatever follows its first frame, and counts once.
    assert {o.method for o in outcomes if o.result == "known"} <= {"Prepare", "Open", "Relay", "Deliver"}
    reasons = {o.reason for o in refused if o.variant == "in another's name"}
    assert reasons <= {"unknown_peer", "wrong_chain", "wrong_manifest", "internal"}
    assert {o.reason for o in refused if o.method == "Submit" and o.variant == "again"} <= {
        "wrong_manifest",
        "internal",
    }


async def test_a_body_again_in_its_own_attempt_gets_the_receipt_that_it_has(tmp_path: Path) -> None:
    """The one answer that is no finding: a lost response makes an honest silo do just this. Counted once."""
    home = tmp_path / "f"
    federation = make(home, 4, 1, settings={Role.SHUFFLER: {"capture": "capture"}}, deadline_s=8)

    async with InProcess(home, without=("silo-04",)) as running:
        hop = running.nodes["shuffler-1"]
        assert isinstance(hop, ShufflerNode)
        await until(lambda: len(hop.core.attempt.counted) == 3 if hop.core.attempt else False, "three are in")
        assert hop.capture is not None
        hop.capture.flush()
        (call,) = [c for c in calls(home / "shuffler-1" / "capture") if c.sender == "silo-01" and c.method == "Submit"]
        outcomes = await Thief({n: load_node(home / n) for n in ("silo-01", "silo-02")}, {}).resend([call])
        await running.finished()
    by = {o.variant: o for o in outcomes}
    assert by["again"].result == "known"
    assert not [o for o in outcomes if o.finding], [o for o in outcomes if o.finding]
    assert by["in another's name"].reason in ("unknown_peer", "internal")
    assert_model(running.aggregator.tensors, [range(3)], federation.policy)


def test_variants_differ_from_the_call() -> None:
    call = Call("Submit", "silo-01", "shuffler-1", tuple(bytes([i]) * 50 for i in range(1, 7)), b"receipt")
    made = dict(variants(call, random.Random(1)))
    assert made.pop("again") == call.frames
    assert len(made) == 9
    assert all(frames != call.frames for frames in made.values())
    assert len(set(made.values())) == len(made)
    assert list(dict(variants(Call("Prepare", "a", "b", (b"x",), None), random.Random(1)))) == ["again"]
    assert list(dict(variants(Call("Open", "a", "b", (b"xyz",), None), random.Random(1)))) == [
        "again",
        "a byte changed",
    ]


def test_the_sample_has_the_oldest_and_the_newest() -> None:
    found = [Call("Submit", f"silo-{i}", "h", (b"x",), None) for i in range(9)] + [
        Call("Open", "a", "h", (b"y",), None)
    ]
    assert [c.sender for c in sample(found, 3)] == ["a", "silo-0", "silo-8", "silo-1"]


def test_an_accepted_replay_is_a_finding_and_the_exit_code_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control: if a hop did take a replay, the command would tell. The hop here has forgotten whom it knows."""
    home = tmp_path / "f"
    make(home, 3, 1, settings={Role.SHUFFLER: {"capture": "capture"}})

    async def first() -> None:
        async with InProcess(home) as running:
            await running.finished()

    run(first())

    async def fooled(*_: object) -> tuple[str, str]:
        return "accepted", "65 bytes of answer"

    monkeypatch.setattr(Thief, "_call", fooled)
    code = main(["attack", "resend", str(home / "shuffler-1" / "capture"), "--federation", str(home), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert code == 1
    assert said["findings"] == said["results"]["accepted"] == len(said["replays"]) > 0


def test_nobody_there_is_an_error_and_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "f"
    make(home, 3, 1, settings={Role.SHUFFLER: {"capture": "capture"}})

    async def first() -> None:
        async with InProcess(home) as running:
            await running.finished()

    run(first())
    capture = home / "shuffler-1" / "capture"
    assert main(["attack", "resend", str(capture), "--federation", str(home), "--calls", "1"]) == 2
    assert "no node could be reached" in capsys.readouterr().err
    assert main(["attack", "resend", str(capture), "--federation", str(tmp_path)]) == 2
    assert "silomix init" in capsys.readouterr().err


def test_an_empty_capture_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "f"
    make(home, 3, 1)
    assert main(["attack", "resend", str(tmp_path / "nothing"), "--federation", str(home)]) == 2
    assert "nothing" in capsys.readouterr().err


def test_the_same_keys_are_no_finding_and_new_ones_are() -> None:
    def response(key: bytes, released: int) -> bytes:
        keys = [manifest_pb2.RoundKey(hop="h", silo="s", round=1, public_key=key, last_released=released)]
        return services_pb2.PrepareResponse(keys=keys, last_released=released).SerializeToString()

    call = Call("Prepare", "aggregator", "h", (b"x",), response(b"k" * 32, 0))
    assert _same(call, response(b"k" * 32, 1))
    assert not _same(call, response(b"l" * 32, 0))
    assert not _same(call, b"")
