"""Configuration: federation.toml, which all nodes share, and node.toml, which is one node's own.

Both are read against tables of the keys that exist, so a typing error is found when a node starts and not when a
setting silently fails to act. runtime/config/enrol.py writes both files from the same tables.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cryptography import x509

from silomix.runtime.config.certificates import check_identity, check_tls, load_identity, read_private
from silomix.runtime.config.keys import (
    FEDERATION_KEYS,
    MEMBER_KEYS,
    MQTT_KEYS,
    NODE_KEYS,
    OWNER_KEYS,
    PLACES,
    POLICY_KEYS,
    SILO_KEYS,
    TLS_KEYS,
    LogFormat,
)
from silomix.runtime.config.kinds import PATH, Key, Role
from silomix.runtime.config.owners.accept import require_accepted
from silomix.runtime.config.owners.pins import load_pins, require_pins
from silomix.runtime.config.signer import CommandSigner
from silomix.runtime.config.tables import ConfigError, Where, parse, read, read_text, show
from silomix.runtime.core.policy import LEAST_COHORT, MAX_SHUFFLERS, MAX_SILOS, Policy
from silomix.runtime.core.protocol.federation import Federation, Member, Owner
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.values import Scalar
from silomix.runtime.store.home import ANCHOR_FILE, FEDERATION_FILE, NODE_FILE, State

LEAST_SILOS = LEAST_COHORT


@dataclass(frozen=True)
class Broker:
    """The MQTT broker that hears of presence and rounds. It is told nothing secret and believed nothing."""

    host: str
    port: int
    tls: bool
    anchor: Path | None
    """Certificates that vouch for the broker; without it the federation's own."""
    certificate: Path | None
    key: Path | None
    username: str
    password_file: Path | None


@dataclass(frozen=True)
class NodeConfig:
    """One node's own settings, with the federation that it pins. Keys are paths here, so it can be logged."""

    role: Role
    name: str
    federation: Federation = field(repr=False)
    agreement: Path
    """Where the owners' signatures and the nodes' pins are: beside the federation file, if nothing else is said."""
    directory: Path
    """Where the node keeps its state. It must survive a restart and must not be backed up."""
    identity: Path
    """The Ed25519 private key; `load_identity` reads it."""
    identity_command: tuple[str, ...]
    """What signs instead, if the key is in no file."""
    certificate: Path | None
    key: Path | None
    insecure: bool
    listen: str
    """host:port; empty for a silo, which only dials out."""
    metrics_port: int
    metrics_host: str
    metrics_training: bool
    before_round: tuple[str, ...]
    """What is asked before each round whether to take part."""
    required_hops: tuple[str, ...]
    capture: Path | None
    traces: str
    """Where the OpenTelemetry collector is; empty for none."""
    log: LogFormat
    initial_model: Path | None
    evaluate: bool
    keep_updates: bool
    linger: bool
    task_options: Mapping[str, Scalar]
    mqtt: Broker | None

    @property
    def state(self) -> State:
        """Where each thing lies that the node keeps."""
        return State(self.directory)

    @property
    def options(self) -> dict[str, Scalar]:
        """The arguments of this silo's task: what the federation agreed on, overridden by the silo's own."""
        return {**self.federation.policy.task_options, **self.task_options}


def load_federation(path: Path) -> Federation:
    """Read and check a federation file, or a directory's; nothing of it is taken on trust, nor learned later."""
    file = path / FEDERATION_FILE if path.is_dir() else path
    return parse_federation(read_text(file), file)


def parse_federation(content: str, file: Path, anchor: bytes | None = None) -> Federation:
    """Check the text of a federation file; the anchor is read from beside the file unless it is given."""
    where = Where(file, places=PLACES)
    top = where.take(parse(content, file), FEDERATION_KEYS)
    policy = Policy(**where.under("policy").take(top["policy"], POLICY_KEYS))
    federation = Federation(
        name=top["name"],
        aggregator=Member(**where.under("aggregator").take(top["aggregator"], MEMBER_KEYS)),
        shufflers=_members(where, "shufflers", top["shufflers"], MEMBER_KEYS),
        silos=_members(where, "silos", top["silos"], SILO_KEYS),
        policy=policy,
        anchor=_anchor(where.under("tls"), top["tls"], anchor),
        pinned=top["tls"].get("pinned", False),
        owners=_owners(where, top["owners"]),
        epoch=top["epoch"],
    )
    if federation.epoch != 1:
        raise where.wrong(
            "epoch", f"found {federation.epoch}; this version of silomix knows a federation's first file only"
        )
    _check_owners(where, federation)
    _check_roster(where, federation)
    if conflict := federation.conflict():
        raise where.under("policy").wrong(*conflict)
    return federation


