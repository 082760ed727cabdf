"""Every command of docs/operations.md runs as it is printed, on three owners' hosts."""

import argparse
import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.deploy.hosts import ROOT, Host, keep_kernels, packages, until
from tests.system.namespaces import Network
from tests.tools import missing, program

from silomix.runtime.cli.entry import make_parser
from silomix.runtime.config.load import load_federation

TEXT = (ROOT / "docs" / "operations.md").read_text()
BLOCKS: list[str] = re.findall(r"^```sh\n(.*?)^```", TEXT, re.M | re.S)
INLINE = ("silomix digest /var/lib/silomix", "silomix init fed --silos 3 --shufflers 2")
"""Commands in the text that are whole; the others there have placeholders."""
COMMANDS = [*(line for block in BLOCKS for line in block.splitlines()), *INLINE]

RUN = (
    *("python3.11 -m venv", "/opt/silomix/bin/pip", "install -D", "systemd-sysusers", "cp deploy/systemd/"),
    *("systemctl daemon-reload", "systemctl enable --now", "systemctl stop", "systemctl start", "journalctl"),
    *("export PATH", "chown -R", "softhsm2-util", "echo 271828", "chmod 600"),
    *("silomix keygen", "silomix assemble", "silomix accept", "silomix digest", "silomix model init"),
    *("silomix check", "silomix health", "silomix status", "silomix pause", "silomix resume", "silomix rotate"),
    *("silomix shuffler", "silomix aggregator", "silomix init", "silomix render compose", "silomix warm"),
    *("silomix plan", "silomix capacity", "silomix dashboard"),
    *("mkdir -p /etc/prometheus", "cp -r deploy/prometheus", "echo '- targets", "prometheus"),
)
"""How the commands begin that the long test runs. It looks at the end whether it has run them all."""
PARTLY = {
    "/opt/silomix/bin/pip": "installs silomix from the checkout; what it depends on comes from these tests' packages, "
    "since nothing goes to the network (tests/test_wheel.py and `make test` install from an index)",
    "systemctl daemon-reload": "systemd is not PID 1 here: offline, there is nothing to reload",
    "systemctl enable --now": "enables the units offline, and says that it cannot start them; the test does what the "
    "units say (test_systemd.py has `systemd-analyze verify`, and how far they are locked down)",
    "systemctl stop": "the same: parsed offline, and the test stops what it has started",
    "systemctl start": "the same",
    "journalctl": "runs, and finds no journal: nobody writes one; the lines are looked for in what the node says",
}
"""What cannot be had of a command in a network namespace, with the reason. Every other one does all that it does."""
SITE = "/opt/silomix/lib/python3.11/site-packages"
NO_PID_1 = "System has not been booted with systemd as init system"
ROUNDS_LATER = 40
OWNERS = {"a": ("aggregator", "silo-01"), "b": ("shuffler-1", "silo-02"), "c": ("shuffler-2", "silo-03")}
REACHED: dict[str, tuple[str, int]] = {
    owner.lower(): (name, int(port))
    for owner, name, port in re.findall(r"^\| hospital ([A-C]) \| .*? \| `(.*?)` \| TCP (\d+) \|$", TEXT, re.M)
}
"""The table at the head of the page: which name each hospital is reached at, and what its firewall lets in."""


def printed(start: str) -> str:
    """The one command of the page that begins like this, whole."""
    found = dict.fromkeys(command for command in COMMANDS if command.startswith(start))
    assert len(found) == 1, f"{start}: {list(found)}"
    return next(iter(found))


STATUS = printed("silomix status --config /var/lib/silomix/aggregator")


def block(start: str) -> list[str]:
    """The lines of the one block that begins like this."""
    [found] = [block for block in BLOCKS if block.startswith(start)]
    return found.splitlines()


