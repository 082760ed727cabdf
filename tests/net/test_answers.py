"""What becomes of each reason on the wire: one table, which has them all, and says who may try again."""

import asyncio
from typing import Any

import grpc
import pytest
from tests.core.protocol.federations import evidence, federation, header, manifest

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol.messages import Accusation
from silomix.runtime.net.answers import ABOUT, ANSWERS, EVIDENCE, fault_of, refuse, transient, words_of
from silomix.runtime.net.limits import TEXT_BYTES

OURS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
}
"""Statuses by which a line fails: a refusal must not look like one of them, or it would be tried again for ever."""


class Ended(Exception):  # noqa: N818 - as grpc ends a call
    pass


class Context:
    """Enough of a call's context to be ended."""

    async def abort(self, code: grpc.StatusCode, details: str, trailing: tuple[Any, ...] = ()) -> None:
        self.error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)
        raise Ended


def over_the_wire(fault: PeerFault) -> grpc.aio.AioRpcError:
    """What a caller gets of a refusal."""
    context: Any = Context()
    with pytest.raises(Ended):
        asyncio.run(refuse(context, fault))
    error: grpc.aio.AioRpcError = context.error
    return error


def test_every_reason_has_an_answer_and_nothing_else_has() -> None:
    assert set(ANSWERS) == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_a_refusal_comes_back_as_what_it_was(reason: Reason) -> None:
    error = over_the_wire(PeerFault(reason, "because", peer="silo-1"))
    assert error.code() is ANSWERS[reason].status
    assert error.code() not in OURS
    fault = fault_of(error)
    assert fault is not None
    assert (fault.reason, fault.message, fault.details) == (reason, "because", {"peer": "silo-1"})
    assert transient(error) is ANSWERS[reason].again


def test_only_who_came_at_a_bad_moment_tries_again() -> None:
    assert [reason for reason, answer in ANSWERS.items() if answer.again] == [Reason.BUSY, Reason.TOO_SLOW]
    assert ANSWERS[Reason.BUSY].status is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("code", sorted(OURS - {grpc.StatusCode.OK}, key=str), ids=lambda code: code.name)
def test_a_line_that_fails_is_tried_again_and_is_no_refusal(code: grpc.StatusCode) -> None:
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "socket closed")
    assert fault_of(error) is None
    assert transient(error)


def test_evidence_travels_with_the_refusal() -> None:
    f = federation()
    m = manifest(f)
    shown = evidence(m, header(m, "silo-2"), "hop-2")
    fault = fault_of(over_the_wire(Accusation(shown)))
    assert isinstance(fault, Accusation)
    assert fault.evidence == shown
    assert fault.reason is Reason.SEAL_BROKEN


@pytest.mark.parametrize("garbage", [b"", b"\xff" * 40, b"\x0a\x01x"])
def test_evidence_that_cannot_be_read_is_false(garbage: bytes) -> None:
    trailing = grpc.aio.Metadata((EVIDENCE, garbage))
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.FAILED_PRECONDITION, grpc.aio.Metadata(), trailing, f"{Reason.SEAL_BROKEN}: it does not open"
    )
    fault = fault_of(error)
    assert fault is not None
    assert not isinstance(fault, Accusation)
    assert fault.reason is Reason.FALSE_EVIDENCE


def test_who_says_it_without_evidence_accuses_nobody() -> None:
    error = over_the_wire(PeerFault(Reason.SEAL_BROKEN, "silo-2 sealed garbage", peer="silo-2"))
    assert not isinstance(fault_of(error), Accusation)
    assert EVIDENCE not in dict(error.trailing_metadata() or ())


def test_a_peers_sentence_is_cut_to_its_length_in_bytes_both_ways() -> None:
    """Characters of four bytes each would make a status too long to be read by anybody."""
    for message in ("x" * 5000, "\N{LOBSTER}" * 5000, "\ud800" * 5000):
        error = over_the_wire(PeerFault(Reason.MALFORMED, message, peer="silo-1"))
        assert len((error.details() or "").encode()) <= TEXT_BYTES + len("malformed: ")
        trailing = grpc.aio.Metadata((ABOUT, message))
        sent = grpc.aio.AioRpcError(grpc.StatusCode.INVALID_ARGUMENT, grpc.aio.Metadata(), trailing, f"busy: {message}")
        fault = fault_of(sent)
        assert fault is not None
        assert max(len(fault.message.encode()), len(str(fault.details["peer"]).encode())) <= TEXT_BYTES


STEERING = "x\x1b]0;owned\x07\x1b[2J\n\r\x9b1m\u202eall is well\x7f"


def test_a_peers_sentence_steers_no_terminal_and_is_one_line_both_ways() -> None:
    sent = grpc.aio.AioRpcError(
        grpc.StatusCode.INVALID_ARGUMENT, grpc.aio.Metadata(), grpc.aio.Metadata((ABOUT, STEERING)), f"busy: {STEERING}"
    )
    fault = fault_of(sent)
    assert fault is not None
    told = over_the_wire(PeerFault(Reason.MALFORMED, STEERING))
    for text in (fault.message, str(fault.details["peer"]), told.details() or "", words_of(sent)):
        assert text.isprintable()
        assert "all is well" in text


@pytest.mark.parametrize("name", ["silo\n1", "s\N{LATIN SMALL LETTER I WITH ACUTE}lo", ""])
def test_a_name_that_gRPC_could_not_carry_is_left_out_of_a_refusal(name: str) -> None:  # noqa: N802 - its name
    error = over_the_wire(PeerFault(Reason.MALFORMED, "no", peer=name))
    assert ABOUT not in dict(error.trailing_metadata() or ())