def _members(where: Where, table: str, rows: list[Any], keys: Mapping[str, Key]) -> tuple[Member, ...]:
    members = []
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise where.wrong(f"{table}[{i}]", f"found {show(row)}; give a table")
        members.append(Member(**where.under(f"{table}[{i}]").take(row, keys)))
    return tuple(members)


def _owners(where: Where, rows: list[Any]) -> tuple[Owner, ...]:
    owners = []
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise where.wrong(f"owners[{i}]", f"found {show(row)}; give a table")
        owners.append(Owner(**where.under(f"owners[{i}]").take(row, OWNER_KEYS)))
    return tuple(owners)


def _check_owners(where: Where, federation: Federation) -> None:
    """Check that owners are told apart by name and key, have nodes, and that every node is somebody's."""
    seen: dict[str | bytes, str] = {}
    for i, owner in enumerate(federation.owners):
        for key, value in (("name", owner.name), ("key", owner.key)):
            if (first := seen.setdefault(value, f"owners[{i}]")) != f"owners[{i}]":
                raise where.wrong(f"owners[{i}].{key}", f"{first}.{key} is the same; no two may share it")
        if not federation.owned_by(owner.name):
            raise where.wrong(f"owners[{i}]", f"{owner.name} has no node; remove it")
    names = [owner.name for owner in federation.owners]
    for name, member in federation.members.items():
        if member.owner not in names:
            raise where.wrong(
                "owners", f"{member.owner!r}, whose node {name} is, is not among them: {', '.join(names)}"
            )
        if member.key in seen:
            raise where.wrong("owners", f"{name} has the same key as {seen[member.key]}; a node has one of its own")


def _anchor(where: Where, data: Mapping[str, Any], given: bytes | None) -> bytes:
    tls = where.take(data, TLS_KEYS)
    if tls["insecure"]:
        for other in ("anchor", "pinned"):
            if tls[other]:
                raise where.wrong("insecure", f"found true beside {other}; keep one of the two")
        return b""
    if tls["pinned"]:
        if tls["anchor"] is not None:
            raise where.wrong("pinned", "found true beside an anchor; keep one of the two")
        return b""
    if tls["anchor"] is None:
        raise where.wrong(
            "anchor",
            f'missing; give the CA\'s file, such as "{ANCHOR_FILE}", or say pinned = true, or insecure = true',
        )
    file = where.file.parent / tls["anchor"]
    try:
        raw = read(file) if given is None else given
        x509.load_pem_x509_certificates(raw)
    except ConfigError as error:
        raise where.wrong("anchor", str(error)) from None
    except ValueError:
        raise where.wrong("anchor", f"{file} holds no certificates; give a PEM file") from None
    return raw


def _check_roster(where: Where, federation: Federation) -> None:
    tables = [("aggregator", federation.aggregator)]
    tables += [(f"shufflers[{i}]", member) for i, member in enumerate(federation.shufflers)]
    tables += [(f"silos[{i}]", member) for i, member in enumerate(federation.silos)]
    seen: dict[tuple[str, str], str] = {}
    for table, member in tables:
        for key, value in (("name", member.name), ("key", member.key.hex()), ("address", member.address)):
            if value and (first := seen.setdefault((key, value), table)) != table:
                raise where.wrong(f"{table}.{key}", f"found {value!r}, which is {first}.{key} too; no two may share it")
    for table, found, least, most in (
        ("silos", len(federation.silos), LEAST_SILOS, MAX_SILOS),
        ("shufflers", len(federation.shufflers), 1, MAX_SHUFFLERS),
    ):
        if not least <= found <= most:
            raise where.wrong(table, f"found {found}; give {least} to {most} [[{table}]]")


def _check_pool(where: Where, key: str, hops: Iterable[str], federation: Federation) -> None:
    pool = [member.name for member in federation.shufflers]
    for hop in hops:
        if hop not in pool:
            near = get_close_matches(hop, pool, 1)
            hint = f'did you mean "{near[0]}"?' if near else f"there are {show(pool)}"
            raise where.wrong(key, f"found {hop!r}, which is not the name of one of the [[shufflers]]; {hint}")


