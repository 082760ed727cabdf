"""A silo's door: other processes on its host hand vectors in through a socket, and never see the silo's keys.

`python -m silomix.runtime.outside DIRECTORY` runs a silo with a door; `submit(DIRECTORY, vector, round)` knocks. The
socket is in the silo's state directory, and only the silo's own user may open it. One request is a line of JSON and the
vector's bytes; the answer is a line of JSON, which comes when the vector counts, or never will.
"""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from silomix.runtime.config.load import load_node
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.numbers.schema import NUMPY_TYPES
from silomix.runtime.outside.question import check_examples, check_vector
from silomix.runtime.outside.silo import NotInSum, Silo, open_silo

DOOR = "door"
LINE_BYTES = 1 << 16
PATIENCE_S = 60.0
"""Time that whoever knocks has to say what it wants."""


class Door:
    """Lets other processes of this host hand in vectors at a silo, until the context is left."""

    def __init__(self, silo: Silo) -> None:
        """Open a silo's door."""
        self.silo = silo
        self._listener: socket.socket | None = None

    def __enter__(self) -> "Door":
        directory = self.silo.config.state.directory
        directory.mkdir(parents=True, exist_ok=True)
        (directory / DOOR).unlink(missing_ok=True)  # of a process that was killed: the journal keeps a second one out
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _reachable(directory) as path:
            before = os.umask(0o177)
            try:
                listener.bind(path)
            finally:
                os.umask(before)
        listener.listen(8)
        self._listener = listener
        threading.Thread(target=self._serve, args=(listener,), name="silomix-door", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listener is not None
        (self.silo.config.state.directory / DOOR).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:  # the door is closed
                return
            threading.Thread(target=self._answer, args=(caller,), name="silomix-door", daemon=True).start()

    def _answer(self, caller: socket.socket) -> None:
        with caller, contextlib.suppress(OSError):
            caller.settimeout(PATIENCE_S)
            try:
                given = self._read(caller)
                self.silo.submit(**given)
                answer: dict[str, str] = {}
            except NotInSum as error:
                answer = {"not_in_sum": str(error)}
            except (UserError, ValueError, TypeError, KeyError) as error:
                answer = {"refused": str(error)}
            caller.sendall(json.dumps(answer).encode() + b"\n")

    def _read(self, caller: socket.socket) -> dict[str, Any]:
        inbox = self.silo.inbox
        with caller.makefile("rb") as stream:
            asked = json.loads(stream.readline(LINE_BYTES))
            kind = np.dtype(NUMPY_TYPES[inbox.dtype]).newbyteorder("<")
            data = stream.read(inbox.values * kind.itemsize)
        timeout_s = asked["timeout_s"]
        return {
            "vector": np.frombuffer(data, kind),
            "round": int(asked["round"]),
            "examples": int(asked["examples"]),
            "question": bytes.fromhex(asked["question"]),
            "clip": bool(asked["clip"]),
            "timeout_s": None if timeout_s is None else float(timeout_s),
        }


def submit(
    directory: Path | str,
    vector: object,
    round: int,  # noqa: A002 - the protocol's word for it
    *,
    examples: int = 1,
    question: bytes = b"",
    clip: bool = False,
    timeout_s: float | None = None,
) -> None:
    """Hand a vector in at the door of a silo, as `Silo.submit` does in the silo's own process."""
    inbox, config = open_silo(load_node(Path(directory)))
    policy = config.federation.policy
    values = check_vector(vector, inbox, policy, clip=clip)
    asked = {
        "round": round,
        "examples": check_examples(examples, policy),
        "question": question.hex(),
        "clip": clip,
        "timeout_s": timeout_s,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        try:
            with _reachable(config.state.directory) as path:
                line.connect(path)
        except OSError as error:
            raise UserError(
                f"{config.name} does not open its door ({error}): start it on this host with "
                f"`python -m silomix.runtime.outside {directory}`"
            ) from None
        line.sendall(json.dumps(asked).encode() + b"\n")
        line.sendall(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data)
        with line.makefile("rb") as stream:
            answer = json.loads(stream.readline(LINE_BYTES) or b'{"not_in_sum": "the silo has ended"}')
    if "not_in_sum" in answer:
        raise NotInSum(answer["not_in_sum"])
    if "refused" in answer:
        raise UserError(answer["refused"])


@contextlib.contextmanager
def _reachable(directory: Path) -> Iterator[str]:
    """Yield a path of the door that is short enough for a socket, which takes about a hundred bytes."""
    path = str(directory / DOOR)
    if len(os.fsencode(path)) < 100 or not Path("/proc/self/fd").exists():
        yield path
        return
    here = os.open(directory, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{here}/{DOOR}"
    finally:
        os.close(here)
