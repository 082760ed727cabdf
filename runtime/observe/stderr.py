"""What gRPC writes to stderr on its own, put into the node's log where it matters: whose handshake failed, and why.

The C core says such things nowhere else. So a node's process puts a pipe before file descriptor 2 and reads along: what
tells of a failed handshake goes to the node, and everything else through to stderr as it came: but of what the core
says again and again, which a peer can have it say a hundred thousand times a second, a line now and then. What Python
writes takes the direct way, and does not pass here. For a process that is one node; in a notebook or a test nothing is
touched.
"""

import faulthandler
import os
import re
import sys
import time
from collections.abc import Callable
from threading import Thread
from types import TracebackType

from silomix.runtime.observe.log import Sparing

FAILED = re.compile(rb"^[A-Z]\d{4} [\d:.]+ +\d+ ssl_transport_security\.cc:\d+\] Handshake failed with error (.*)$")
"""As grpcio 1.8x writes it. A version that writes it otherwise has its lines passed through."""
CORE = re.compile(rb"^[A-Z]\d{4} [\d:.]+ +\d+ ([^ \]]+)\] ")
"""Whatever the C core writes, and where in its source that stands."""
EVERY_S = 5.0
"""Pause between two lines of the core's from one place."""
REASON = re.compile(r"OPENSSL_internal:([A-Z0-9_]+)")
LONGEST = 64 << 10
"""Bytes of a line that are held back for its end."""
JOIN_S = 2.0


class Stderr:
    """File descriptor 2 of this process, read along while the context is open."""

    def __init__(self) -> None:
        """Nobody is told until `told` is set."""
        self.told: Callable[[str], None] | None = None
        """Hears the reason of each handshake that failed; in a thread of its own."""
        self._lines = Sparing()

    def __enter__(self) -> "Stderr":
        sys.stderr.flush()
        self._python, self._real = sys.stderr, os.dup(2)
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        sys.stderr = open(self._real, "w", buffering=1, errors="backslashreplace", closefd=False)
        self._had_faults = faulthandler.is_enabled()
        faulthandler.enable(self._real)  # a crash speaks to whoever listens, also when nobody reads the pipe any more
        self._thread = Thread(target=self._read, args=(reading,), name="stderr", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stderr.flush()
        faulthandler.disable()
        os.dup2(self._real, 2)  # the pipe has no writer left, and ends
        self._thread.join(JOIN_S)
        sys.stderr = self._python
        if self._had_faults:
            faulthandler.enable()
        if not self._thread.is_alive():
            os.close(self._real)

    def _read(self, pipe: int) -> None:
        held = b""
        while part := os.read(pipe, LONGEST):
            *lines, held = (held + part).split(b"\n")
            for line in lines:
                self._take(line + b"\n")
            if len(held) > LONGEST:
                self._pass(held)
                held = b""
        if held:
            self._take(held)
        os.close(pipe)

    def _take(self, line: bytes) -> None:
        found = FAILED.match(line)
        if found is None or self.told is None:
            self._pass_sparingly(line)
            return
        text = found[1].decode(errors="replace").strip()
        named = REASON.search(text)
        self.told(named[1].lower().replace("_", " ") if named else text)

    def _pass_sparingly(self, line: bytes) -> None:
        core = CORE.match(line)
        unsaid = 0 if core is None else self._lines.spare(core[1], time.monotonic(), EVERY_S)
        if unsaid is None:
            return
        if unsaid:
            line = line.rstrip(b"\n") + b" (and %d lines from there that were left out)\n" % unsaid
        self._pass(line)

    def _pass(self, raw: bytes) -> None:
        while raw:
            raw = raw[os.write(self._real, raw) :]
