"""Every path of a federation stands once: `init` and the nodes use it, and no other module spells it."""

import ast
from pathlib import Path

import pytest
from tests.nodes.federations import make

from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import load_node
from silomix.runtime.local import InProcess
from silomix.runtime.store import home
from silomix.runtime.store.home import CAPTURE_DIRECTORY, Home

ROOT = Path(__file__).parents[2]
SOURCES = [p for room in ("runtime", "models", "attacks") for p in sorted((ROOT / room).rglob("*.py"))]
NAMES = {
    *(home.FEDERATION_FILE, home.ANCHOR_FILE, home.ANCHOR_KEY_FILE, home.NODE_FILE, home.IDENTITY_FILE),
    *(
        home.CERTIFICATE_FILE,
        home.INITIAL_MODEL,
        home.OWNER_KEY_FILE,
        "journal.sqlite",
        "last-body.json",
        "log.txt",
        "frozen",
        "spool",
    ),
}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_module_spells_a_path(path: Path) -> None:
    if path == Path(home.__file__).resolve():
        return
    joined = [
        part.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
        for part in (node.left, node.right)
        if isinstance(part, ast.Constant)
    ]
    assert not NAMES & set(joined)


async def test_a_federation_is_arranged_as_home_says(tmp_path: Path) -> None:
    settings = {role: {"capture": CAPTURE_DIRECTORY} for role in Role}
    settings[Role.SILO]["keep_updates"] = True  # type: ignore[assignment]
    made = make(tmp_path, 3, 1, settings=settings)
    async with InProcess(tmp_path) as federation:
        await federation.finished()
    assert (tmp_path / home.FEDERATION_FILE).is_file()
    assert (tmp_path / home.OWNER_KEY_FILE).is_file()
    assert (tmp_path / f"operator{home.ACCEPTED}").is_file()
    for name in made.members:
        node = Home(tmp_path / name)
        assert node.file.is_file()
        assert (tmp_path / f"{name}{home.PIN}").is_file()
        assert (node.directory / f"{name}{home.ENROLMENT}").is_file()
        assert node.state == load_node(node.directory).state
        assert node.state.journal.is_file()
        assert node.capture.is_dir()
    aggregator, silo = Home(tmp_path / "aggregator"), Home(tmp_path / "silo-01")
    assert aggregator.initial_model.is_file()
    assert len(list(aggregator.state.models.iterdir())) == 1
    assert Home(tmp_path / "shuffler-1").state.spool.is_dir()
    assert silo.state.updates() == {1: silo.state.update(1)}
    assert silo.state.last_body.is_file()
    assert len(list(silo.state.frozen.iterdir())) == 1
