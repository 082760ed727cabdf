"""Enrolment: make the keys, certificates and files of a federation whose nodes are all in one hand.

Owners who do not share a machine use the same pieces: each makes its own identity and certificate request, and one
writes the federation file from the public halves. What `init` makes is complete, and good for trials and for one
operator; whoever holds its ca.key can enrol anybody.
"""

import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from textwrap import wrap

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from silomix.runtime.config.authority import CertificateAuthority, private_pem
from silomix.runtime.config.keys import MQTT_KEYS, NODE_KEYS, POLICY_KEYS
from silomix.runtime.config.kinds import FLAG, PATH, Key, Role
from silomix.runtime.config.load import LEAST_SILOS, parse_federation
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.policy import MAX_SHUFFLERS, MAX_SILOS, Policy
from silomix.runtime.core.protocol.federation import Federation, Member
from silomix.runtime.core.values import Scalar
from silomix.runtime.store.files import PUBLIC, write_atomically
from silomix.runtime.store.home import (
    ANCHOR_FILE,
    ANCHOR_KEY_FILE,
    CERTIFICATE_FILE,
    CERTIFICATE_KEY_FILE,
    FEDERATION_FILE,
    IDENTITY_FILE,
    NODE_FILE,
    STATE_DIRECTORY,
)

Value = Scalar | tuple[str, ...] | list[str] | Mapping[str, Scalar]


def init(
    directory: Path,
    silos: int,
    shufflers: int,
    *,
    name: str,
    policy: Policy,
    insecure: bool = False,
    host: str = "127.0.0.1",
    base_port: int = 0,
    listen_host: str = "",
    metrics_base_port: int = 0,
    silo_options: Callable[[int], Mapping[str, Scalar]] = lambda index: {},
    settings: Mapping[Role, Mapping[str, Value]] | None = None,
) -> Federation:
    """Write a complete federation into an empty directory: the federation file, and a directory for each node.

    host               where nodes are reached; "{name}" in it stands for the node's name, as container networks have it
    base_port          the aggregator's port, with the shufflers on the next ones; 0 to take any that are free now
    listen_host        where nodes listen if that is not `host`, such as "0.0.0.0"
    metrics_base_port  the first of consecutive metrics ports, one for each node; 0 for no metrics
    silo_options       a silo's own task options by its index from 0, such as its share of a data set
    settings           further keys of the node files, by role

    The federation file is written last, so a directory that has one is complete.
    """
    for key, number, least, most in (
        ("silos", silos, LEAST_SILOS, MAX_SILOS),
        ("shufflers", shufflers, 1, MAX_SHUFFLERS),
    ):
        if not least <= number <= most:
            raise ConfigError(directory, key, f"found {number}; give {least} to {most}")
    hops = [f"shuffler-{i}" for i in range(1, shufflers + 1)]
    trainers = [f"silo-{i:0{max(2, len(str(silos)))}}" for i in range(1, silos + 1)]
    servers, nodes = ["aggregator", *hops], ["aggregator", *hops, *trainers]
    hosts = {node: host.replace("{name}", node) for node in nodes}
    _check_ports(directory, "base_port", base_port, len(servers))
    _check_ports(directory, "metrics_base_port", metrics_base_port, len(nodes))
    _check_empty(directory)
    ports = range(base_port, base_port + len(servers)) if base_port else _free_ports(directory, host, len(servers))
    addresses = {node: f"{_bracketed(hosts[node])}:{port}" for node, port in zip(servers, ports, strict=True)}

    identities = {node: Ed25519PrivateKey.generate() for node in nodes}
    members = {
        node: Member(node, key.public_key().public_bytes_raw(), addresses.get(node, ""))
        for node, key in identities.items()
    }
    authority = None if insecure else CertificateAuthority(name)
    federation = Federation(
        name=name,
        aggregator=members["aggregator"],
        shufflers=tuple(members[hop] for hop in hops),
        silos=tuple(members[silo] for silo in trainers),
        policy=policy,
        anchor=authority.anchor if authority else b"",
    )
    checked = _check(federation, directory / FEDERATION_FILE)  # before anything is written

    directory.mkdir(parents=True, exist_ok=True)
    for index, node in enumerate(nodes):
        home = directory / node
        home.mkdir(mode=0o700)
        write_atomically(home / IDENTITY_FILE, private_pem(identities[node]))
        role = Role.AGGREGATOR if index == 0 else Role.SHUFFLER if node in addresses else Role.SILO
        keys: dict[str, Value] = {
            **((settings or {}).get(role) or {}),
            "role": role,
            "name": node,
            "federation": f"../{FEDERATION_FILE}",
            "directory": STATE_DIRECTORY,
            "identity": IDENTITY_FILE,
        }
        if authority:
            private = ec.generate_private_key(ec.SECP256R1())
            write_atomically(home / CERTIFICATE_KEY_FILE, private_pem(private))
            write_atomically(
                home / CERTIFICATE_FILE, authority.issue(node, private.public_key(), [hosts[node]]), mode=PUBLIC
            )
            keys |= {"certificate": CERTIFICATE_FILE, "key": CERTIFICATE_KEY_FILE}
        else:
            keys["insecure"] = True
        if listen_host and node in addresses:
            keys["listen"] = f"{_bracketed(listen_host)}:{addresses[node].rpartition(':')[2]}"
        if metrics_base_port:
            keys["metrics_port"] = metrics_base_port + index
        options = silo_options(index - len(servers)) if node not in addresses else {}
        write_atomically(home / NODE_FILE, node_text(keys, options).encode(), mode=PUBLIC)
    if authority:
        write_atomically(directory / ANCHOR_KEY_FILE, authority.private_pem())
    dump_federation(checked, directory / FEDERATION_FILE)
    return checked


