"""What each reason for a refusal becomes on the wire: a gRPC status, and whether whoever was refused may try again.

Every reason stands here, and a test holds the table to the enumeration. The status's message starts with the reason, so
a `PeerFault` raised on one side is the same `PeerFault` on the other.
"""

from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from silomix.runtime.core.errors import Fault, PeerFault, Reason
from silomix.runtime.core.protocol.messages import Accusation
from silomix.runtime.core.values import printable
from silomix.runtime.net.limits import TEXT_BYTES
from silomix.runtime.net.version import SAID
from silomix.runtime.net.wire import read_evidence, write_evidence
from silomix.v1 import body_pb2

ABOUT = "silomix-about"
"""Metadata of a refusal: the member whose fault it is."""

EVIDENCE = "silomix-evidence-bin"
"""Metadata of a refusal: the proof that a silo sealed garbage."""

_BAD = grpc.StatusCode.INVALID_ARGUMENT
_DENIED = grpc.StatusCode.PERMISSION_DENIED
_STATE = grpc.StatusCode.FAILED_PRECONDITION
_EXISTS = grpc.StatusCode.ALREADY_EXISTS


@dataclass(frozen=True)
class Answer:
    """The status that carries a reason, and whether the same call may succeed later."""

    status: grpc.StatusCode
    again: bool = False


ANSWERS: dict[Reason, Answer] = {
    # Ours to mend: these seldom leave a node.
    Reason.PLAN_INFEASIBLE: Answer(_STATE),
    Reason.BAD_BOUND: Answer(_STATE),
    Reason.BAD_WEIGHT: Answer(_STATE),
    Reason.NOT_FINITE: Answer(_STATE),
    Reason.UNSUPPORTED_DTYPE: Answer(_STATE),
    Reason.SHAPE_MISMATCH: Answer(_STATE),
    # A manifest that a node does not accept.
    Reason.MALFORMED: Answer(_BAD),
    Reason.WRONG_PROTOCOL: Answer(_STATE),
    Reason.WRONG_FEDERATION: Answer(_STATE),
    Reason.WRONG_EPOCH: Answer(_STATE),
    Reason.WRONG_ROUND: Answer(_STATE),
    Reason.WRONG_ATTEMPT: Answer(_STATE),
    Reason.WRONG_MANIFEST: Answer(_STATE),
    Reason.WRONG_MODEL: Answer(_STATE),
    Reason.WRONG_SCHEMA: Answer(_STATE),
    Reason.WRONG_PLAN: Answer(_STATE),
    Reason.WRONG_POLICY: Answer(_STATE),
    Reason.WRONG_CHAIN: Answer(_STATE),
    Reason.WRONG_KEYS: Answer(_STATE),
    Reason.FENCE_MISSING: Answer(_STATE),
    # The history, and the release.
    Reason.WRONG_HEAD: Answer(_STATE),
    Reason.FORKED: Answer(_STATE),
    Reason.FENCED: Answer(_STATE),
    Reason.WRONG_PAD: Answer(_STATE),
    Reason.WRONG_STEP: Answer(_STATE),
    Reason.SUPERSEDED: Answer(_STATE),
    # A peer, or a cohort of them.
    Reason.UNKNOWN_PEER: Answer(_DENIED),
    Reason.NOT_INVITED: Answer(_DENIED),
    Reason.BAD_SIGNATURE: Answer(grpc.StatusCode.UNAUTHENTICATED),
    Reason.COHORT_TOO_SMALL: Answer(_STATE),
    Reason.COHORT_CLOSED: Answer(_STATE),
    Reason.COHORT_STEP: Answer(_STATE),
    Reason.ALREADY_RELEASED: Answer(_EXISTS),
    Reason.BUSY: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, again=True),
    Reason.TOO_SLOW: Answer(grpc.StatusCode.ABORTED, again=True),
    # A body.
    Reason.BODY_CONFLICT: Answer(_EXISTS),
    Reason.WRONG_SEQUENCE: Answer(_BAD),
    Reason.WRONG_LENGTH: Answer(_BAD),
    Reason.ROOT_MISMATCH: Answer(grpc.StatusCode.DATA_LOSS),
    Reason.RESIDUE_RANGE: Answer(_BAD),
    Reason.TRAILING_BITS: Answer(_BAD),
    Reason.SEAL_BROKEN: Answer(_STATE),
    Reason.FALSE_EVIDENCE: Answer(_BAD),
    Reason.OUT_OF_RANGE: Answer(_BAD),
    # The tamper check.
    Reason.SHARE_MISSING: Answer(_STATE),
    Reason.SHARE_MISMATCH: Answer(_STATE),
    Reason.TAMPERED: Answer(_STATE),
}


async def refuse(context: grpc.aio.ServicerContext[Any, Any], fault: Fault) -> None:
    """End a call with a fault's reason and sentence, the protocol's number, whose fault it is, and any evidence."""
    peer = str(fault.details.get("peer", ""))
    trailing: list[tuple[str, str | bytes]] = [*SAID]
    if peer and peer.isascii() and peer.isprintable():
        trailing.append((ABOUT, _cut(peer)))
    if isinstance(fault, Accusation):
        trailing.append((EVIDENCE, write_evidence(fault.evidence).SerializeToString()))
    await context.abort(ANSWERS[fault.reason].status, f"{fault.reason}: {_cut(fault.message)}", tuple(trailing))


def fault_of(error: grpc.aio.AioRpcError) -> PeerFault | None:
    """Return the peer's reason for a failed call, or nothing if the call failed for want of a connection or time.

    All of it is the peer's word: what cannot be read is passed over, and nothing is longer than a sentence.
    """
    reason, _, message = (error.details() or "").partition(": ")
    trailing = dict(error.trailing_metadata() or ())
    about, evidence = trailing.get(ABOUT), trailing.get(EVIDENCE)
    if reason == Reason.SEAL_BROKEN and isinstance(evidence, bytes):
        try:
            return Accusation(read_evidence(body_pb2.Evidence.FromString(evidence)))
        except (DecodeError, PeerFault):
            return PeerFault(Reason.FALSE_EVIDENCE, "what came as evidence cannot be read")
    try:
        found = Reason(reason)
    except ValueError:
        return None
    return PeerFault(found, _cut(message), **({"peer": _cut(str(about))} if about else {}))


def words_of(error: grpc.aio.AioRpcError) -> str:
    """Return how a peer says that a call failed, fit to be shown."""
    return _cut(error.details() or "")


def _cut(text: str) -> str:
    """Cut a sentence to its length in bytes, and leave one line of it that steers no terminal: a peer may write it."""
    return printable(text[:TEXT_BYTES]).encode(errors="replace")[:TEXT_BYTES].decode(errors="ignore")


def transient(error: grpc.aio.AioRpcError) -> bool:
    """Whether to call again: the peer was busy, or not there, or not fast enough, and refused nothing."""
    fault = fault_of(error)
    if fault is not None:
        return ANSWERS[fault.reason].again
    return error.code() in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    )
