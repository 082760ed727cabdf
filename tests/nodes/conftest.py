"""What tests of nodes share."""

from pathlib import Path

import pytest
from tests.nodes.leads import home_of_an_aggregator, two_rounds_in

from silomix.runtime.nodes import aggregator


@pytest.fixture(autouse=True)
def _short_farewells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody watches the status here, and every federation would wait for whoever does."""
    monkeypatch.setattr(aggregator, "FAREWELL_S", 0.2)


@pytest.fixture(scope="session")
def _two_rounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation whose rounds are over: it takes seconds, so there is one for all tests."""
    directory = tmp_path_factory.mktemp("two-rounds") / "f"
    two_rounds_in(directory)
    return directory


@pytest.fixture
def led(_two_rounds: Path, tmp_path: Path) -> Path:
    """The home of an aggregator that has led two rounds, for one test."""
    return home_of_an_aggregator(_two_rounds, tmp_path / "led")
