"""The round log of a node, from its own disk: every link and every signature is checked, and nobody is asked."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table

from silomix.runtime.cli.exits import Exit
from silomix.runtime.config.load import NodeConfig, load_node
from silomix.runtime.core.errors import PeerFault, UserError
from silomix.runtime.core.protocol.epochs import Epochs
from silomix.runtime.core.protocol.roundlog import Outcome, Record, RoundLog, check_countersigned
from silomix.runtime.nodes.facts import read_forks, read_log
from silomix.runtime.nodes.lead.stuck import WAY_OUT
from silomix.runtime.store.journal import Journal
from silomix.runtime.terminal import console, say, say_json

SHOWN = 16
"""Hex digits of a digest in a table."""
NUMBERS = ("round", "epoch", "attempts", "cohort")
"""The columns of the table that are aligned to the right."""


def show(path: Path, *, as_json: bool) -> int:
    """Print the log and what is wrong with it; the exit code is 1 if anything is."""
    config = load_node(path)
    with journal_of(config) as journal:
        records, forks = list(read_log(journal)), list(read_forks(journal))
    problems = verify_log(records, config.epochs)
    problems += [
        f"round {known.round}: the aggregator signed two records, {_short(known.digest)} and {_short(other.digest)}"
        for known, other in forks
    ]
    bound = RoundLog(config.federation, records, config.epochs).bound
    if as_json:
        say_json({"records": [_json(record) for record in records], "bound": list(bound), "problems": problems})
    else:
        console().print(_table(records, config.epochs))
        for problem in problems:
            console().print(f"[red]{problem}[/red]")
        for round_, culprit in ((record.round, one.culprit) for record in records for one in record.attempts):
            if culprit:
                looks = f"`silomix verify {round_} --config {path}` looks at the evidence"
                say(f"round {round_}: the aggregator says that {culprit} lied; {looks}")
        if bound:
            names = ", ".join(bound)
            said = f"the newest model is bound to {names}: its sum is for these silos, who have to come again"
            console().print(f"{said}; {WAY_OUT}")
        if not problems:
            console().print(f"{len(records)} records: every link and every signature holds")
    return Exit.NO if problems else Exit.DONE


def verify_log(records: list[Record], epochs: Epochs) -> list[str]:
    """Go through a log from its beginning, each record under the epoch in which it was made; say what does not hold."""
    log, problems = RoundLog(epochs.chain[-1], epochs=epochs), []
    for record in records:
        try:
            log.check_next(record)
            if record is not records[-1]:  # the newest may not count yet
                check_countersigned(record, log.of(record))
        except PeerFault as fault:
            problems.append(f"round {record.round}: {fault}")
            break
        log.append(record)
    return problems


@contextmanager
def journal_of(config: NodeConfig) -> Iterator[Journal]:
    """Open a copy of a journal: a node that runs has its own for itself. Signatures tell a bad copy."""
    path = config.state.journal
    if not path.exists():
        raise UserError(f"{path} is not there: this node has not run yet")
    with tempfile.TemporaryDirectory() as place:
        for suffix in ("", "-journal"):
            source = path.with_name(path.name + suffix)
            if source.exists():
                shutil.copy(source, Path(place) / source.name)
        with closing(Journal(Path(place) / path.name, copied_from=path)) as journal:
            yield journal


def _short(digest: bytes) -> str:
    return digest.hex()[:SHOWN]


def _table(records: list[Record], epochs: Epochs) -> Table:
    table = Table()
    later = len(epochs.chain) > 1
    for name in (
        "round",
        *(("epoch",) if later else ()),
        "outcome",
        "attempts",
        "cohort",
        "model after",
        "record",
        "stored by",
    ):
        table.add_column(name, justify="right" if name in NUMBERS else "left")
    for record in records:
        table.add_row(
            str(record.round),
            *([_number(record, epochs)] if later else []),
            " ".join(
                [
                    str(record.outcome),
                    *(f"(accuses {one.culprit})" for one in record.attempts if one.culprit),
                ]
            ),
            str(len(record.attempts)),
            str(len(record.silos)) if record.outcome is Outcome.APPLIED else "-",
            _short(record.model_after),
            _short(record.digest),
            ", ".join(name for name, _ in record.countersignatures),
        )
    return table


def _number(record: Record, epochs: Epochs) -> str:
    found = epochs.find(record.federation)
    return str(found.epoch) if found is not None else "?"


def _json(record: Record) -> dict[str, Any]:
    return {
        "round": record.round,
        "outcome": str(record.outcome),
        "federation": record.federation.hex(),
        "next": record.next.hex(),
        "silos": list(record.silos),
        "attempts": [
            {
                "attempt": one.attempt,
                "chain": list(one.chain),
                "manifest": one.manifest.hex(),
                "agreed": one.agreed.hex(),
                **({"culprit": one.culprit, "evidence": one.evidence.hex()} if one.culprit else {}),
            }
            for one in record.attempts
        ],
        "root": record.root.hex(),
        "model_before": record.model_before.hex(),
        "model_after": record.model_after.hex(),
        "state_after": record.state_after.hex(),
        "previous": record.previous.hex(),
        "digest": record.digest.hex(),
        "countersigned_by": [name for name, _ in record.countersignatures],
    }
