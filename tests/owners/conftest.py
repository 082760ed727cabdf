"""Three hospitals that have all agreed, to read from and to spoil."""

from pathlib import Path
from shutil import copytree

import pytest
from tests.owners.hospitals import SERVERS, Hospitals


@pytest.fixture(scope="session")
def agreed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation that no test writes to."""
    place = tmp_path_factory.mktemp("agreed")
    made = Hospitals(place)
    made.keygen({name: f"127.0.0.1:{7000 + i}" for i, name in enumerate(SERVERS)})
    made.assemble("--rounds", 3)
    made.accept()
    return place


@pytest.fixture
def hospitals(agreed: Path, tmp_path: Path) -> Hospitals:
    """A federation of the test's own."""
    found = Hospitals.__new__(Hospitals)
    found.place = copytree(agreed, tmp_path / "place")
    found.mail = found.place / "mail"
    return found
