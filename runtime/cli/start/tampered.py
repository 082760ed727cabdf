"""`silomix demo --tamper HOP`: a federation in which one hop changes every sum, until it is named for it."""

import asyncio
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from silomix.runtime.cli.exits import Exit
from silomix.runtime.cli.options import BadOption
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.check.blame import decide
from silomix.runtime.local import NodeDied, create, interrupt_on_sigterm
from silomix.runtime.net.check.case import read_case
from silomix.runtime.store.home import Home
from silomix.runtime.terminal import console, say, say_json
from silomix.v1 import case_pb2

WAIT_S = 600


def tampered(liar: str, silos: int, shufflers: int, *, keep: Path | None, as_json: bool) -> int:
    """Run a federation with a tampering hop, and say who was named; the exit code is 1 unless it is that hop."""
    from silomix.attacks.tamper.live import Tampered

    interrupt_on_sigterm()
    names = [f"shuffler-{i + 1}" for i in range(shufflers)]
    if liar not in names:
        raise BadOption("--tamper", f"there is no hop {liar}; give one of {', '.join(names)}")
    out = keep or Path(tempfile.mkdtemp(prefix="silomix-demo-"))
    try:
        policy = Policy(
            task="silomix.models.digits:task",
            task_options={"silos": silos},
            rounds=3,
            level=Level.MALICIOUS,
            deadline_s=120,
            release_s=60,
        )
        home = out / "federation"
        federation = create(home, silos, shufflers, policy=policy, name="demo")
        started = time.monotonic()
        asyncio.run(_to_the_end(Tampered(home, liar)))
        state = Home(home / federation.aggregator.name).state
        cases = sorted(state.evidence.glob("*.case")) if state.evidence.exists() else []
        if not cases:
            raise UserError(f"{liar} tampered with the sum, and nobody was named: see {home}/*/log.txt")
        verdict = decide(read_case(case_pb2.Case.FromString(cases[0].read_bytes())), federation)
        found = {
            "tampered": liar,
            "named": verdict.culprit,
            "sentence": verdict.sentence,
            "evidence": str(cases[0]) if keep is not None else None,
            "seconds": round(time.monotonic() - started, 3),
        }
        if as_json:
            say_json(found)
        else:
            right = verdict.culprit == liar
            console().print(f"named: {verdict.culprit}", style="bold" if right else "bold red")
            say(verdict.sentence)
            say("the evidence was checked again, with the federation file alone; no sum was released")
            if keep is not None:
                say(f"it is in {cases[0]}; `silomix verify 1 --config {home / federation.aggregator.name}` checks it")
        return Exit.DONE if verdict.culprit == liar else Exit.NO
    finally:
        if keep is None:
            shutil.rmtree(out, ignore_errors=True)


async def _to_the_end(running: "object") -> None:
    from silomix.attacks.tamper.live import Tampered

    assert isinstance(running, Tampered)
    async with running, asyncio.timeout(WAIT_S):
        with suppress(NodeDied):  # an aggregator that has to stop without a model says so by its exit code
            await running.finished()
