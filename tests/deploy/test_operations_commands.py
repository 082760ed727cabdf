"""Every command of docs/operations.md: run as printed, on a host of its own, or listed here with where it is shown."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tools import missing, program, root

from silomix.runtime.cli.entry import make_parser
from silomix.runtime.config.load import load_federation, load_node
from silomix.runtime.config.owners.epochs import read_proposal
from silomix.runtime.core.protocol.epochs import check_successor

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "operations.md").read_text()
BLOCKS: list[str] = re.findall(r"^```sh\n(.*?)^```", TEXT, re.M | re.S)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]

ELSEWHERE = {
    "python3.11 -m venv": "installs from the network: tests/test_wheel.py installs into an environment of its own",
    "/opt/silomix/bin/pip": "the same",
    "install -D": "tests/deploy/test_systemd.py reads these files, and there is no systemd here",
    "systemd-sysusers": "the same",
    "cp deploy/systemd": "the same",
    "systemctl": "the same: the units name the command that is run by hand in other tests",
    "journalctl": "the same",
    "export PATH": "of the shell that goes on; here PATH is set",
    "chown -R silomix": "there is no such user here",
    "silomix check": "tests/owners/test_check.py, since it trains and compiles",
    "silomix health": "needs nodes that run: tests/observe/test_health.py",
    "silomix status": "the same: tests/system/test_processes.py",
    "silomix pause": "the same: tests/nodes/test_pause.py",
    "silomix resume": "the same",
    "silomix shuffler": "runs until it is stopped: tests/owners/test_hospitals.py, on three hosts",
    "silomix aggregator": "the same",
    "silomix init deploy/fed": "tests/render/test_compose.py, which compares deploy/compose.yaml with what is written",
    "silomix render compose": "the same",
    "silomix warm": "compiles for minutes: `make test` begins with it",
    "mkdir -p /etc/prometheus": "tests/dashboard runs Prometheus with these files",
    "cp -r deploy/prometheus": "the same",
    "echo '- targets": "the same",
    "prometheus": "the same",
    "silomix dashboard": "the same",
}
"""Commands that do not run here, by how they begin: why, and where what they do is shown."""
OWNERS = {"a": ("aggregator", "silo-01"), "b": ("shuffler-1", "silo-02"), "c": ("shuffler-2", "silo-03")}


def elsewhere(command: str) -> bool:
    return any(command.startswith(start) for start in ELSEWHERE)


def printed(start: str) -> str:
    """The one command of the page that begins like this, whole."""
    found = dict.fromkeys(command for command in COMMANDS if command.startswith(start))
    assert len(found) == 1, f"{start}: {list(found)}"
    return next(iter(found))


def test_every_command_that_does_not_run_here_is_on_the_page_and_every_silomix_command_parses() -> None:
    for start in ELSEWHERE:
        assert any(command.startswith(start) for command in COMMANDS), f"no command begins with {start!r} any more"
    parser = make_parser()
    assert isinstance(parser, argparse.ArgumentParser)
    for command in COMMANDS:
        words = shlex.split(command)
        if words[0] == "silomix":
            parser.parse_args(words[1:])  # exits if an option is gone or a value is refused


class Host:
    """A hospital's host: /var/lib, /etc, /tmp and /opt are its own, in a mount namespace for each command."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("var/lib/silomix", "var/lib/softhsm/tokens", "tmp", "opt", "mail"):
            (place / name).mkdir(parents=True)
        shutil.copytree("/etc", place / "etc", symlinks=True, ignore=shutil.ignore_patterns("*.lock"))
        tools = place / "opt" / "silomix" / "bin"
        tools.mkdir(parents=True)
        (tools / "silomix").write_text(f'#!/bin/sh\nexec {sys.executable} -m silomix.runtime.cli "$@"\n')
        (tools / "silomix").chmod(0o755)
        self.ran: list[str] = []

    @property
    def home(self) -> Path:
        """What the host sees as /var/lib/silomix."""
        return self.place / "var" / "lib" / "silomix"

    def run(self, command: str, typed: str = "") -> str:
        """Run a command as it is printed, with a terminal on which somebody types."""
        self.ran.append(command)
        binds = " && ".join(f"mount --bind {self.place}/{name} /{name}" for name in ("var/lib", "etc", "tmp", "opt"))
        paths = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        env = {**os.environ, "PATH": f"/opt/silomix/bin:{paths}", "PYTHONPATH": f"{ROOT / '.src'}:{ROOT}"}
        master, slave = os.openpty()
        try:
            os.write(master, f"{typed}\n".encode())
            done = subprocess.run(
                [program("unshare"), "--mount", "sh", "-c", f"{binds} && cd {self.place / 'mail'} && {command}"],
                stdin=slave,
                capture_output=True,
                text=True,
                timeout=300,
                env=env,
                check=False,
            )
        finally:
            os.close(master)
            os.close(slave)
        assert done.returncode == 0, f"{command}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
        return done.stdout