def test_the_long_test_knows_every_command_of_the_page_and_every_silomix_command_parses() -> None:
    unknown = [command for command in COMMANDS if not command.startswith(RUN)]
    assert not unknown, f"have the long test run them, and add how they begin to RUN: {unknown}"
    for start in (*RUN, *PARTLY):
        assert any(command.startswith(start) for command in COMMANDS), f"no command begins with {start!r} any more"
    for command in INLINE:
        assert f"`{command}`" in TEXT
    assert REACHED.keys() == OWNERS.keys()
    parser = make_parser()
    assert isinstance(parser, argparse.ArgumentParser)
    for command in COMMANDS:
        words = shlex.split(command)
        if words[0] == "silomix":
            parser.parse_args(words[1:])  # exits if an option is gone or a value is refused


@pytest.fixture
def hosts() -> Iterator[dict[str, Host]]:
    for needed in ("prometheus", "softhsm2-util", "systemctl", "systemd-sysusers"):
        program(needed)
    if not Path("/usr/lib/softhsm/libsofthsm2.so").is_file():
        missing("libsofthsm2.so is not where Debian has it")
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))  # outside /tmp, which each host has for itself
    place.chmod(0o755)
    made: dict[str, Host] = {}
    try:
        keep_kernels(place / "shared" / "var" / "cache" / "silomix", f"{SITE}/silomix")
        with Network(OWNERS) as network:
            network.allow((x, y, port) for x in OWNERS for y, (_, port) in REACHED.items() if x != y)
            for name in OWNERS:
                made[name] = Host(place / f"hospital-{name}", name, network, place / "shared")
                made[name].knows({reached: network.address(y) for y, (reached, _) in REACHED.items()})
            try:
                yield made
            finally:
                for host in made.values():
                    host.close()
    finally:
        shutil.rmtree(place)


def install(hosts: dict[str, Host], place: Path) -> None:
    """Section 1 of the page on every host; /opt is the same for all, so that its first two lines run on one."""
    lines = block("python3.11 -m venv")
    for host in hosts.values():
        for line in lines:
            if line.startswith(("python3.11", "/opt/")) and host is not hosts["a"]:
                continue
            host.run(line)
            if line.startswith("python3.11"):  # what an index would bring
                site = place / SITE.removeprefix("/opt/")
                for old in site.glob("setuptools*"):
                    shutil.rmtree(old)
                (site / "here.pth").write_text("\n".join(map(str, packages())))


def found_by_check(said: str) -> dict[str, bool]:
    """What `check` looked at, and whether it was well."""
    return {what.strip(): word == "ok" for word, what in re.findall(r"^(ok|FAIL) +(\S+(?: \S+)*?)  ", said, re.M)}


@pytest.mark.full
def test_every_command_of_the_page_runs_as_printed_on_three_hosts(hosts: dict[str, Host]) -> None:
    a, b = hosts["a"], hosts["b"]
    install(hosts, a.place.parent / "shared" / "opt")
    make_federation(hosts)
    start_and_see(hosts)
    hold(hosts)
    watch(a)
    change_certificate_and_epoch(hosts)
    applied = upgrade(b)
    for line in ("silomix plan", "silomix capacity", "silomix warm"):
        a.run(printed(line))
    end(hosts, applied)
    on_one_machine(a)
    in_a_token(b)

    ran = {command for host in hosts.values() for command in host.ran}
    assert not [command for command in COMMANDS if command not in ran]
    assert not (ran - set(COMMANDS)), "the page has nothing like this"