def dump_federation(federation: Federation, path: Path) -> None:
    """Write a federation file with every policy key explained, and its trust anchor beside it.

    What is written is read back by the rules of loading first, so an invalid federation leaves no file.
    """
    _check(federation, path)
    if federation.anchor:
        write_atomically(path.parent / ANCHOR_FILE, federation.anchor, mode=PUBLIC)
    write_atomically(path, _federation_text(federation).encode(), mode=PUBLIC)


def _check(federation: Federation, path: Path) -> Federation:
    return parse_federation(_federation_text(federation), path, federation.anchor)


def _check_empty(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise ConfigError(directory, "", "is a file; give a directory that is empty or does not exist yet")
    if directory.is_dir() and any(directory.iterdir()):
        raise ConfigError(
            directory, "", "is not empty, and keys are never overwritten; give another directory, or move this one away"
        )


def _check_ports(directory: Path, key: str, base: int, count: int) -> None:
    most = 65536 - count
    if not 0 <= base <= most:
        raise ConfigError(directory, key, f"found {base}, and {count} ports are needed; give 1 to {most}, or 0")


def _free_ports(directory: Path, host: str, count: int) -> list[int]:
    with ExitStack() as held:  # all at once, else the same port is free twice
        ports = []
        for _ in range(count):
            probe = held.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            try:
                probe.bind((host, 0))
            except OSError as error:
                problem = f"no free port can be found on {host} ({error.strerror or error}); give the first port"
                raise ConfigError(directory, "base_port", problem) from None
            ports.append(int(probe.getsockname()[1]))
        return ports


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _federation_text(federation: Federation) -> str:
    return "\n".join((*_federation_lines(federation), ""))


def _federation_lines(federation: Federation) -> Iterator[str]:
    yield "# The federation file: who takes part, with which keys, under which policy."
    yield "# Every node pins its own copy. A digest of all that it says is in every message, so the copies must agree;"
    yield "# comments and the order of keys may differ, the order of nodes may not."
    yield ""
    yield f"name = {_toml(federation.name)}"
    yield ""
    yield "[tls]"
    if federation.anchor:
        yield "# Certificates of the CAs that vouch for nodes. Each node needs a copy of this file, beside this one."
        yield f"anchor = {_toml(ANCHOR_FILE)}"
    else:
        yield "# No TLS: for trials on one machine only."
        yield "insecure = true"
    yield ""
    yield "[policy]"
    for name, key in POLICY_KEYS.items():
        if name != "task_options":
            yield from _entry(key, name, getattr(federation.policy, name))
    yield from _options("policy.task_options", POLICY_KEYS["task_options"], federation.policy.task_options)
    yield from _member("[aggregator]", federation.aggregator)
    yield ""
    yield "# The pool of hops. Bodies pass them in this order."
    for member in federation.shufflers:
        yield from _member("[[shufflers]]", member)
    for member in federation.silos:
        yield from _member("[[silos]]", member)


def _member(header: str, member: Member) -> Iterator[str]:
    yield ""
    yield header
    yield f"name = {_toml(member.name)}"
    yield f"key = {_toml(member.key.hex())}"
    if member.address:
        yield f"address = {_toml(member.address)}"


def node_text(settings: Mapping[str, Value], options: Mapping[str, Scalar]) -> str:
    """Write what is set, and what is not as a comment, so that the file is its own manual."""
    lines = ["# This node's own settings. Paths are relative to this file."]
    for name, key in NODE_KEYS.items():
        if settings["role"] not in key.roles or name in ("task_options", "mqtt"):
            continue
        set_here = name in settings
        example = "" if key.default is None else key.default
        lines += _entry(key, name, settings[name] if set_here else example, commented=not set_here)
    if settings["role"] is Role.SILO:
        lines += _options("task_options", NODE_KEYS["task_options"], options)
    lines += _broker(settings.get("mqtt"))
    return "\n".join((*lines, ""))


def _broker(given: Value | None) -> Iterator[str]:
    """Write the table of the broker, or how one would be given: last, since a table ends only with the next."""
    broker = given if isinstance(given, Mapping) else {}
    yield ""
    yield f"# {NODE_KEYS['mqtt'].what}"
    yield "[mqtt]" if broker else "# [mqtt]"
    for name, key in MQTT_KEYS.items():
        example = "" if key.default is None else key.default
        yield from _entry(key, name, broker.get(name, example), commented=name not in broker)


def _entry(key: Key, name: str, value: Value, *, commented: bool = False) -> Iterator[str]:
    yield ""
    yield from (f"# {line}" for line in wrap(key.what, 100, break_on_hyphens=False))
    if key.kind not in (PATH, FLAG):
        yield f"# Allowed: {key.kind.allowed}."
    yield f"{'# ' if commented else ''}{name} = {_toml(key.kind.shown(value))}"


def _options(header: str, key: Key, options: Mapping[str, Scalar]) -> Iterator[str]:
    yield ""
    yield f"# {key.what}"
    yield f"[{header}]"
    for name, value in options.items():
        yield f"{name if re.fullmatch('[A-Za-z0-9_-]+', name) else _toml(name)} = {_toml(value)}"


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):  # a JSON string is a TOML string, but for one character
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    return f"[{', '.join(map(_toml, value))}]"
