"""docs/kubernetes.md: its commands run as printed, as far as they need no cluster, and its links lead somewhere."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.owners.hospitals import NODES, Hospitals
from tests.render.test_helm import helm

from silomix.runtime.cli import main
from silomix.runtime.net.names import ALIVE_PATH, READY_PATH

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "kubernetes.md").read_text()
LINES = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line
]
KUBECTL = shutil.which("kubectl") or ""


def agree(place: Path) -> None:
    """Three hospitals have made their keys and accepted a federation file, each in a directory of its name."""
    hospitals = Hospitals(place)
    hospitals.keygen(
        {
            "aggregator": "aggregator.example.org:7000",
            **{f"shuffler-{i}": f"shuffler-{i}.example.org:700{i}" for i in (1, 2)},
        }
    )
    hospitals.assemble()
    hospitals.accept(*NODES)


def test_the_commands_run_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    agree(tmp_path)
    ran = []
    for line in LINES:
        words = shlex.split(line)
        match words:
            case ["silomix", *arguments]:
                assert main(arguments) == 0, f"{line}: {capsys.readouterr().err}"
            case ["kubectl", "kustomize", *_] if KUBECTL:
                built = subprocess.run([KUBECTL, *words[1:]], capture_output=True, text=True, timeout=60, check=False)
                assert built.returncode == 0, built.stderr
                kinds = {document["kind"] for document in yaml.load_all(built.stdout, yaml.CSafeLoader)}
                assert "PodMonitor" not in kinds  # a cluster without that CRD would refuse the whole of it
            case ["kubectl", "create", "secret", *rest]:
                files = [word.partition("=")[2] for word in rest if word.startswith("--from-file=")]
                assert files
                assert all((tmp_path / file).is_file() for file in files)
            case ["helm", "install", *rest]:
                done = helm("template", *rest)
                assert done.returncode == 0, done.stderr
                assert re.search(r"secret: \{name: silo-02-keys\}", done.stdout)
            case ["kubectl", "apply" | "patch" | "delete" | "wait" | "-n", *_] | ["kubectl", "kustomize", *_]:
                continue
            case _:
                pytest.fail(f"nobody checks this command: {line}")
        ran.append(words[0])
    assert {"silomix", "helm"} <= set(ran)


def test_volumes_pods_and_probes_are_called_what_the_page_calls_them() -> None:
    for claim in re.findall(r"patch pvc (\S+)", TEXT):
        assert claim == "state-aggregator-0"  # the template's name, the StatefulSet's, the pod's number
    assert f"`{ALIVE_PATH}`" in TEXT
    assert f"`{READY_PATH}`" in TEXT


def test_links_into_other_pages_have_their_anchors() -> None:
    for page, anchor in re.findall(r"\]\(([\w.]+)#([^)]+)\)", TEXT):
        heads = re.findall(r"^#+ (.+)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}, anchor
