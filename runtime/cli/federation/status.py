"""The federation live in the terminal."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from silomix.runtime.config.load import load_node
from silomix.runtime.core.errors import Passing
from silomix.runtime.core.values import printable
from silomix.runtime.local import fetch_status
from silomix.runtime.net.version import difference
from silomix.runtime.terminal import console, say_json
from silomix.v1 import services_pb2

REFRESH_S = 1.0
SHOWN_ROUNDS = 12


def show(path: Path, *, once: bool, as_json: bool) -> int:
    """Ask the aggregator and show what it says, once or until it is done."""
    config = load_node(path)
    try:
        if once or as_json:
            status = asyncio.run(fetch_status(config))
            if as_json:
                say_json(as_json_value(status))
            else:
                console().print(render(status))
            return 0
        return asyncio.run(_watch(path))
    except grpc.aio.AioRpcError as error:
        address = config.federation.aggregator.address
        raise Passing(
            f"the aggregator at {address} does not answer ({error.code().name}): is it running? It ends when the last "
            "round is over; `silomix log` shows what became of the rounds"
        ) from None


def as_json_value(status: services_pb2.GetStatusResponse) -> dict[str, Any]:
    """Turn a status into JSON's own types: protobuf writes 64-bit numbers as strings."""
    value: dict[str, Any] = MessageToDict(
        status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    value["head_digest"] = status.head_digest.hex()
    for entry in (value, *value["history"]):
        for key in ("round", "rounds"):
            if key in entry:
                entry[key] = int(entry[key])
    return value


async def _watch(path: Path) -> int:
    config = load_node(path)
    with Live(Text("waiting for the aggregator"), console=console(), refresh_per_second=4) as live:
        while True:
            status = await fetch_status(config)
            live.update(render(status))
            if status.phase == "finished":
                return 0
            await asyncio.sleep(REFRESH_S)


def render(status: services_pb2.GetStatusResponse) -> RenderableType:
    """Draw one state of the federation. Its words are the aggregator's, and hops' on the way through it."""
    line = Text.assemble(
        (f"{printable(status.federation)}  ", "bold"),
        f"round {status.round} of {status.rounds}, attempt {status.attempt}: ",
        (printable(status.phase), "bold"),
        f"   {len(status.present)} silos present",
        closes(status),
    )
    parts: list[RenderableType] = [line, hops(status)]
    if differs := difference(str(status.protocol or ""), "the aggregator", "this silomix"):
        parts.append(Text(": ".join(differs), "red"))
    if status.stuck:
        parts.append(Text(f"the model is bound: {printable(status.stuck)}", "yellow"))
    if status.head_digest:
        parts.append(Text(f"round log: {status.head_digest.hex()[:16]}", "dim"))
    return Group(*parts, rounds_table(status))


def closes(status: services_pb2.GetStatusResponse) -> str:
    """Say when hop 1 means to close the cohort that is collected now."""
    if status.phase != "collecting":
        return ""
    if not status.closes_early:
        return f"   closes in {status.closes_s:.0f} s at the latest"
    if not status.closes_s:
        return "   closes as soon as enough silos are in, before the deadline"
    return f"   closes in {status.closes_s:.0f} s, before the deadline, if enough silos are in"


def hops(status: services_pb2.GetStatusResponse) -> RenderableType:
    """Draw the chain."""
    colours = {"open": "green", "ready": "cyan", "unreachable": "red"}
    text = Text("chain: ")
    for i, hop in enumerate(status.hops):
        text.append(" -> " if i else "")
        text.append(printable(f"{hop.name} {hop.state}"), colours.get(hop.state, ""))
        if hop.trouble:
            text.append(f" ({printable(hop.trouble)})", "red")
    return text


def rounds_table(status: services_pb2.GetStatusResponse) -> Table:
    """The rounds that are done, the last ones of many."""
    table = Table()
    for name in ("round", "cohort", "attempts", "seconds", "bits/parameter", "accuracy"):
        table.add_column(name, justify="right")
    for done in list(status.history)[-SHOWN_ROUNDS:]:
        accuracy = f"{done.score:.3f}" if done.HasField("score") else "-"
        table.add_row(
            str(done.round),
            str(done.cohort),
            str(done.attempts),
            f"{done.seconds:.1f}",
            f"{done.bits_per_parameter:.2f}",
            accuracy,
        )
    return table
