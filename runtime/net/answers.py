"""What each reason for a refusal becomes on the wire: a gRPC status, and whether whoever was refused may try again.

Every reason stands here, and a test holds the table to the enumeration.
"""

from dataclasses import dataclass

import grpc

from silomix.runtime.core.errors import Reason

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
    Reason.WRONG_FEDERATION: Answer(_STATE),
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
    # A peer, or a cohort of them.
    Reason.UNKNOWN_PEER: Answer(_DENIED),
    Reason.NOT_INVITED: Answer(_DENIED),
    Reason.BAD_SIGNATURE: Answer(grpc.StatusCode.UNAUTHENTICATED),
    Reason.COHORT_TOO_SMALL: Answer(_STATE),
    Reason.COHORT_CLOSED: Answer(_STATE),
    Reason.COHORT_STEP: Answer(_STATE),
    Reason.ALREADY_RELEASED: Answer(_EXISTS),
    Reason.BUSY: Answer(grpc.StatusCode.RESOURCE_EXHAUSTED, again=True),
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
