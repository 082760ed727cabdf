"""Rendering a federation for containers: what all targets share.

A renderer is a function from a federation and a few options to files; nothing is written before everything is made.
The files say who made them, so that nobody edits names by hand: change the federation or the options, and render again.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import yaml

from silomix.runtime.config.keys import NODE_KEYS
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import load_federation
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.render.capacity import MEASURED_PARAMETERS, Load, load_of
from silomix.runtime.store.files import PUBLIC, write_atomically
from silomix.runtime.store.home import (
    ACCEPTED,
    ANCHOR_FILE,
    CERTIFICATE_FILE,
    CERTIFICATE_KEY_FILE,
    FEDERATION_FILE,
    IDENTITY_FILE,
    NODE_FILE,
    PIN,
    Home,
)
from silomix.runtime.store.modelfile import read_model

KEY_FILES = (IDENTITY_FILE, CERTIFICATE_KEY_FILE, CERTIFICATE_FILE)
"""What a node has of its own and shows nobody; the certificate travels with its key."""
METRICS_PORT = 9100
"""Of every node in a container, where no other has the port: what deploy/prometheus scrapes."""
USER = 10001
"""The user of the images, by number: a cluster can check that it is not root without knowing the image's names."""

Files = dict[Path, bytes]
"""What a renderer makes, by the path below its output."""


class RenderError(UserError):
    """A federation that cannot be put there: what is in the way, and what to do."""


@dataclass(frozen=True)
class Source:
    """A federation as it lies in a directory: the file that all pin, and what is here of each node's own."""

    file: Path
    federation: Federation
    parameters: int
    """Of the model, for resources: the initial model's, unless somebody has said."""

    @property
    def home(self) -> Path:
        """Where the federation file lies, with the nodes' directories beside it."""
        return self.file.parent

    @property
    def load(self) -> Load:
        """What a round of it costs."""
        return load_of(self.federation, self.parameters)

    @property
    def nodes(self) -> dict[str, Role]:
        """All nodes by name: the aggregator, the pool of shufflers, the silos."""
        f = self.federation
        return {
            f.aggregator.name: Role.AGGREGATOR,
            **{member.name: Role.SHUFFLER for member in f.shufflers},
            **{member.name: Role.SILO for member in f.silos},
        }

    def here(self, name: str) -> bool:
        """Whether the node's own directory is here."""
        return (self.home / name / NODE_FILE).is_file()

    def settings(self, name: str) -> dict[str, Any]:
        """Read a node's own settings, if they are here. What is wrong in them the node itself will say."""
        if not self.here(name):
            return {}
        file = self.home / name / NODE_FILE
        try:
            found = tomllib.loads(file.read_text())
        except (ValueError, OSError) as error:
            raise RenderError(f"{file}: cannot be used: {error}") from None
        role = self.nodes[name]
        for key in found:
            if key not in NODE_KEYS or role not in NODE_KEYS[key].roles:
                raise RenderError(f"{file}: {key}: a {role} has no such key; `silomix {role}` says more")
        return found

    def port(self, name: str) -> int:
        """The port on which others reach a server."""
        return int(self.federation.member(name).address.rpartition(":")[2])

    def host(self, name: str) -> str:
        """The host at which others reach a server."""
        return self.federation.member(name).address.rpartition(":")[0].strip("[]")

    def public_files(self) -> Files:
        """What every node gets, as it is: the federation file with its anchor, the owners' signatures, nodes' pins."""
        files: Files = {Path(FEDERATION_FILE): self._federation_text()}
        if self.federation.anchor:
            files[Path(ANCHOR_FILE)] = self.federation.anchor
        names = [f"{owner.name}{ACCEPTED}" for owner in self.federation.owners]
        if self.federation.pinned:
            names += [f"{name}{PIN}" for name in self.federation.members]
        for name in names:
            if not (self.home / name).is_file():
                raise RenderError(f"{self.home / name}: is missing; no node serves without it")
            files[Path(name)] = (self.home / name).read_bytes()
        return files

    def _federation_text(self) -> bytes:
        text = self.file.read_bytes()
        found = tomllib.loads(text.decode())["tls"].get("anchor", ANCHOR_FILE)
        if found != ANCHOR_FILE:
            raise RenderError(f'{self.file}: tls.anchor: found "{found}"; call it "{ANCHOR_FILE}", beside this file')
        return text


def load_source(path: Path, parameters: int | None = None) -> Source:
    """Read a federation, and count its model's parameters if the initial model is here."""
    file = path / FEDERATION_FILE if path.is_dir() else path
    federation = load_federation(file)
    if not federation.secure:
        raise RenderError(f"{file}: tls.insecure: a federation without TLS is for one machine; make one with TLS")
    if parameters is None:
        model = Home(file.parent / federation.aggregator.name).initial_model
        parameters = read_model(model.read_bytes(), model)[0].parameters if model.is_file() else MEASURED_PARAMETERS
    return Source(file, federation, parameters)


def write(files: Mapping[Path, bytes], out: Path, keys: Mapping[Path, Path] | None = None) -> None:
    """Write what was made, and copy private keys, which their owner alone can read."""
    for path, data in files.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out / path, data, mode=PUBLIC)
    for path, origin in (keys or {}).items():
        if not (out / path).exists() or not (out / path).samefile(origin):
            write_atomically(out / path, origin.read_bytes())


class _Dumper(yaml.SafeDumper):
    """YAML as a person writes it: no anchors, no folded lines, text in blocks."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def yaml_bytes(why: str, *documents: Mapping[str, Any]) -> bytes:
    """Write documents into one file, below a comment that says what they are for."""
    head = "".join(f"# {line}\n" for line in why.strip().splitlines())
    bodies = [yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000) for document in documents]
    return (head + "---\n".join(bodies)).encode()


def installed_version() -> str:
    """The version that images are tagged with by default."""
    try:
        return version("silomix")
    except PackageNotFoundError:
        return "latest"


def is_address(host: str) -> bool:
    """Whether a host is given by number."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