def make_federation(hosts: dict[str, Host]) -> None:
    """Steps 2 to 6."""
    a = hosts["a"]
    for name, nodes in OWNERS.items():
        for node in nodes:
            hosts[name].run(printed(f"silomix keygen /var/lib/silomix/{node} "))
            shutil.copy(hosts[name].home / node / f"{node}.enrol", a.checkout)
    a.run(printed("silomix assemble /tmp/hospitals "))
    assembled = a.place / "tmp" / "hospitals"
    digits = load_federation(assembled).digest.hex()[:8]
    for host in hosts.values():
        for file in (assembled / "federation.toml", *assembled.glob("*.pin")):
            shutil.copy(file, host.home)
        assert "Type the first 8 digits" in host.run("silomix accept /var/lib/silomix", digits)
    assert "hospital-c has not accepted it" in a.run(INLINE[0])
    signed = [file for host in hosts.values() for file in host.home.glob("*.accepted")]
    assert len(signed) == len(hosts)
    for host in hosts.values():
        for file in signed:
            if file.parent != host.home:
                shutil.copy(file, host.home)
    a.run(printed("silomix model init "))
    for host in hosts.values():
        host.run(printed("chown -R"))
        assert (host.home / "owner.key").stat().st_uid == 0, "the user that runs nodes can agree in the owner's name"
    # Nobody runs yet: all that is not well is that peers do not answer.
    found = found_by_check(hosts["b"].run(printed("silomix check"), code=1))
    assert found.keys() == found_by_check(TEXT).keys()
    assert {what for what, well in found.items() if not well} == {"peer aggregator", "peer shuffler-1"}


def start_and_see(hosts: dict[str, Host]) -> None:
    """Steps 6 to 8: each host runs its own line of the block."""
    lines = block("systemctl enable --now silomix-aggregator@aggregator")
    for host, line in zip(hosts.values(), lines, strict=True):
        said = host.run(line, code=1)
        assert NO_PID_1 in said
        units = line.split()[3:]
        for unit in units:
            assert f"multi-user.target.wants/{unit}.service" in said
        host.boot(*units)
    b = hosts["b"]
    health = printed("silomix health")
    b.shows(health, "shuffler-1 at 127.0.0.1:7001: SERVING")
    assert "No journal files" in b.run(printed("journalctl"))
    for word in ("trained", "submitted"):
        until(lambda w=word: w in b.said("silomix-silo@silo-02"), word, explain=lambda: everything(hosts))  # type: ignore[misc]


def hold(hosts: dict[str, Host]) -> None:
    """A pause, before the few rounds are over; all is well in it."""
    a, b, _ = hosts.values()
    a.run(printed("silomix pause"))
    a.shows(STATUS, "paused")
    status = printed("silomix status --config /var/lib/silomix/silo-02")
    assert re.search(r"chain: shuffler-1 \w+ -> shuffler-2 \w+", b.shows(status, "3 silos present"))
    assert all(found_by_check(b.run(printed("silomix check"))).values())


def watch(a: Host) -> None:
    """Prometheus as the page has it, and the dashboard."""
    for start in ("mkdir -p /etc/prometheus", "cp -r deploy/prometheus", "echo '- targets"):
        a.run(printed(start))
    prometheus = a.start(printed("prometheus"), "prometheus")
    try:
        ask = (
            "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:9090/api/v1/targets').read().decode())"
        )
        until(
            lambda: '"health":"up"' in a.do(f'python3.11 -c "{ask}" || true'),
            "it scrapes",
            explain=lambda: a.said("prometheus"),
        )
        a.run(printed("silomix dashboard"))
        assert (a.checkout / "federation.png").read_bytes().startswith(b"\x89PNG")
    finally:
        prometheus.terminate()
        assert prometheus.wait(timeout=60) == 0


