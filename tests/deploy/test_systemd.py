"""The systemd units: they verify, they start commands that exist, and they leave a node little to do harm with."""

import errno
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from silomix.runtime.cli import make_parser
from silomix.runtime.cli.exits import LASTING, code_of
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import Passing, PeerFault, Reason, RunError, UserError

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
ROLES = ["aggregator", "shuffler", "silo"]
MOST_EXPOSED = 1.5
"""What `systemd-analyze security` may find, of 10: a plain unit has 9.6, and these 1.3."""


ANALYZE = shutil.which("systemd-analyze") or ""
needs_systemd = pytest.mark.skipif(not ANALYZE, reason="systemd is not installed")


def unit(role: str) -> Path:
    return UNITS / f"silomix-{role}@.service"


def settings(role: str) -> dict[str, list[str]]:
    """Every setting of a unit, by section and name."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in unit(role).read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert equals, line
            found.setdefault(f"{section}.{name}", []).append(value)
    return found


@pytest.mark.parametrize("role", ROLES)
def test_a_unit_starts_its_role_from_the_nodes_directory(role: str) -> None:
    (start,) = settings(role)["Service.ExecStart"]
    executable, *arguments = start.split()
    assert executable == "/opt/silomix/bin/silomix"
    args = make_parser().parse_args(arguments)
    assert (args.role, args.config) == (role, Path("/var/lib/silomix/%i"))
    assert settings(role)["Service.StateDirectory"] == ["silomix/%i/state"]  # as node.toml has it: "state"


@pytest.mark.parametrize("role", ROLES)
def test_a_node_is_started_again_unless_that_would_change_nothing(role: str) -> None:
    assert settings(role)["Service.Restart"] == ["on-failure"]
    (left_alone,) = settings(role)["Service.RestartPreventExitStatus"]
    assert {int(code) for code in left_alone.split()} == set(LASTING)
    for error in (
        Passing("x"),
        OSError(errno.ENOSPC, "x"),
        PeerFault(Reason.WRONG_FEDERATION, "x"),
        ZeroDivisionError(),
    ):
        assert code_of(error) not in LASTING
    for lasting in (RunError("x"), UserError("x"), ConfigError(Path("node.toml"), "name", "x")):
        assert code_of(lasting) in LASTING


@needs_systemd
@pytest.mark.parametrize("role", ROLES)
def test_a_unit_verifies(role: str, tmp_path: Path) -> None:
    copy = tmp_path / unit(role).name
    copy.write_text(unit(role).read_text().replace("/opt/silomix/bin/silomix", "/bin/true"))
    done = subprocess.run([ANALYZE, "verify", str(copy)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    copy.write_text(copy.read_text().replace("NoNewPrivileges", "NoNewPrivilege"))  # it can fail
    done = subprocess.run([ANALYZE, "verify", str(copy)], capture_output=True, text=True, timeout=60, check=False)
    assert "NoNewPrivilege" in done.stderr


@needs_systemd
@pytest.mark.parametrize("role", ROLES)
def test_a_unit_is_locked_down(role: str) -> None:
    done = subprocess.run(
        [ANALYZE, "security", "--offline=true", "--no-pager", str(unit(role))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    exposure = re.search(r"Overall exposure level for \S+ ([0-9.]+)", done.stdout)
    assert exposure is not None, done.stdout + done.stderr
    assert float(exposure[1]) <= MOST_EXPOSED


def test_the_roles_differ_in_nothing_but_what_they_must() -> None:
    hop = settings("shuffler")
    for role in ("aggregator", "silo"):
        different = {name for name in hop.keys() | settings(role).keys() if hop.get(name) != settings(role).get(name)}
        assert different <= {"Unit.Description", "Service.ExecStart", "Service.Environment"}


def test_the_user_of_the_units_is_made() -> None:
    (line,) = (line for line in (UNITS / "silomix.sysusers").read_text().splitlines() if not line.startswith("#"))
    kind, name, *_, home = line.split()
    assert (kind, name, home) == ("u", "silomix", "/var/lib/silomix")
    for role in ROLES:
        assert settings(role)["Service.User"] == settings(role)["Service.Group"] == [name]
