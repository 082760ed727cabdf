"""The main job, small enough to watch: a real federation of separate processes on this machine.

Ten silos hold shares of scikit-learn's digits that differ as much as Dirichlet(0.1) makes them. Their updates travel
masked, over mutual TLS, through three shufflers. At the end the model that came out is compared with the plain mean of
the very updates that went in, which the silos of the demo keep for that purpose, and the same attack is mounted on what
the server captured and on those updates.
"""

import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from silomix.runtime.cli.status import render
from silomix.runtime.config.kinds import Role
from silomix.runtime.core.protocol.policy import Policy
from silomix.runtime.local import LocalFederation, create, interrupt_on_sigterm
from silomix.runtime.store.home import CAPTURE_DIRECTORY, Home
from silomix.runtime.store.journal import Journal
from silomix.runtime.store.modelfile import read_model
from silomix.v1 import services_pb2

POLL_S = 0.5


def demo(silos: int, shufflers: int, rounds: int, *, keep: Path | None, as_json: bool) -> int:
    """Run the demo and print what came of it; clean up in every case."""
    from silomix.attacks.audit.watch import verdict  # it needs torch, which only those who train have

    interrupt_on_sigterm()
    directory = keep or Path(tempfile.mkdtemp(prefix="silomix-demo-"))
    console = Console(stderr=as_json)
    try:
        policy = Policy(
            task_options={"silos": silos},
            rounds=rounds,
            deadline_s=120,
            release_s=60,
        )
        console.print("making identities and certificates, compiling kernels ...")
        home = directory / "federation"
        federation = create(
            home,
            silos,
            shufflers,
            policy=policy,
            name="demo",
            settings={
                Role.AGGREGATOR: {"evaluate": True, "capture": CAPTURE_DIRECTORY},
                Role.SILO: {"keep_updates": True},
            },
        )
        _warm()
        started = time.monotonic()
        status = asyncio.run(_run(home, console))
        summary: dict[str, Any] = {
            "rounds": len(status.history),
            "accuracy": status.history[-1].score if status.history else None,
            "accuracy_by_round": [done.score for done in status.history],
            "cohort": status.cohort,
            "silos": silos,
            "hops": shufflers,
            "bits_per_parameter": _silo_bits(home, federation.silo_names[0]),
            "max_abs_error_vs_plain": error_vs_plain(home, silos),
            "level": str(policy.level),
            "seconds": time.monotonic() - started,
        }
        console.print("attacking what the server captured, and what it would have captured without protection ...")
        found = verdict(home)
        summary["verdict"] = found.json()
        if as_json:
            sys.stdout.write(json.dumps(summary) + "\n")
        else:
            _print(console, summary)
            console.print(found.text(), style="bold" if found.protected else "bold red", highlight=False)
        return 0 if summary["rounds"] == rounds else 1
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)


def _warm() -> None:
    """Compile once, so that the processes to come find the machine code in the cache."""
    from silomix.runtime.bench.warm import warm_kernels

    warm_kernels()


async def _run(home: Path, console: Console) -> services_pb2.GetStatusResponse:
    last = services_pb2.GetStatusResponse()
    async with LocalFederation(home) as running:
        count = len(running.names)
        with Live(Text(f"starting {count} processes ..."), console=console, refresh_per_second=4) as live:
            done = asyncio.create_task(running.finished())
            while not done.done():
                status = await running.status()
                if status is not None:
                    last = status
                    live.update(render(status))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(done), POLL_S)
            done.result()
    if not console.is_terminal:
        console.print()
    return last


def _silo_bits(home: Path, silo: str) -> float:
    """Bits per parameter that a silo sent in its last body, counted by the silo from the messages on the wire."""
    figures = json.loads(Home(home / silo).state.last_body.read_text())
    return float(figures["bits_per_parameter"])


def error_vs_plain(home: Path, silos: int) -> float:
    """Compare each new model with the plain mean of the updates that went into it."""
    aggregator = Home(home / "aggregator")
    journal = Journal(aggregator.state.journal)
    before = read_model(aggregator.initial_model.read_bytes())[1]
    worst = 0.0
    for round_, _, value in journal.facts("applied"):
        fact = json.loads(value)
        after = read_model(aggregator.state.model(bytes.fromhex(fact["model"])).read_bytes())[1]
        paths = [Home(silo).state.update(round_) for silo in sorted(home.glob("silo-*"))]
        kept = [read_model(path.read_bytes())[1] for path in paths if path.exists()]
        if len(kept) == silos == fact["cohort"]:
            for name in after:
                mean = np.mean([update[name].astype(np.float64) for update in kept], axis=0)
                error = np.abs(after[name].astype(np.float64) - before[name] - mean)
                worst = max(worst, float(error.max(initial=0.0)))
        before = after
    journal.close()
    return worst


def _print(console: Console, summary: dict[str, Any]) -> None:
    console.print(f"[bold]{summary['rounds']} rounds in {summary['seconds']:.0f} s[/bold], level {summary['level']}")
    console.print(f"accuracy {summary['accuracy']:.3f} with {summary['cohort']} silos in the last cohort")
    console.print(f"{summary['bits_per_parameter']:.2f} bits per parameter and silo on the wire; unprotected takes 32")
    console.print(
        f"the model is off the plain mean of the same updates by at most {summary['max_abs_error_vs_plain']:.1e}"
        " (half a quantisation step is 5.0e-05)"
    )
