"""Drop or weaken each check of the protocol in turn, and see whether a test notices: `make mutants`."""

import argparse
import importlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter

from tests.mutants import harmless, scope
from tests.mutants.operators import mutants
from tests.mutants.reach import tests_of
from tests.mutants.runner import Case, selected, try_all
from tests.mutants.source import Mutant
from tests.mutants.trial import Verdict

WARM = (
    "cryptography.x509",
    "google.protobuf.message_factory",
    "grpc.aio",
    "hypothesis",
    "numba",
    "numpy",
    "silomix.runtime.bench.warm",
    "silomix.v1.services_pb2_grpc",
)
"""What is slow to import, and imports nothing that is mutated."""
RESULTS = scope.BUILD / "results.jsonl"
TARGET = 0.95
"""Share of the mutants, harmless ones aside, that tests should notice."""
LET_PASS = "let pass"
"""The verdict of a stage that is not the last: the next one has still to be tried."""


def main() -> int:
    """Run."""
    options = _options()
    sources = {module: (scope.ROOT / module).read_bytes() for module in scope.modules(options.module)}
    everything = [mutant for module, source in sources.items() for mutant in mutants(module, source)]
    chosen = everything
    if options.sample:
        chosen = random.Random(options.seed).sample(everything, min(options.sample, len(everything)))
    if options.list:
        for mutant in chosen:
            _say(f"{mutant.module}:{mutant.line} {mutant.function or 'on import'}, {mutant.kind}")
            _say(mutant.difference(sources[mutant.module]))
        _say(f"{len(chosen)} mutants")
        return 0
    known = list(harmless.read(harmless.PAGE.read_text()))
    excused = {m for m in everything for h in known if h.is_(m, sources[m.module])}
    results = _results(again=options.again)
    let_pass = {key for key, found in results.items() if found.verdict == LET_PASS}
    stages: list[list[Mutant]] = [[], []]
    for mutant in (m for m in chosen if m not in excused):
        key = mutant.key(sources[mutant.module])
        if key in let_pass or key not in results:
            stages[key in let_pass].append(mutant)
    if any(stages):
        results |= _run(stages, sources, options)
    return _report(chosen, sources, results, excused, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    parser.add_argument("--module", default="", metavar="TEXT", help="only modules with this text in their path")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="only so many, drawn at random")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--again", action="store_true", help="try those again that were not killed, from the beginning")
    parser.add_argument("--quick", action="store_true", help="only the first stage of tests, in which most are noticed")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many to try at once")
    parser.add_argument("--budget", type=float, default=30.0, metavar="SECONDS", help="of tests for one mutant")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    return parser.parse_args()


def _results(again: bool) -> dict[str, Verdict]:
    """What earlier runs have found, by mutant and source."""
    found: dict[str, Verdict] = {}
    for line in RESULTS.read_text().splitlines() if RESULTS.exists() else ():
        entry = json.loads(line)
        found[entry["key"]] = Verdict(entry["verdict"], entry["by"], entry["why"])
    return {key: v for key, v in found.items() if not again or v.verdict == "killed"}


def _run(stages: list[list[Mutant]], sources: dict[str, bytes], options: argparse.Namespace) -> dict[str, Verdict]:
    """Try the mutants of each stage; those of a later one are joined by what the earlier let pass."""
    for name in WARM:
        importlib.import_module(name)
    importlib.import_module("silomix.runtime.bench.warm").warm_kernels()
    found: dict[str, Verdict] = {}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    for stage, pending in enumerate(stages[:1] if options.quick else stages):
        # tests of a later stage are traced only if something has come so far
        files = {module: scope.stages(module) for module in {m.module for m in pending}}
        every = {file: None for per_stage in files.values() for file in per_stage[stage]}
        tests = tests_of(every, scope.modules(), _tell, options.jobs)
        for nodeid in (nodeid for nodeid, test in tests.items() if not test.passed):
            _tell(f"left out, since it fails without any mutant: {nodeid}")
        cases = (
            Case(
                m,
                sources[m.module],
                scope.import_name(m.module),
                scope.imported_from(m.module),
                selected(m, [files[m.module][stage]], tests, options.budget),
            )
            for m in pending
        )
        with RESULTS.open("a") as log:
            for case, verdict in try_all(cases, options.jobs):
                m, seconds = case.mutant, time.monotonic() - case.began if case.began else 0.0
                if verdict.verdict == "survived" and stage + 1 < len(files[m.module]):
                    stages[stage + 1].append(m)
                    verdict = Verdict(LET_PASS)
                key = m.key(case.source)
                found[key] = verdict
                entry = {"key": key, "module": m.module, "function": m.function, "line": m.line, "kind": m.kind}
                log.write(json.dumps({**entry, **vars(verdict), "seconds": round(seconds, 2)}) + "\n")
                log.flush()
                _tell(
                    f"{len(found)} done, {len(pending)} in stage {stage + 1}: {verdict.verdict} {m.module}:{m.line} "
                    f"{m.kind} {seconds:.1f} s"
                )
    return found


def _report(
    chosen: list[Mutant],
    sources: dict[str, bytes],
    results: dict[str, Verdict],
    excused: set[Mutant],
    options: argparse.Namespace,
) -> int:
    judged = [(m, results[m.key(sources[m.module])]) for m in chosen if m not in excused]
    noticed = sum(verdict.verdict in ("killed", "timed out") for _, verdict in judged)
    share = noticed / len(judged) if judged else 1.0
    gaps = [(m, verdict) for m, verdict in judged if verdict.verdict not in ("killed", "timed out")]
    if options.json:
        entries = [
            {
                "module": m.module,
                "function": m.function,
                "line": m.line,
                "kind": m.kind,
                "difference": m.difference(sources[m.module]),
                **vars(verdict),
            }
            for m, verdict in judged
        ]
        _say(json.dumps({"share": share, "harmless": len(excused & set(chosen)), "mutants": entries}, indent=1))
        return 0 if share >= TARGET else 1
    for mutant, verdict in gaps:
        _say(f"\n{mutant.module}:{mutant.line} `{mutant.function}` {verdict.verdict} {verdict.why}".rstrip())
        _say(f"```diff\n{mutant.difference(sources[mutant.module])}\n```")
    _say(f"\n{'module':40} {'killed':>7} {'timed out':>10} {'survived':>9} {'harmless':>9}")
    for module in sorted({m.module for m in chosen}):
        count = Counter(verdict.verdict for m, verdict in judged if m.module == module)
        aside = sum(m.module == module and m in excused for m in chosen)
        lost = count.total() - count["killed"] - count["timed out"]
        _say(f"{module:40} {count['killed']:7} {count['timed out']:10} {lost:9} {aside:9}")
    _say(f"{noticed} of {len(judged)} were noticed, {share:.1%}: {TARGET:.0%} are wanted")
    return 0 if share >= TARGET else 1


def _tell(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    os.chdir(scope.ROOT)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that whoever ends this run ends its trials too
    raise SystemExit(main())