@pytest.fixture
def hosts() -> Iterator[dict[str, Host]]:
    root()
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))  # outside /tmp, which each host has for itself
    try:
        yield {name: Host(place / f"hospital-{name}") for name in OWNERS}
    finally:
        shutil.rmtree(place)


@pytest.mark.full
def test_what_owners_do_runs_as_printed_on_three_hosts(hosts: dict[str, Host]) -> None:
    a, b, c = hosts.values()
    for name, nodes in OWNERS.items():
        for node in nodes:
            hosts[name].run(printed(f"silomix keygen /var/lib/silomix/{node} "))
            shutil.copy(hosts[name].home / node / f"{node}.enrol", a.place / "mail")
    a.run(printed("silomix assemble /tmp/hospitals "))
    assembled = a.place / "tmp" / "hospitals"
    digits = load_federation(assembled).digest.hex()[:8]
    for host in hosts.values():
        for file in (assembled / "federation.toml", *assembled.glob("*.pin")):
            shutil.copy(file, host.home)
    accept = "silomix accept /var/lib/silomix"
    assert accept in COMMANDS
    for host in hosts.values():
        assert "Type the first 8 digits" in host.run(accept, digits)
    signed = [file for host in hosts.values() for file in host.home.glob("*.accepted")]
    assert len(signed) == len(hosts)
    for host in hosts.values():
        for file in signed:
            if file.parent != host.home:
                shutil.copy(file, host.home)
    a.run(printed("silomix model init "))

    # A certificate is changed, and another host takes the pin in.
    rotate = "silomix rotate --config /var/lib/silomix/silo-02"
    assert rotate in COMMANDS
    before = (b.home / "silo-02" / "tls.pem").read_bytes()
    b.run(rotate)
    b.run(printed(f"{rotate} --finish"))
    assert (b.home / "silo-02" / "tls.pem").read_bytes() != before
    shutil.copy(b.home / "silo-02" / "state" / "pins" / "silo-02.pin", a.place / "mail")
    assert "silo-02 is known by certificate number 3" in a.run(printed("silomix rotate --config /var/lib/silomix/aggr"))

    # The next epoch.
    b.run(printed("silomix assemble /var/lib/silomix/epochs/2 "))
    place = b.home / "epochs" / "2"
    new = load_federation(place)
    assert "policy.rounds: 20 -> 40" in b.run(printed("silomix accept /var/lib/silomix/epochs/2"), new.digest.hex()[:8])
    shutil.copytree(place, c.home / "epochs" / "2")
    c.run(printed("silomix accept /var/lib/silomix/epochs/2"), new.digest.hex()[:8])
    old = load_federation(b.home)
    check_successor(new, old, {**read_proposal(place).accepted, **read_proposal(c.home / "epochs" / "2").accepted})

    # An identity in a token, and what needs no host at all.
    program("softhsm2-util")
    if not Path("/usr/lib/softhsm/libsofthsm2.so").is_file():
        missing("libsofthsm2.so is not where Debian has it")
    for start in ("softhsm2-util", "echo 271828", "chmod 600", "silomix keygen /var/lib/silomix/silo-05 "):
        b.run(printed(start))
    assert not (b.home / "silo-05" / "identity.key").exists()
    for start in ("silomix plan", "silomix capacity"):
        a.run(printed(start))
    for host, node in ((a, "aggregator"), (b, "shuffler-1"), (b, "silo-02"), (c, "silo-03")):
        assert load_node(host.home / node).name == node

    ran = {command for host in hosts.values() for command in host.ran}
    left = [command for command in COMMANDS if command not in ran and not elsewhere(command)]
    assert not left, f"neither run here nor listed: {left}"
