"""What tests of nodes share."""

import pytest

from silomix.runtime.nodes import aggregator


@pytest.fixture(autouse=True)
def _short_farewells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody watches the status here, and every federation would wait for whoever does."""
    monkeypatch.setattr(aggregator, "FAREWELL_S", 0.2)