def change_certificate_and_epoch(hosts: dict[str, Host]) -> None:
    """During the pause a certificate changes, and the owners agree on more rounds."""
    a, b, c = hosts.values()
    rotate = "silomix rotate --config /var/lib/silomix/silo-02"
    assert rotate in COMMANDS
    certificate = b.home / "silo-02" / "tls.pem"
    before = certificate.read_bytes()
    b.run(rotate)
    pin = Path("state") / "pins" / "silo-02.pin"

    # Meanwhile, the next epoch: B proposes, and A and C find it in the logs of their nodes.
    b.run(printed("silomix assemble /var/lib/silomix/epochs/2 "))
    new = load_federation(b.home / "epochs" / "2")
    digits = new.digest.hex()[:8]
    assert "policy.rounds: 20 -> 40" in b.run(printed("silomix accept /var/lib/silomix/epochs/2"), digits)
    for host, unit in ((a, "silomix-silo@silo-01"), (c, "silomix-silo@silo-03")):
        told = (
            "is signed by hospital-b: it takes 2 of the 3 owners"
            if host is a
            else "`silomix accept /var/lib/silomix/silo-03"
        )
        until(lambda h=host, u=unit, t=told: t in h.said(u), "it is told", explain=lambda: everything(hosts))  # type: ignore[misc]
        kept = f"/var/lib/silomix/{OWNERS[host.name][1]}/state/epochs/2-{new.digest.hex()[:16]}"
        host.do(f"silomix accept {kept}", digits)

    until(lambda: (c.home / "shuffler-2" / pin).is_file(), "the announced certificate is known at C too")
    b.run(printed(f"{rotate} --finish"))
    assert certificate.read_bytes() != before
    assert certificate.stat().st_uid == (b.home / "silo-02").stat().st_uid != 0
    shutil.copy(b.home / "silo-02" / pin, a.checkout)
    assert "silo-02 is known by certificate number 3" in a.run(printed("silomix rotate --config /var/lib/silomix/aggr"))

    a.run(printed("silomix resume"))
    a.shows(STATUS, f" of {ROUNDS_LATER},")


def upgrade(b: Host) -> int:
    """Install the same version once more; return how many rounds were over before."""
    log = json.loads(b.do("silomix log --config /var/lib/silomix/shuffler-1 --json"))
    for line in block("systemctl stop 'silomix-*'"):
        if line.startswith("silomix status"):
            b.shows(line, f" of {ROUNDS_LATER},")
            continue
        b.run(line)
        if line.startswith("systemctl stop"):
            b.halt()
        elif line.startswith("systemctl start"):
            b.boot(*line.split()[2:])
    return len(log["records"])


def end(hosts: dict[str, Host], before_upgrade: int) -> None:
    """A round more, and everybody stops. No round was lost before the upgrade, and both epochs are in the log."""
    b = hosts["b"]
    seen = b.said("silomix-silo@silo-02").count("submitted")
    until(lambda: b.said("silomix-silo@silo-02").count("submitted") > seen + 1, "rounds go on")
    for host in hosts.values():
        host.halt()
        log = json.loads(host.do(f"silomix log --config /var/lib/silomix/{OWNERS[host.name][1]} --json"))
        assert log["problems"] == []
        assert len({record["federation"] for record in log["records"][1:]}) == 2
        assert {record["outcome"] for record in log["records"][1:before_upgrade]} == {"applied"}
    by_hand = b.start(printed("silomix shuffler"), "by-hand")
    health = printed("silomix health")
    b.shows(health, "SERVING")
    by_hand.terminate()
    assert by_hand.wait(timeout=60) == 0


def on_one_machine(a: Host) -> None:
    """The trial and the capture, and what compose.yaml is made of."""
    assert "All private keys are in this one directory" in a.run(INLINE[1])
    aggregator = a.start(printed("silomix aggregator"), "trial")
    until(lambda: (a.checkout / "seen").is_dir(), "it records", explain=lambda: a.said("trial"))
    aggregator.terminate()
    assert aggregator.wait(timeout=60) == 0
    before = (a.checkout / "deploy" / "compose.yaml").read_bytes()
    (a.checkout / "deploy" / "compose.yaml").unlink()
    for line in block("silomix init deploy/fed"):
        a.run(line)
    assert (a.checkout / "deploy" / "compose.yaml").read_bytes() == before


def in_a_token(b: Host) -> None:
    """A node whose identity is in no file."""
    for line in block("softhsm2-util"):
        b.run(line)
    assert not (b.home / "silo-05" / "identity.key").exists()
    assert (b.home / "silo-05" / "silo-05.enrol").is_file()


def everything(hosts: dict[str, Host]) -> str:
    """What all units said last, for a failure."""
    return "".join(host.last_words() for host in hosts.values())
