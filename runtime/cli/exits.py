"""How a command ends: a code for each kind of end, the same for all commands.

Whoever starts nodes needs to know whether it is worth starting them again. Trouble that may pass by itself has a code
of its own, the one that sysexits.h has for it; what only a person can mend has another. So has a fault of ours, which
Python would report as 1.
"""

from enum import IntEnum
from errno import EADDRINUSE, EAGAIN, EDQUOT, EMFILE, ENFILE, ENOSPC

from silomix.runtime.core.errors import Fault, Passing, PeerFault, Reason, RunError, UserError


class Exit(IntEnum):
    """What a code says. docs/operations.md has the same table."""

    DONE = 0
    NO = 1
    BAD_INPUT = 2
    FAULTY = 70
    TRY_AGAIN = 75
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANINGS = {
    Exit.DONE: "done",
    Exit.NO: "the answer is no, or something failed in the run",
    Exit.BAD_INPUT: "bad input: an option, a file, a key or a policy; the last line says what to change",
    Exit.FAULTY: "a fault in silomix itself; the traceback above says where",
    Exit.TRY_AGAIN: "temporary trouble, try again: a full disk, a busy port, nobody answers, another federation file",
    Exit.INTERRUPTED: "interrupted",
    Exit.BROKEN_PIPE: "the program reading the output went away",
}

LASTING = (Exit.NO, Exit.BAD_INPUT)
"""Ends that starting the same thing again would not change: whoever starts nodes leaves those alone."""

_ROOM = {ENOSPC, EDQUOT, EADDRINUSE, EAGAIN, EMFILE, ENFILE}
"""Errors of the operating system that are over once there is room again."""
_PEERS = {Reason.WRONG_FEDERATION, Reason.UNKNOWN_PEER, Reason.BUSY}
"""Refusals that are over once the other side has the same federation file, or time."""


def code_of(error: BaseException) -> Exit:
    """Return the code that a command ends with if it ends with this error."""
    match error:
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
        case BrokenPipeError():
            return Exit.BROKEN_PIPE
        case RunError():
            return Exit.NO
        case Passing():
            return Exit.TRY_AGAIN
        case PeerFault() if error.reason in _PEERS:
            return Exit.TRY_AGAIN
        case OSError() if error.errno in _ROOM:
            return Exit.TRY_AGAIN
        case Fault() | UserError() | OSError() | MemoryError():
            return Exit.BAD_INPUT
        case _:
            return Exit.FAULTY
