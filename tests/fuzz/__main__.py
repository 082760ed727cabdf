"""Fuzz the decoders of bytes from outside with atheris, which looks for inputs that reach new branches.

    make fuzz                       every target for a minute
    make fuzz EACH=600 TARGET=capture-file
    python -m tests.fuzz --seconds 60 [--keep] [TARGET ...]

A finding ends its target: it is kept in the corpus, where `make test` replays it, and the traceback says what it is.
With --keep, inputs that reached something new are added to the corpus too, as few and as short as will do.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
LONGEST = 8192
SLOWEST_S = 10
"""An input that takes longer is a hang."""
MOST_MIB = 1024
INSTRUMENTED = [
    f"silomix.runtime.{room}" for room in ("net", "capture", "store", "config", "nodes.facts", "observe.remarks")
]
"""What is watched. Not the numbers, which are loaded before: their kernels are compiled."""
KEPT = 24
"""Inputs of one target that are kept at most, the shortest ones: a corpus is read, and stored, by everybody."""


def main() -> int:
    """Fuzz each target in a process of its own, one after the other."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="add what is new to the corpus")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args, rest = parser.parse_known_args()
    if args.one:
        return _fuzz(args.targets[0], rest)
    from tests.fuzz.targets import TARGETS

    unknown = set(args.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    found = []
    for name in args.targets or TARGETS:
        with tempfile.TemporaryDirectory() as place:
            new, findings = Path(place) / "new", CORPUS / name
            new.mkdir()
            findings.mkdir(parents=True, exist_ok=True)
            for i, raw in enumerate(TARGETS[name].good):
                (new / f"good-{i}").write_bytes(raw)
            options = [f"-max_total_time={args.seconds}", f"-max_len={LONGEST}", f"-timeout={SLOWEST_S}"]
            options += [f"-rss_limit_mb={MOST_MIB}", f"-artifact_prefix={findings}/", "-print_final_stats=1"]
            run = [sys.executable, "-m", "tests.fuzz", "--one", name, *options, str(new), str(findings)]
            done = subprocess.run(run, capture_output=True, text=True, check=False)
            runs = next((line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed" in line), "?")
            sys.stdout.write(
                f"{name}: {runs} inputs in {args.seconds} s, {'a finding' if done.returncode else 'none'}\n"
            )
            if done.returncode:
                found.append(name)
                sys.stdout.write(done.stderr[-4000:] + "\n")
            elif args.keep:
                _keep(new, findings)
            sys.stdout.flush()
    return 1 if found else 0


def _keep(new: Path, corpus: Path) -> None:
    """Keep the shortest of the inputs that each reached something new."""
    found = [path for path in new.iterdir() if not path.name.startswith("good-")]
    found.sort(key=lambda path: (path.stat().st_size, path.name))
    for path in found[: max(0, KEPT - len(list(corpus.iterdir())))]:
        (corpus / path.name).write_bytes(path.read_bytes())


def _fuzz(name: str, options: list[str]) -> int:
    import atheris

    import silomix.runtime.core.protocol.rules  # noqa: F401 - as it is: the compiler cannot read what atheris adds

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz.targets import TARGETS

    atheris.Setup([sys.argv[0], *options], TARGETS[name].survives)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
