"""What an aggregator hears in a tamper check: each member speaks for itself, and a defence comes whole and in turn."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.core.protocol.federations import federation, manifest
from tests.nodes.federations import make
from tests.nodes.leads import OneLine, leading, refused

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.tamper import SHARE_BYTES, EquationKind, rhos
from silomix.runtime.core.protocol import aggregator as core
from silomix.runtime.core.protocol.check.blame import Defence
from silomix.runtime.core.protocol.check.said import Statement, Toss
from silomix.runtime.core.protocol.check.trapped import TrapProof
from silomix.runtime.core.protocol.identity import SIGNATURE_BYTES
from silomix.runtime.core.protocol.rules import layout
from silomix.runtime.net.check.said import write_defence, write_proof, write_statement, write_toss
from silomix.runtime.net.limits import SMALL_BYTES
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.v1 import body_pb2, services_pb2

SIGNED = bytes(SIGNATURE_BYTES)
MANIFEST = manifest(federation())
SHAPE = layout(MANIFEST)


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checked") / "f"
    make(directory, 3, 2, insecure=True, level=Level.MALICIOUS)
    return directory / "aggregator"


def statement(node: AggregatorNode, name: str) -> services_pb2.SayRequest:
    scalars = (tuple((0,) * count for count in rhos(node.federation.plan)),)
    return services_pb2.SayRequest(statement=write_statement(Statement(name, bytes(32), bytes(32), scalars, SIGNED)))


def toss(name: str) -> services_pb2.SayRequest:
    return services_pb2.SayRequest(toss=write_toss(Toss(name, bytes(SHARE_BYTES), bytes(32), SIGNED)))


async def test_a_silo_speaks_for_itself_alone_and_says_something(checked: Path) -> None:
    for_another = (Reason.UNKNOWN_PEER, "silo-01 speaks for silo-02")
    async with leading(checked) as node:
        assert await refused(node, "Say", "silo-01", toss("silo-02")) == for_another
        assert await refused(node, "Say", "silo-01", statement(node, "silo-02")) == for_another
        nothing = (Reason.MALFORMED, "silo-01 called and said nothing")
        assert await refused(node, "Say", "silo-01", services_pb2.SayRequest()) == nothing


def proof(name: str) -> services_pb2.ProveResponse:
    return services_pb2.ProveResponse(proof=write_proof(TrapProof(name, bytes(32), b"proofs", SIGNED)))


def defence(name: str, root: bytes = b"") -> Defence:
    return Defence(name, bytes(32), EquationKind.TRAP, "silo-01", bytes(32), root, SIGNED)


async def test_a_hop_proves_for_itself_alone_and_says_something(checked: Path) -> None:
    async with leading(checked) as node:
        hears = node.checking._proved
        said = hears("shuffler-1", proof("shuffler-1"))
        assert isinstance(said, core.ProofIn)
        own = services_pb2.ProveResponse(defence=write_defence(defence("shuffler-1")))
        assert isinstance(hears("shuffler-1", own), core.DefenceIn)
        other = services_pb2.ProveResponse(defence=write_defence(defence("shuffler-2")))
        for answer in (proof("shuffler-2"), other):
            with pytest.raises(PeerFault, match="shuffler-1 speaks for shuffler-2") as caught:
                hears("shuffler-1", answer)
            assert caught.value.reason is Reason.UNKNOWN_PEER
        with pytest.raises(PeerFault, match="shuffler-1 was asked for proofs, and said nothing") as caught:
            hears("shuffler-1", services_pb2.ProveResponse())
        assert caught.value.reason is Reason.MALFORMED


# Defences


def opening(root: bytes = bytes(32)) -> services_pb2.DefencePart:
    return services_pb2.DefencePart(defence=write_defence(defence("shuffler-1", root)))


def chunk(index: int, length: int | None = None) -> services_pb2.DefencePart:
    at = index if length is None else length
    part = SHAPE.part(SHAPE.body(), at)
    part[0] = 1
    planes = [bytes(plane) for plane in SHAPE.planes(part.data, at)]
    return services_pb2.DefencePart(chunk=body_pb2.Chunk(index=index, planes=planes))


CHUNKS = [chunk(index) for index in range(SHAPE.chunks)]
OUT_OF_TURN, EARLY = "a part of a defence out of turn", "a defence that ended early"


async def listened(home: Path, *parts: services_pb2.DefencePart) -> tuple[Defence, Bytes | None]:
    async with leading(home) as node:
        line = cast("Any", OneLine(parts))
        return await node.checking._defence(services_pb2.DefendRequest(), MANIFEST, line)


async def test_a_defence_comes_with_the_vector_that_it_names_and_else_with_none(checked: Path) -> None:
    assert SHAPE.chunks == 2
    said, vector = await listened(checked, opening(), *CHUNKS)
    assert said == defence("shuffler-1", bytes(32))
    assert vector is not None
    assert [SHAPE.part(vector, index)[0] for index in range(SHAPE.chunks)] == [1, 1]
    said, vector = await listened(checked, opening(b""))
    assert said == defence("shuffler-1")
    assert vector is None


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], EARLY),
        ([opening()], EARLY),
        ([opening(), *CHUNKS[:-1]], EARLY),
        ([opening(b""), CHUNKS[0]], EARLY),
        ([CHUNKS[0]], OUT_OF_TURN),
        ([opening(), opening()], OUT_OF_TURN),
        ([opening(), CHUNKS[1]], OUT_OF_TURN),
        ([opening(), CHUNKS[0], CHUNKS[0]], OUT_OF_TURN),
        ([opening(), *CHUNKS, chunk(SHAPE.chunks, 0)], OUT_OF_TURN),
        ([opening(), services_pb2.DefencePart()], OUT_OF_TURN),
    ],
    ids=["nothing", "no vector", "half", "one too many", "headless", "twice", "gap", "again", "longer", "empty"],
)
async def test_a_defence_comes_in_turn_and_whole(
    checked: Path, parts: list[services_pb2.DefencePart], why: str
) -> None:
    with pytest.raises(PeerFault, match=why) as caught:
        await listened(checked, *parts)
    assert caught.value.reason is Reason.WRONG_SEQUENCE


async def test_a_part_of_a_defence_may_be_as_long_as_a_chunk_or_a_key_and_no_longer(checked: Path) -> None:
    async with leading(checked) as node:
        for plane in (1, 10 * SMALL_BYTES):
            node.limits = replace(node.limits, plane_bytes=(plane,))
            line = OneLine([opening(b"")])
            await node.checking._defence(services_pb2.DefendRequest(), MANIFEST, cast("Any", line))
            assert line.limits == [max(SMALL_BYTES, node.limits.chunk)]
            assert (node.limits.chunk > SMALL_BYTES) is (plane > 1)
