"""Faults, with the blame in the type.

A ``LocalFault`` is ours to mend (a NaN in our model, a policy that cannot hold); a ``PeerFault`` is what somebody
sent us. Both carry a member of one closed enumeration, so that the gRPC status, the log field and the metric label
can be derived from the same word, and details by name, so that nobody parses a sentence.
"""

from enum import StrEnum


class Reason(StrEnum):
    """Why something was refused. Closed: a new reason is added here or it does not exist."""

    # Ours.
    PLAN_INFEASIBLE = "plan_infeasible"
    BAD_BOUND = "bad_bound"
    BAD_WEIGHT = "bad_weight"
    NOT_FINITE = "not_finite"
    UNSUPPORTED_DTYPE = "unsupported_dtype"
    SHAPE_MISMATCH = "shape_mismatch"
    # A peer's.
    WRONG_LENGTH = "wrong_length"
    RESIDUE_RANGE = "residue_range"
    TRAILING_BITS = "trailing_bits"
    SEAL_BROKEN = "seal_broken"
    OUT_OF_RANGE = "out_of_range"
    SHARE_MISSING = "share_missing"
    SHARE_MISMATCH = "share_mismatch"


Detail = str | int | float


class Fault(Exception):
    """A refusal: the reason, a sentence for a person, and the details by name for a program."""

    def __init__(self, reason: Reason, message: str, **details: Detail) -> None:
        """Details are sizes, names and positions, never payloads: a fault is logged."""
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} [{self.reason}]"


class LocalFault(Fault):
    """Our own input or configuration is at fault, and nothing has been sent."""


class PeerFault(Fault):
    """What a peer sent is at fault, and nothing of it has been kept."""
