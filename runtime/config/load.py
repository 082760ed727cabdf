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

from silomix.runtime.config.certificates import check_identity, check_tls, load_identity
from silomix.runtime.config.federation import LEAST_SILOS as LEAST_SILOS
from silomix.runtime.config.federation import load_federation as load_federation
from silomix.runtime.config.federation import parse_federation as parse_federation
from silomix.runtime.config.keys import MQTT_KEYS, NODE_KEYS, LogFormat
from silomix.runtime.config.kinds import PATH, Role
from silomix.runtime.config.owners.accept import require_accepted
from silomix.runtime.config.owners.epochs import Proposal, epochs_on_disk, history_of, in_force, require_history
from silomix.runtime.config.owners.pins import known_pins, require_pins
from silomix.runtime.config.signer import signer_of
from silomix.runtime.config.tables import ConfigError, Where, parse, read_private, read_text, show
from silomix.runtime.config.token import uri_of
from silomix.runtime.core.protocol.epochs import Epochs
from silomix.runtime.core.protocol.federation import Federation, Member
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.values import Scalar
from silomix.runtime.store.home import NEXT_IDENTITY, NODE_FILE, State


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

    file: Path
    """Where all of this stands."""
    role: Role
    name: str
    federation: Federation = field(repr=False)
    """The epoch in which this node is."""
    history: tuple[Proposal, ...] = field(repr=False)
    """The epochs up to that one, with the owners' signatures."""
    agreement: Path
    """Where the owners' signatures and the nodes' pins are: beside the federation file, if nothing else is said."""
    directory: Path
    """Where the node keeps its state. It must survive a restart and must not be backed up."""
    identity: Path
    """The Ed25519 private key; `load_identity` reads it."""
    identity_command: tuple[str, ...]
    """What signs instead, if the key is in no file."""
    identity_token: str
    """Where the key is, if it is in a PKCS#11 token."""
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
    keep_models: int
    keep_updates: bool
    linger: bool
    task_options: Mapping[str, Scalar]
    mqtt: Broker | None

    @property
    def state(self) -> State:
        """Where each thing lies that the node keeps."""
        return State(self.directory)

    @property
    def epochs(self) -> Epochs:
        """The epochs up to the one in which this node is."""
        return Epochs(tuple(one.federation for one in self.history))

    @property
    def options(self) -> dict[str, Scalar]:
        """The arguments of this silo's task: what the federation agreed on, overridden by the silo's own."""
        return {**self.federation.policy.task_options, **self.task_options}


def _check_pool(where: Where, key: str, hops: Iterable[str], federation: Federation) -> None:
    pool = [member.name for member in federation.shufflers]
    for hop in hops:
        if hop not in pool:
            near = get_close_matches(hop, pool, 1)
            hint = f'did you mean "{near[0]}"?' if near else f"there are {show(pool)}"
            raise where.wrong(key, f"found {hop!r}, which is not the name of one of the [[shufflers]]; {hint}")


def load_node(path: Path, epoch: bytes = b"") -> NodeConfig:
    """Read and check a node's file, or a directory's, with its federation file and its keys.

    What would fail at the first handshake or the first signature fails here, with the file's name. The federation is
    that of the epoch in which the node was last, or of the one that is asked for by its digest.
    """
    file = path / NODE_FILE if path.is_dir() else path
    where = Where(file)
    data = parse(read_text(file, "is not there: give the directory of one node, such as fed/silo-01"), file)
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
    state = State(values["directory"])
    known = epochs_on_disk(federation, values["agreement"], state)
    federation = in_force(known, epoch, state, values["name"])
    history = history_of(federation, known)
    member = _own_entry(where, role, values["name"], federation)
    values["identity"] = _own_identity(values["identity"], member)
    if values["identity_token"]:
        values["identity_token"] = uri_of(file.absolute().parent, values["identity_token"], member.key)
    _check_pool(where, "required_hops", values["required_hops"], federation)
    check_identity(where, values, member)
    check_tls(where, values, federation)
    if values["mqtt"] is not None:
        values["mqtt"] = _broker(where.under("mqtt"), values["mqtt"], values, federation)
    values |= {"file": file, "federation": federation, "history": history}
    return NodeConfig(**{**values, "listen": values["listen"] or member.address})


def _own_identity(path: Path, member: Member) -> Path:
    """Choose between a node's identity and the one that it is to have next: whichever the epoch lists."""
    following = path.with_name(f"{NEXT_IDENTITY}{path.name}")
    if not following.is_file():
        return path
    public = Identity(member.name, load_identity(following)).public
    return following if public == member.key else path


def identity_of(config: NodeConfig) -> Identity:
    """Return what signs for a node: its key, or the command or the token that its owner has for that."""
    if config.identity_command or config.identity_token:
        public = config.federation.member(config.name).key
        return Identity(config.name, signer_of(config.identity_command, config.identity_token, public))
    return Identity(config.name, load_identity(config.identity))


def require_agreement(config: NodeConfig) -> None:
    """Refuse to run before the owners have accepted the federation file, and every member is known by a certificate."""
    if config.federation.epoch == 1:
        require_accepted(config.federation, config.agreement)
    else:
        require_history(config.history, config.name)
    if config.federation.pinned:
        pins = known_pins(config.federation, config.agreement, config.state)
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
