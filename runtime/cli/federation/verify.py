"""`silomix verify`: a round checked afterwards, from the round log and the transcript alone."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from silomix.runtime.cli.exits import Exit
from silomix.runtime.cli.options import Commands, positive
from silomix.runtime.core.errors import Fault, PeerFault, UserError
from silomix.runtime.terminal import console, say, say_json

MISSING = "the evidence is not here: ask its owner for the file, and give it with --evidence"
ABOUT = "check a past round from its record and its transcript, and see who lied in it"


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the command to the parser."""
    cmd = commands.add_parser(
        "verify",
        help=ABOUT,
        description="Read the round log from a node's disk, and the transcript that the aggregator keeps of the last "
        "eight rounds, and check everything in them that was signed: the record and its place in the log, the cohort, "
        "every hop's roots, the pads, and at level malicious the coin, everybody's scalars and every equation between "
        "them. Of an attempt in which somebody was named, the evidence is looked at again. Nobody is asked. The exit "
        "code is 1 if anything does not hold.",
    )
    cmd.add_argument("round", type=positive, metavar="ROUND", help="which round")
    cmd.add_argument("--config", type=Path, required=True, help="the node's directory, or its node.toml")
    cmd.add_argument("--transcript", type=Path, metavar="FILE", help="the transcript (default: the node's own)")
    cmd.add_argument("--evidence", type=Path, metavar="FILE", help="the evidence (default: the node's own)")
    json_flag(cmd)
    cmd.set_defaults(handler=_verify)


def _verify(args: argparse.Namespace) -> int:
    from silomix.runtime.cli.federation.history import journal_of, verify_log
    from silomix.runtime.config.load import load_node
    from silomix.runtime.core.protocol.roundlog import Outcome
    from silomix.runtime.nodes.facts import read_log

    config = load_node(args.config)
    with journal_of(config) as journal:
        records = list(read_log(journal))
    problems = verify_log(records, config.epochs)
    if args.round >= len(records):
        raise UserError(f"round {args.round} is not on record here: the log ends with round {len(records) - 1}")
    record = records[args.round]
    epoch = config.epochs.get(record.federation, f"the record of round {record.round}")
    found: dict[str, Any] = {"round": record.round, "outcome": str(record.outcome), "checked": ["record"]}
    if record.outcome is Outcome.APPLIED:
        last = record.attempts[-1].attempt
        path = args.transcript or config.state.sums / f"{record.round}-{last}.transcript"
        problems += _applied(path, record, epoch, found)
    found["culprits"] = []
    for one in record.attempts:
        path = args.evidence or config.state.evidence / f"{record.round}-{one.attempt}.case"
        if one.culprit or path.exists():
            problems += _named(path, one, epoch, found)
    found["problems"] = problems
    if args.json:
        say_json(found)
    else:
        _show(found)
    return Exit.NO if problems else Exit.DONE


def _applied(path: Path, record: Any, federation: Any, found: dict[str, Any]) -> list[str]:
    """Check what a round's transcript says, and the vector beside it if it is there."""
    import numpy as np
    from google.protobuf.message import DecodeError

    from silomix.runtime.core.protocol.lineage import check_transcript, check_vector
    from silomix.runtime.net.history import read_transcript
    from silomix.v1 import history_pb2

    if not path.exists():
        raise UserError(f"{path} is not there: the aggregator keeps transcripts of its last rounds; give --transcript")
    try:
        transcript = read_transcript(history_pb2.Transcript.FromString(path.read_bytes()))
        check_transcript(transcript, record, federation)
    except DecodeError:
        return [f"{path} is no transcript"]
    except Fault as fault:
        return [f"the transcript does not hold: {fault}"]
    found["checked"] += ["cohort", "roots", "pads", "signatures"]
    found["silos"], found["hops"] = list(transcript.cohort.silos), list(transcript.manifest.chain)
    if transcript.check is not None:
        found["checked"] += ["coin", "scalars", "equations", "scalars of the pads"]
        if transcript.check.proofs:
            found["checked"] += ["traps"]
    vector = path.with_suffix(".sum")
    if vector.exists():
        body = np.fromfile(vector, np.uint8)
        try:
            check_vector(body, transcript, federation)
        except Fault as fault:
            return [f"{vector}: {fault}"]
        found["checked"] += ["vector", *(["scalars of the vector"] if transcript.check is not None else [])]
    return []


def _named(path: Path, attempt: Any, federation: Any, found: dict[str, Any]) -> list[str]:
    """Look at the evidence against somebody again."""
    import numpy as np
    from google.protobuf.message import DecodeError

    from silomix.runtime.core.protocol.check.blame import decide
    from silomix.runtime.net.check.case import read_case
    from silomix.v1 import case_pb2

    if not path.exists():
        found["culprits"].append({"attempt": attempt.attempt, "culprit": attempt.culprit, "evidence": "not here"})
        return []
    vector = path.with_suffix(".vector")
    try:
        case = read_case(case_pb2.Case.FromString(path.read_bytes()))
        verdict = decide(case, federation, np.fromfile(vector, np.uint8) if vector.exists() else None)
    except DecodeError:
        return [f"{path} is no evidence"]
    except PeerFault as fault:
        return [f"{path}: {fault}"]
    known = (attempt.culprit, attempt.evidence, attempt.manifest)
    told = (verdict.culprit, case.digest, attempt.manifest) if attempt.culprit else ("", b"", attempt.manifest)
    if known != told or case.manifest.digest != attempt.manifest:
        return [f"{path} is not the evidence that the record names against {attempt.culprit}"]
    row = {"attempt": attempt.attempt, "culprit": verdict.culprit, "evidence": "holds", "sentence": verdict.sentence}
    found["culprits"].append(row)
    return []


def _show(found: dict[str, Any]) -> None:
    say(f"round {found['round']}: {found['outcome']}")
    for row in found["culprits"]:
        said = row.get("sentence", f"the aggregator named {row['culprit']}; {MISSING}")
        console().print(f"attempt {row['attempt']}: {said}", style="bold red", highlight=False, soft_wrap=True)
    for problem in found["problems"]:
        console().print(problem, style="red", highlight=False, soft_wrap=True)
    if not found["problems"]:
        say(f"all of it holds: {', '.join(found['checked'])}")
