"""A host for each owner on one machine: its own network, its own /etc, /opt, /tmp and /var/lib, and no systemd.

Every command runs in the network namespace of its host and in a mount namespace of its own, in a checkout of this
repository, with what the commands before it have exported. Units are enabled by systemctl itself, which can do that
offline. What PID 1 would do then is done here, as far as a unit's command, user, environment and directories go.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from tests.system.namespaces import Network
from tests.tools import program

ROOT = Path(__file__).parents[2]
OWN = ("etc", "opt", "tmp", "var/lib", "var/cache")
SHARED = ("opt", "var/cache")
"""What is the same on all hosts: to install and to compile once is enough."""
LEFT_OUT = shutil.ignore_patterns(
    ".*cache*", ".venv", ".git", ".hypothesis", "build", "dist", "*.egg-info", "__pycache__"
)
COMMAND_S = 300.0
OFFLINE = {
    "SYSTEMD_OFFLINE": "1",
    "PIP_NO_INDEX": "1",
    "PIP_NO_DEPS": "1",
    "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it as the option's value: no isolation
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
"""Lets systemctl do without PID 1, and pip without a network."""


def until(happens: Callable[[], bool], what: str, wait_s: float = COMMAND_S, explain: Callable[[], str] = str) -> None:
    """Wait for something, and fail with what it was."""
    end = time.monotonic() + wait_s
    while not happens():
        assert time.monotonic() < end, f"{what}: it never came. {explain()}"
        time.sleep(0.2)


def keep_kernels(cache: Path, installed: str) -> None:
    """Put the kernels that `make warm` has compiled where a node of that installation looks for them."""
    kernels = ROOT / "runtime" / "core" / "numbers"
    place = cache / f"{kernels.name}_{hashlib.sha1(f'{installed}/{kernels.relative_to(ROOT)}'.encode()).hexdigest()}"
    place.mkdir(parents=True)
    for file in (kernels / "__pycache__").glob("*.nb[ic]"):
        shutil.copy(file, place)


class Host:
    """An owner's host."""

    def __init__(self, place: Path, name: str, network: Network, shared: Path) -> None:
        """Nothing is installed yet."""
        self.place, self.name, self.network = place, name, network
        self.checkout = place / "checkout"
        shutil.copytree(ROOT, self.checkout, symlinks=True, ignore=LEFT_OUT)
        for own in OWN:
            where = self.disk(own, shared)
            if own == "etc":
                shutil.copytree("/etc", where, symlinks=True, ignore=shutil.ignore_patterns("*.lock"))
            else:
                where.mkdir(parents=True, exist_ok=True)
        (self.disk("var/lib", shared) / "softhsm" / "tokens").mkdir(parents=True)
        (place / "tmp").chmod(0o1777)
        (place / "bin").mkdir()
        (place / "bin" / "python3.11").symlink_to(Path(sys.base_prefix) / "bin" / "python3.11")
        (place / "exported").write_text("")
        self._mounts = " && ".join(
            [*_within_reach(place.parent), *(f"mount --bind {self.disk(own, shared)} /{own}" for own in OWN)]
        )
        self.ran: list[str] = []
        self.units: dict[str, subprocess.Popen[bytes]] = {}

    def disk(self, name: str, shared: Path) -> Path:
        """Where a directory of this host really is."""
        return (shared if name in SHARED else self.place) / name

    @property
    def home(self) -> Path:
        """What the host sees as /var/lib/silomix."""
        return self.place / "var" / "lib" / "silomix"

    def knows(self, addresses: dict[str, str]) -> None:
        """Let names resolve here."""
        etc = self.place / "etc"
        with (etc / "hosts").open("a") as file:
            file.writelines(f"{address} {name}\n" for name, address in addresses.items())
        (etc / "resolv.conf").unlink(missing_ok=True)
        (etc / "resolv.conf").write_text(
            "nameserver 127.0.0.1\n"
        )  # where nobody is: asked for more, it says so at once

    # Commands

    def run(self, command: str, typed: str = "", code: int = 0) -> str:
        """Run a command as it is printed, with a terminal on which somebody types, and return all that it says."""
        self.ran.append(command)
        return self.do(command, typed, code)

    def shows(self, command: str, what: str) -> str:
        """Run a command as it is printed until it is well and shows something: at first it may be too early."""
        self.ran.append(command)
        last = ""

        def shown() -> bool:
            nonlocal last
            last = self.do(f"{command} || echo not well")
            return what in last and "not well" not in last

        until(shown, f"{command}: {what}", explain=lambda: last + self.last_words())
        return last

    def last_words(self) -> str:
        """What the units said last, for a failure."""
        return "".join(f"\n--- {unit}\n{self.said(unit)[-1500:]}" for unit in self.units)

    def do(self, command: str, typed: str = "", code: int = 0) -> str:
        """Do something that is on no page."""
        master, slave = os.openpty()
        try:
            os.write(master, f"{typed}\n".encode())
            done = subprocess.run(
                self._shell(f"{command}\ncode=$?; export -p > {self.place}/exported; exit $code"),
                stdin=slave,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_S,
                env=self._env(),
                check=False,
            )
        finally:
            os.close(master)
            os.close(slave)
        assert done.returncode == code, f"{self.name}: {command}: {done.returncode}, not {code}: {done.stdout[-3000:]}"
        return done.stdout

    def start(self, command: str, log: str, user: str = "") -> subprocess.Popen[bytes]:
        """Start a command that runs until it is stopped; what it says goes to a file."""
        if not user:
            self.ran.append(command)
        become = f"setpriv --reuid={user} --regid={user} --clear-groups --no-new-privs " if user else ""
        with (self.place / f"{log}.log").open("ab") as out:
            return subprocess.Popen(
                self._shell(f"exec {become}{command}"),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._env(),
            )

    def said(self, log: str) -> str:
        """What a command has said that was started."""
        return (self.place / f"{log}.log").read_text(errors="replace")

    def _shell(self, script: str) -> list[str]:
        inside = f"{self._mounts} && cd {self.checkout} && . {self.place}/exported || exit 99\n{script}"
        where = [program("ip"), "netns", "exec", self.network.namespace(self.name)]
        return [*where, program("unshare"), "--mount", "sh", "-c", inside]

    def _env(self) -> dict[str, str]:
        return {
            "PATH": f"{self.place}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            **OFFLINE,
        }

    # What PID 1 would do

    def boot(self, *units: str) -> None:
        """Start units as they are installed on this host: command, user, environment, directories."""
        for unit in units:
            template, _, instance = unit.partition("@")
            file = self.place / "etc" / "systemd" / "system" / f"{template}@.service"
            pairs = [line.split("=", 1) for line in file.read_text().splitlines() if "=" in line and line[0] != "#"]
            said = {key: value.replace("%i", instance) for key, value in pairs}
            for key, top in (("StateDirectory", "/var/lib"), ("CacheDirectory", "/var/cache")):
                where, mode = shlex.quote(f"{top}/{said[key]}"), said[f"{key}Mode"]
                own = f"{said['User']}:{said['Group']}"
                self.do(f"mkdir -p {where} && chmod {mode} {where} && chown -R {own} {where}")
            environment = shlex.join(["env", *shlex.split(said["Environment"])])
            self.units[unit] = self.start(f"{environment} {said['ExecStart']}", unit, said["User"])

    def halt(self) -> None:
        """Stop all units as PID 1 would; each ends in order."""
        gone, self.units = self.units, {}
        for process in gone.values():
            process.terminate()
        for unit, process in gone.items():
            code = process.wait(timeout=60)
            assert code == 0, f"{unit} ended with {code}: {self.said(unit)[-3000:]}"

    def close(self) -> None:
        """End whatever still runs."""
        for process in self.units.values():
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()


def _within_reach(place: Path) -> Iterable[str]:
    """Let a user who is not root reach what tests are run from, wherever that is: where a folder above it is closed to
    others, put an open one over it that has nothing else in it.
    """
    wanted = {Path(sys.base_prefix), *packages(), place}
    closed = {above for path in wanted for above in path.parents if not above.stat().st_mode & 0o001}
    for top in sorted(above for above in closed if not any(higher in closed for higher in above.parents)):
        inside = sorted(path for path in wanted if path.is_relative_to(top))
        for number, path in enumerate(inside):
            yield f"mkdir -p {place}/reach/{number} && mount --bind {path} {place}/reach/{number}"
        yield f"mount -t tmpfs -o mode=755 none {top}"
        for number, path in enumerate(inside):
            yield f"mkdir -p {path} && mount --bind {place}/reach/{number} {path}"


def packages() -> list[Path]:
    """Where the packages are that these tests run with."""
    return [Path(path) for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
