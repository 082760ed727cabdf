"""Three hospitals, each with a directory of its own: what one of them is given, it is given as a file."""

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from shutil import copy

from silomix.runtime.cli import main
from silomix.runtime.config.load import load_node
from silomix.runtime.local import InProcess, make_node
from silomix.runtime.nodes.node import Node

TASK = ("--task", "tests.nodes.toy:task", "--option", "parameters=50")
NODES = {
    "hospital-a": {"aggregator": "aggregator", "silo-01": "silo"},
    "hospital-b": {"shuffler-1": "shuffler", "silo-02": "silo"},
    "hospital-c": {"shuffler-2": "shuffler", "silo-03": "silo"},
}
SERVERS = ("aggregator", "shuffler-1", "shuffler-2")


def run(*words: object) -> int:
    """Run a command, as somebody would type it."""
    return main([str(word) for word in words])


class Hospitals:
    """What each owner has done so far, below one directory: one for each, and the mail between them."""

    nodes: Mapping[str, Mapping[str, str]] = NODES
    task: tuple[str, ...] = TASK

    def __init__(self, place: Path) -> None:
        """Nobody has anything yet."""
        self.place, self.mail = place, place / "mail"
        self.mail.mkdir(parents=True)

    def home(self, owner: str) -> Path:
        """An owner's directory."""
        return self.place / owner

    def node(self, name: str) -> Path:
        """A node's directory."""
        return self.home(self.owner_of(name)) / name

    def owner_of(self, name: str) -> str:
        """Whose a node is."""
        return next(owner for owner, nodes in self.nodes.items() if name in nodes)

    def keygen(self, addresses: dict[str, str]) -> None:
        """Let each make its keys, and send its enrolment files."""
        for owner, nodes in self.nodes.items():
            for name, role in nodes.items():
                own = ("--option", f"silo={int(name[-2:]) - 1}") if role == "silo" else ()
                where = ("--address", addresses[name]) if name in addresses else own
                assert run("keygen", self.home(owner) / name, "--role", role, "--owner", owner, *where) == 0
                copy(self.home(owner) / name / f"{name}.enrol", self.mail)

    def assemble(self, *policy: object) -> Path:
        """Let somebody assemble the federation, and send the result to everybody."""
        out = self.place / "assembled"
        assert run("assemble", out, *sorted(self.mail.glob("*.enrol")), "--name", "hospitals", *self.task, *policy) == 0
        for owner in self.nodes:
            self.give(owner, *out.iterdir())
        return out

    def give(self, owner: str, *files: Path) -> None:
        """Put files into an owner's directory."""
        for file in files:
            copy(file, self.home(owner))

    def accept(self, *owners: str) -> None:
        """Let some owners accept, and send their signatures to all."""
        for owner in owners or self.nodes:
            assert run("accept", self.home(owner), "--yes") == 0
            copy(self.home(owner) / f"{owner}.accepted", self.mail)
        for owner in self.nodes:
            self.give(owner, *self.mail.glob("*.accepted"))


class Apart(InProcess):
    """Nodes that run in this process, each out of its own owner's directory."""

    def __init__(self, hospitals: Hospitals, log: Path) -> None:
        super().__init__(hospitals.home("hospital-a"), log=log)
        self.hospitals = hospitals

    def start(self, name: str) -> Node:
        self.nodes[name] = make_node(load_node(self.hospitals.node(name)))
        self.tasks[name] = asyncio.create_task(self._live(name, self.nodes[name]), name=name)
        return self.nodes[name]


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
