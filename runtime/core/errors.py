"""Faults, with the blame in the type.

A ``LocalFault`` is ours to mend (a NaN in our model, a policy that cannot hold); a ``PeerFault`` is what somebody
sent us. Both carry a member of one closed enumeration, so that the gRPC status, the log field and the metric label
can be derived from the same word, and details by name, so that nobody parses a sentence.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum


class Reason(StrEnum):
    """Why something was refused. Closed: a new reason is added here or it does not exist."""

    # Ours to mend.
    PLAN_INFEASIBLE = "plan_infeasible"
    BAD_BOUND = "bad_bound"
    BAD_WEIGHT = "bad_weight"
    NOT_FINITE = "not_finite"
    UNSUPPORTED_DTYPE = "unsupported_dtype"
    SHAPE_MISMATCH = "shape_mismatch"
    # A manifest that a node does not accept.
    MALFORMED = "malformed"
    WRONG_PROTOCOL = "wrong_protocol"
    WRONG_FEDERATION = "wrong_federation"
    WRONG_EPOCH = "wrong_epoch"
    WRONG_ROUND = "wrong_round"
    WRONG_ATTEMPT = "wrong_attempt"
    WRONG_MANIFEST = "wrong_manifest"
    WRONG_MODEL = "wrong_model"
    WRONG_SCHEMA = "wrong_schema"
    WRONG_PLAN = "wrong_plan"
    WRONG_POLICY = "wrong_policy"
    WRONG_CHAIN = "wrong_chain"
    WRONG_KEYS = "wrong_keys"
    FENCE_MISSING = "fence_missing"
    # The history, and the release.
    WRONG_HEAD = "wrong_head"
    FORKED = "forked"
    FENCED = "fenced"
    WRONG_PAD = "wrong_pad"
    WRONG_STEP = "wrong_step"
    SUPERSEDED = "superseded"
    # A peer, or a cohort of them.
    UNKNOWN_PEER = "unknown_peer"
    NOT_INVITED = "not_invited"
    BAD_SIGNATURE = "bad_signature"
    COHORT_TOO_SMALL = "cohort_too_small"
    COHORT_CLOSED = "cohort_closed"
    COHORT_STEP = "cohort_step"
    ALREADY_RELEASED = "already_released"
    BUSY = "busy"
    TOO_SLOW = "too_slow"
    # A body.
    BODY_CONFLICT = "body_conflict"
    WRONG_SEQUENCE = "wrong_sequence"
    WRONG_LENGTH = "wrong_length"
    ROOT_MISMATCH = "root_mismatch"
    RESIDUE_RANGE = "residue_range"
    TRAILING_BITS = "trailing_bits"
    SEAL_BROKEN = "seal_broken"
    FALSE_EVIDENCE = "false_evidence"
    OUT_OF_RANGE = "out_of_range"
    # The tamper check.
    SHARE_MISSING = "share_missing"
    SHARE_MISMATCH = "share_mismatch"
    TAMPERED = "tampered"


Detail = str | int | float
LONGEST, LONGEST_DETAIL = 1024, 128
"""Characters of a sentence about what a peer sent, and of a detail of it: names and digests have 64."""


class UserError(Exception):
    """Something that whoever started the program can mend: the command line shows the message and no traceback."""


def nearest(name: str, known: Iterable[str]) -> str:
    """End a sentence about a name that nothing has: with the one that was meant, if one is like it."""
    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else "."


class Passing(UserError):  # noqa: N818 - what it is
    """Trouble that may be over when the same thing is tried again: a busy port, a full disk, a file that is in use."""


class RunError(UserError):
    """The input was in order, and something failed while it ran: nothing is left of what was asked for."""


class Fault(Exception):  # noqa: N818 - whose fault it is, is the point
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

    def __init__(self, reason: Reason, message: str, **details: Detail) -> None:
        """Whatever is quoted here a peer may have written, and it is logged: a name can be as long as a message."""
        short = {key: value[:LONGEST_DETAIL] if isinstance(value, str) else value for key, value in details.items()}
        super().__init__(reason, message[:LONGEST], **short)
