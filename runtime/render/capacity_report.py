"""What a round takes of each host, as a table or as JSON."""

from dataclasses import asdict

from rich.table import Table

from silomix.runtime.core.numbers.plan import Encoding, Level, plan
from silomix.runtime.render.capacity import MIB, Load, Needs, Place, needs
from silomix.runtime.terminal import console, say_json


def show(silos: int, hops: int, parameters: int, precision: int, rounds: int, *, as_json: bool) -> int:
    """Work it out for the default policy and print it."""
    bits = plan(silos, precision, Encoding.COUNTS, Level.SEMI_HONEST).packed_bits
    load = Load(parameters, silos, hops, bits, rounds)
    rows = {place: needs(place, load) for place in Place}
    if as_json:
        found_rows = {str(place): asdict(need) for place, need in rows.items()}
        say_json({"load": asdict(load), "places": found_rows})
        return 0
    out = console()
    out.print(f"{silos} silos, {hops} hops, {parameters:,} parameters at {bits} bits, {rounds} rounds")
    out.print(_table(rows))
    out.print("a silo's training comes on top; time and memory were measured on one machine")
    return 0


def _table(rows: dict[Place, Needs]) -> Table:
    table = Table()
    table.add_column("")
    for name in ("MB in/round", "MB out/round", "CPU s/round", "memory MiB", "disk MB"):
        table.add_column(name, justify="right")
    for place, need in rows.items():
        table.add_row(
            str(place),
            f"{need.received_bytes / 1e6:.1f}",
            f"{need.sent_bytes / 1e6:.1f}",
            f"{need.cpu_s:.2f}",
            f"{need.memory_bytes / MIB:.0f}",
            f"{need.disk_bytes / 1e6:.0f}",
        )
    return table