def load_node(path: Path) -> NodeConfig:
    """Read and check a node's file, or a directory's, with its federation file and its keys.

    What would fail at the first handshake or the first signature fails here, with the file's name.
    """
    file = path / NODE_FILE if path.is_dir() else path
    where = Where(file)
    data = parse(read_text(file), file)
    values = where.take(data, NODE_KEYS)
    role: Role = values["role"]
    for name in data:
        if role not in NODE_KEYS[name].roles:
            owners = " or ".join(NODE_KEYS[name].roles)
            raise where.wrong(name, f"is for a node of role {owners}, and this one's is {role}; remove it")
    for name, key in NODE_KEYS.items():
        if key.kind is PATH and values[name] is not None:
            values[name] = file.absolute().parent / values[name]
    try:
        federation = load_federation(values["federation"])
    except ConfigError as error:
        if error.key:
            raise
        raise where.wrong("federation", str(error)) from None
    if values["agreement"] is None:
        file_or_home: Path = values["federation"]
        found = file_or_home if file_or_home.is_dir() else file_or_home.parent
        values["agreement"] = Path(os.path.normpath(found))  # for people: without "NODE/.." in it
    member = _own_entry(where, role, values["name"], federation)
    _check_pool(where, "required_hops", values["required_hops"], federation)
    check_identity(where, values, member)
    check_tls(where, values, federation)
    if values["mqtt"] is not None:
        values["mqtt"] = _broker(where.under("mqtt"), values["mqtt"], values, federation)
    return NodeConfig(**{**values, "federation": federation, "listen": values["listen"] or member.address})


def identity_of(config: NodeConfig) -> Identity:
    """Return what signs for a node: its key, or the command that its owner has for that."""
    if config.identity_command:
        return Identity(config.name, CommandSigner(config.identity_command, config.federation.member(config.name).key))
    return Identity(config.name, load_identity(config.identity))


def require_agreement(config: NodeConfig) -> None:
    """Refuse to run before every owner has accepted the federation file, and every member is known by a certificate."""
    require_accepted(config.federation, config.agreement)
    if config.federation.pinned:
        pins = load_pins(config.federation, config.agreement, config.state.pins)
        require_pins(pins, config.federation, config.agreement)


def reload_tls(config: NodeConfig) -> None:
    """Check a running node's certificate, key and pins again, as when it starts."""
    fields = ("name", "insecure", "certificate", "key", "agreement", "directory")
    check_tls(Where(config.directory), {name: getattr(config, name) for name in fields}, config.federation)


def _own_entry(where: Where, role: Role, name: str, federation: Federation) -> Member:
    rosters = {
        Role.AGGREGATOR: (federation.aggregator,),
        Role.SHUFFLER: federation.shufflers,
        Role.SILO: federation.silos,
    }
    for listed, members in rosters.items():
        for member in members:
            if member.name == name:
                if listed is not role:
                    raise where.wrong("role", f'found "{role}"; the federation file lists {name} as "{listed}"')
                return member
    near = get_close_matches(name, federation.members, 1)
    hint = f'did you mean "{near[0]}"?' if near else "have its owners add this node, or correct the name"
    raise where.wrong("name", f"found {name!r}, which the federation file does not list; {hint}")


def _broker(where: Where, data: Mapping[str, Any], node: Mapping[str, Any], federation: Federation) -> Broker:
    """Check how a broker is reached: what would fail at the first connection fails when the node starts."""
    values = where.take(data, MQTT_KEYS)
    for name in ("anchor", "certificate", "key", "password_file"):
        if values[name] is not None:
            values[name] = where.file.absolute().parent / values[name]
    if not values["tls"]:
        for name in ("anchor", "certificate", "key"):
            if values[name] is not None:
                raise where.wrong(name, "found a path beside tls = false; keep one of the two")
    elif values["anchor"] is None and not federation.anchor:
        raise where.wrong("anchor", "missing, and the federation has no CA; give the broker's CA, or say tls = false")
    if (values["certificate"] is None) != (values["key"] is None):
        raise where.wrong("key" if values["key"] is None else "certificate", "missing; give both of them, or neither")
    if values["tls"] and values["certificate"] is None:
        values["certificate"], values["key"] = node["certificate"], node["key"]
    if values["password_file"] is not None:
        if not values["username"]:
            raise where.wrong("username", "missing; a password needs a name")
        if not values["tls"] and values["host"] not in ("localhost", "127.0.0.1", "::1"):
            raise where.wrong("tls", "found false; a password does not leave this host in clear")
        try:
            read_private(values["password_file"])
        except ConfigError as error:
            raise where.wrong("password_file", str(error)) from None
    for name in ("anchor", "certificate", "key"):
        if values[name] is not None and not values[name].is_file():
            raise where.wrong(name, f"{values[name]} is not there")
    return Broker(**values)
