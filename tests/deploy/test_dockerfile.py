"""deploy/Dockerfile, as far as that can be checked without an engine: its instructions, and what its files make."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from silomix.runtime.cli import make_parser
from silomix.runtime.render.source import USER

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@dataclass
class Stage:
    """One FROM, with all that follows it."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def words(self, instruction: str) -> list[str]:
        return [rest for found, rest in self.steps if found == instruction]


def parse(text: str) -> tuple[dict[str, str], dict[str, Stage]]:
    """Read a Dockerfile: its arguments before the first stage, and its stages by name."""
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        instruction, _, rest = re.sub(r"\s+", " ", line.strip()).partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = stages[name] = Stage(base, name)
        elif stage is None:
            assert instruction == "ARG", line
            name, _, value = rest.partition("=")
            arguments[name] = value
        else:
            stage.steps.append((instruction, rest))
    return arguments, stages


ARGUMENTS, STAGES = parse(DOCKERFILE.read_text())


def ancestry(name: str) -> list[Stage]:
    """A stage with all that it is built upon, the first one last."""
    found = [STAGES[name]]
    while found[-1].base in STAGES:
        found.append(STAGES[found[-1].base])
    return found


def inherited(name: str, instruction: str) -> list[str]:
    return [rest for stage in reversed(ancestry(name)) for rest in stage.words(instruction)]


def test_stages_stand_on_each_other_and_on_one_pinned_base() -> None:
    lists = {"lister", "list-slim", "list-train"}
    assert set(STAGES) == {"source", "build-slim", "build-train", "runtime", "slim", "train"} | lists
    for stage in STAGES.values():
        assert stage.base in STAGES or stage.base == "${BASE}"
    assert re.fullmatch(r"python:3\.11-slim-[a-z]+@sha256:[0-9a-f]{64}", ARGUMENTS["BASE"])
    assert PROJECT["requires-python"] == ">=3.11"


def test_every_source_that_is_copied_exists_and_is_in_the_context() -> None:
    ignore = (DOCKERFILE.with_name("Dockerfile.dockerignore")).read_text().splitlines()
    kept = {line[1:] for line in ignore if line.startswith("!")}
    copied = set()
    for stage in STAGES.values():
        for words in (rest.split() for rest in stage.words("COPY")):
            if words[0].startswith("--from="):
                assert words[0].removeprefix("--from=") in STAGES
                # caches know their files by path
                assert words[1:] in (["/opt/silomix", "/opt/silomix"], ["/sbom.cdx.json", "/opt/silomix/"])
                continue
            for source in words[:-1]:
                assert (ROOT / source).exists(), source
                copied.add(source)
    assert copied == kept
    assert ignore[1] == "*"
    for secret in ("deploy/fed/ca.key", ".git/config", ".venv/bin/python", "fed/silo-01/identity.key"):
        assert not any(secret == path or secret.startswith(f"{path}/") for path in kept)
    assert any(fnmatch.fnmatch("x/__pycache__", pattern) for pattern in ignore)


@pytest.mark.parametrize("target", ["slim", "train"])
def test_an_image_runs_as_nobody_and_says_what_it_is(target: str) -> None:
    assert inherited(target, "USER") == [f"{USER}:{USER}"]
    last = [instruction for stage in reversed(ancestry(target)) for instruction, _ in stage.steps]
    assert "RUN" not in last[last.index("USER") :]
    assert inherited(target, "ENTRYPOINT") == ['["silomix"]']
    (health,) = inherited(target, "HEALTHCHECK")
    assert make_parser().parse_args(eval(health.partition("CMD ")[2])[1:]).config == Path("/etc/silomix/node")
    labels = dict(re.findall(r'(org\.opencontainers\.image\.[a-z.]+)="([^"]*)"', " ".join(inherited(target, "LABEL"))))
    names = {"version", "licenses", "vendor", "base.name", "base.digest", "title", "description"}
    assert labels.keys() == {f"org.opencontainers.image.{name}" for name in names}
    assert labels["org.opencontainers.image.licenses"] == PROJECT["license"]
    assert f"VERSION={PROJECT['version']}" in inherited(target, "ARG")
    base = [labels[f"org.opencontainers.image.base.{part}"] for part in ("name", "digest")]
    assert "@".join(base) == ARGUMENTS["BASE"]
    environment = " ".join(inherited(target, "ENV"))
    assert "NUMBA_CACHE_DIR=/opt/silomix/kernels" in environment
    assert "HOME=/tmp" in environment


@pytest.mark.parametrize(
    ("stage", "installs"),
    [
        (
            "build-slim",
            [
                "pip install --require-hashes -r deploy/pins/slim.txt",
                "pip install --no-deps --no-build-isolation .",
            ],
        ),
        (
            "build-train",
            [
                "pip install --no-deps --require-hashes -r deploy/pins/train.txt",
                "pip install --no-build-isolation -c constraints.txt '.[train,traces,traps]'",
            ],
        ),
    ],
)
def test_it_installs_by_hash_and_compiles_the_kernels(stage: str, installs: list[str]) -> None:
    (run,) = STAGES[stage].words("RUN")
    steps = [step.strip() for step in run.split("&&")]
    assert steps[:2] == installs
    assert steps[-1] == "silomix warm"
    make_parser().parse_args(["warm"])
    touch = next(i for i, step in enumerate(steps) if "touch" in step)
    compiled = next(i for i, step in enumerate(steps) if "compileall" in step)
    assert 1 < touch < compiled < len(steps) - 1
    assert "NUMBA_CACHE_DIR=/opt/silomix/kernels" in " ".join(STAGES["source"].words("ENV"))


