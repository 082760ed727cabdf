"""A federation that `init` wrote, to read from and to spoil."""

from pathlib import Path
from shutil import copytree

import pytest
from tests.config.written import POLICY, SHUFFLERS, SILOS

from silomix.runtime.config.owners.trial import init


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation with a CA that no test writes to."""
    directory = tmp_path_factory.mktemp("made") / "federation"
    init(
        directory,
        SILOS,
        SHUFFLERS,
        name="demo",
        policy=POLICY,
        ca=True,
        silo_options=lambda index: {"partition": index},
    )
    return directory


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    """A federation of the test's own."""
    return copytree(made, tmp_path / "federation")
