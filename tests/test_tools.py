"""What tests do without a program that they need: they are skipped and say why, and fail where CI=true."""

import pytest
from tests import tools


def test_a_program_that_is_there_is_found() -> None:
    tools.PACKAGES.setdefault("sh", "dash")
    assert tools.program("sh").endswith("/sh")


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_program_that_is_missing(monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setitem(tools.PACKAGES, "no-such-program", "no-such-package")
    with pytest.raises(outcome, match="apt-get install no-such-package"):
        tools.program("no-such-program")


def test_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(pytest.skip.Exception, match="root"):
        tools.root()