def test_the_examples_in_its_head_name_its_targets() -> None:
    head = DOCKERFILE.read_text().split("ARG BASE")[0]
    found = re.findall(r"docker build -f deploy/Dockerfile --target (\S+) -t (\S+) \.", head)
    assert found == [("slim", f"silomix:{PROJECT['version']}"), ("train", f"silomix-train:{PROJECT['version']}")]


def pins(image: str) -> dict[str, tuple[str, int]]:
    """The packages of an image: the version of each, and how many files of it may be installed."""
    text = (ROOT / "deploy" / "pins" / f"{image}.txt").read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        name, version = re.match(r"([a-z0-9-]+)==(\S+)", line).groups()  # type: ignore[union-attr]
        found[name] = (version, len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", line)))
    return found


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", name)[0]).lower()  # type: ignore[index]


@pytest.mark.parametrize(("image", "extras"), [("slim", ["traces", "traps"]), ("train", ["traces", "train", "traps"])])
def test_an_image_is_made_of_what_was_tested_and_nothing_else(image: str, extras: list[str]) -> None:
    """Every dependency but torch has its hashes, and the version of the constraints; `make pins` writes them."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    tested = {canonical(line): line.partition("==")[2] for line in lines if "==" in line}
    pinned = pins(image)
    needed = [*PROJECT["dependencies"], *(one for extra in extras for one in PROJECT["optional-dependencies"][extra])]
    assert {canonical(one) for one in needed} - {"torch"} <= pinned.keys(), "run `make pins`"
    assert "setuptools" in pinned  # builds the package itself
    for name, (version, files) in pinned.items():
        assert tested.get(name, version) == version, f"{name}: run `make pins`"
        assert files, name
    unlisted = {name for name in pinned if name not in tested} - {"setuptools"}
    assert not unlisted, f"constraints.txt lacks {unlisted}"
    assert not [name for name in pinned if name.startswith(("torch", "triton", "cuda", "nvidia"))]
    assert image == "train" or not pinned.keys() & {"scikit-learn", "opacus", "matplotlib"}


@pytest.mark.parametrize("image", ["slim", "train"])
def test_an_image_has_the_list_of_what_is_in_it(image: str) -> None:
    (run,) = STAGES[f"list-{image}"].words("RUN")
    tool, *arguments = run.split()
    assert tool == "/opt/lister/bin/cyclonedx-py"
    assert arguments[-1] == "/opt/silomix/bin/python"
    assert STAGES[f"list-{image}"].words("COPY") == [f"--from=build-{image} /opt/silomix /opt/silomix"]
    assert f"--from=list-{image} /sbom.cdx.json /opt/silomix/" in STAGES[image].words("COPY")
    assert "pip install -c constraints.txt cyclonedx-bom" in STAGES["lister"].words("RUN")[0]
    subprocess.run(
        [sys.executable, "-m", "cyclonedx_py", arguments[0], "--help"], check=True, capture_output=True, timeout=60
    )


@pytest.mark.full
def test_the_list_names_what_is_installed(tmp_path: Path) -> None:
    (run,) = STAGES["list-slim"].words("RUN")
    arguments = [{"/sbom.cdx.json": str(tmp_path / "sbom.json")}.get(word, word) for word in run.split()[1:-1]]
    subprocess.run([sys.executable, "-m", "cyclonedx_py", *arguments, sys.executable], check=True, timeout=300)
    found = json.loads((tmp_path / "sbom.json").read_text())
    assert found["bomFormat"] == "CycloneDX"
    listed = {canonical(part["name"]): part["version"] for part in found["components"]}
    assert listed.keys() >= pins("slim").keys() - {"setuptools"}
    assert all(part["purl"].startswith("pkg:pypi/") for part in found["components"] if part["name"] != "silomix")


def test_what_it_copies_makes_a_package_that_needs_no_torch(tmp_path: Path) -> None:
    """The build's own files, and no others, become a wheel; a hop starts from it where nothing for training is."""
    context, wheels = tmp_path / "src", tmp_path / "wheels"
    context.mkdir()
    for words in (rest.split() for rest in STAGES["source"].words("COPY")):
        for source in words[:-1]:
            if (ROOT / source).is_dir():
                skip = shutil.ignore_patterns("__pycache__", "*.nbi", "*.nbc", "*.egg-info")
                shutil.copytree(ROOT / source, context / source, symlinks=True, ignore=skip)
            else:
                shutil.copy(ROOT / source, context)
    build = "from setuptools import build_meta; import sys; build_meta.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(wheels)], cwd=context, check=True, capture_output=True, timeout=120
    )
    (wheel,) = wheels.glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    names = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*") if path.is_file()}
    assert names >= {"silomix/runtime/cli/entry.py", "silomix/v1/services_pb2.py", "silomix/runtime/task.py"}
    code = """
import sys
for name in ("torch", "sklearn", "opacus", "matplotlib", "PIL", "scipy"):
    sys.modules[name] = None
import silomix.runtime.nodes.shuffler, silomix.runtime.nodes.aggregator, silomix.runtime.render.k8s
from silomix.runtime.cli import main
assert silomix.runtime.nodes.shuffler.__file__.startswith(sys.argv[1]), silomix.runtime.nodes.shuffler.__file__
sys.exit(main(["plan", "--silos", "3", "--json"]))
"""
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "site")],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"rows"' in done.stdout
