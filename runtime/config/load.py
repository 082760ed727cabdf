"""Configuration: federation.toml, which all nodes share, and node.toml, which is one node's own.

Both are read against tables of the keys that exist, so a typing error is found when a node starts and not when a
setting silently fails to act. runtime/config/enrol.py writes both files from the same tables.
"""

import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding as KeyEncoding
from cryptography.hazmat.primitives.serialization import PublicFormat, load_pem_private_key

from silomix.runtime.core.errors import LocalFault, UserError
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.numbers.plan import Encoding, Level
from silomix.runtime.core.protocol.federation import Federation, Member
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.policy import KEYS, LEAST_COHORT, MAX_SHUFFLERS, MAX_SILOS, Granularity, Policy
from silomix.runtime.core.values import OPTIONS, Kind, Scalar, one_of, text, whole

FEDERATION_FILE = "federation.toml"
NODE_FILE = "node.toml"
LEAST_SILOS = LEAST_COHORT


class ConfigError(UserError):
    """A file that cannot be used: which one, at which key, and what to do about it."""

    def __init__(self, file: Path, key: str, problem: str) -> None:
        """The key is a dotted path, or empty if the file as a whole is at fault."""
        super().__init__(f"{file}: {key}: {problem}" if key else f"{file}: {problem}")
        self.file = file
        self.key = key
        self.problem = problem


class Role(StrEnum):
    """What a node does in its federation; the roster must say the same."""

    AGGREGATOR = "aggregator"
    SHUFFLER = "shuffler"
    SILO = "silo"


class LogFormat(StrEnum):
    """Whom the log is for: a person at a terminal, or a collector."""

    CONSOLE = "console"
    JSON = "json"


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
    directory: Path
    """Where the node keeps its state. It must survive a restart and must not be backed up."""
    identity: Path
    """The Ed25519 private key; `load_identity` reads it."""
    certificate: Path | None
    key: Path | None
    insecure: bool
    listen: str
    """host:port; empty for a silo, which only dials out."""
    metrics_port: int
    metrics_host: str
    metrics_training: bool
    required_hops: tuple[str, ...]
    capture: Path | None
    log: LogFormat
    initial_model: Path | None
    evaluate: bool
    keep_updates: bool
    linger: bool
    task_options: Mapping[str, Scalar]
    mqtt: Broker | None

    @property
    def options(self) -> dict[str, Scalar]:
        """The arguments of this silo's task: what the federation agreed on, overridden by the silo's own."""
        return {**self.federation.policy.task_options, **self.task_options}


# --- what a value may be ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """A key that a file may have: its kind, what it is for, and who has it."""

    kind: Kind
    what: str
    default: Any = None
    required: bool = False
    roles: tuple[Role, ...] = tuple(Role)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _hex_key(value: Any) -> bytes:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-fA-F]{64}", value):
        raise ValueError
    return bytes.fromhex(value)


def _address(value: Any) -> str:
    match = isinstance(value, str) and re.fullmatch(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", value)
    if not match or not 0 < int(match[1]) < 1 << 16:
        raise ValueError
    return match[0]


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(set(map(str, value))) < len(value):
        raise ValueError
    return tuple(NAME.parse(name) for name in value)


def _raw(kind: type) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if not isinstance(value, kind):
            raise ValueError
        return value

    return parse


# A name is a DNS name in the node's certificate. Every certificate is good for localhost, so nobody is called that.
NAME = text(
    '1 to 63 of a-z, 0-9 and "-", neither first nor last a "-", and not "localhost"',
    "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?",
    refused=("localhost",),
)
NAMES = Kind("a list of names, none twice", _names)
PATH = text("a path, relative to this file", r"[^\x00-\x1f]+")
ADDRESS = Kind('host:port, such as "10.0.0.5:7000", "hop.example.org:7000" or "[::1]:7000"', _address)
PUBLIC_KEY = Kind("an Ed25519 public key, 32 bytes as 64 hex digits", _hex_key)
FLAG = Kind("true or false", _flag)
TABLE = Kind("a table", _raw(dict))
TABLES = Kind("an array of tables", _raw(list))

# --- the keys that exist ----------------------------------------------------------------------------------------------

FEDERATION_KEYS: Mapping[str, Key] = {
    "name": Key(NAME, "Name of the federation.", required=True),
    "tls": Key(TABLE, "What nodes trust each other's certificates by.", required=True),
    "policy": Key(TABLE, "What the owners agreed on.", required=True),
    "aggregator": Key(TABLE, "Announces rounds and decodes sums.", required=True),
    "shufflers": Key(TABLES, "The pool of hops, in the order in which bodies pass them.", required=True),
    "silos": Key(TABLES, "The roster: who may train.", required=True),
}

TLS_KEYS: Mapping[str, Key] = {
    "anchor": Key(PATH, "Certificates of the CAs that vouch for nodes, PEM. Its bytes are part of the digest."),
    "insecure": Key(FLAG, "true for a federation without TLS: for trials on one machine only.", default=False),
}

MEMBER_KEYS: Mapping[str, Key] = {
    "name": Key(NAME, "Also the common name of the node's certificate.", required=True),
    "key": Key(PUBLIC_KEY, "Signs what the node says.", required=True),
    "address": Key(ADDRESS, "Where others reach the node.", required=True),
}

SILO_KEYS: Mapping[str, Key] = {name: key for name, key in MEMBER_KEYS.items() if name != "address"}

POLICY_KEYS: Mapping[str, Key] = {name: Key(key.kind, key.what, key.default) for name, key in KEYS.items()}

_SERVERS = (Role.AGGREGATOR, Role.SHUFFLER)

NODE_KEYS: Mapping[str, Key] = {
    "role": Key(one_of(Role), "What this node is.", required=True),
    "name": Key(NAME, "Its name in the federation file.", required=True),
    "federation": Key(PATH, "This node's own copy of the federation file.", required=True),
    "directory": Key(PATH, "Where it keeps its state: a disk that survives restarts and is never backed up.", "state"),
    "identity": Key(PATH, "Ed25519 private key, PEM, mode 600.", "identity.key"),
    "certificate": Key(PATH, "TLS certificate, PEM, with the node's name as its common name and as a DNS name."),
    "key": Key(PATH, "Private key of the certificate, PEM, mode 600."),
    "insecure": Key(FLAG, "true to go without TLS, if the federation file says so too.", default=False),
    "listen": Key(ADDRESS, "Where to listen, if that is not the address on the roster.", roles=_SERVERS),
    "metrics_port": Key(whole(0, 65535), "Port of the Prometheus metrics; 0 for none.", default=0),
    "metrics_host": Key(
        text("an address of this host"), "Address of the metrics; 0.0.0.0 for all networks.", default="127.0.0.1"
    ),
    "metrics_training": Key(
        FLAG,
        "true to show this silo's loss, accuracy and sample counts on its own metrics port. They help an attacker.",
        default=False,
        roles=(Role.SILO,),
    ),
    "required_hops": Key(
        NAMES, "Shufflers without which this silo does not submit: its own.", default=(), roles=(Role.SILO,)
    ),
    "capture": Key(PATH, "Where to record what this node sees, for an audit. Attack material."),
    "log": Key(one_of(LogFormat), "For a person or for a collector.", default=LogFormat.CONSOLE),
    "initial_model": Key(PATH, "Model to begin with, safetensors.", roles=(Role.AGGREGATOR,)),
    "evaluate": Key(
        FLAG,
        "true to measure each global model here. The task must be installed, and has a test set of its own.",
        default=False,
        roles=(Role.AGGREGATOR,),
    ),
    "keep_updates": Key(
        FLAG,
        "true to keep this silo's updates in clear beside its state, to compare with what came of them. For tests.",
        default=False,
        roles=(Role.SILO,),
    ),
    "linger": Key(
        FLAG,
        "true to stay when all rounds are done, until told to stop: for schedulers that start again whatever ends.",
        default=False,
        roles=(Role.AGGREGATOR, Role.SILO),
    ),
    "task_options": Key(OPTIONS, "Arguments of the task for this silo alone.", default={}, roles=(Role.SILO,)),
    "mqtt": Key(TABLE, "MQTT broker that hears of presence, rounds and refusals. Without this table, nobody does."),
}

MQTT_KEYS: Mapping[str, Key] = {
    "host": Key(text("a host name or an address", r"[A-Za-z0-9.:-]+"), "Where the broker is.", required=True),
    "port": Key(whole(1, 65535), "Its port.", default=8883),
    "tls": Key(FLAG, "false to speak in clear, as to a broker on this host.", default=True),
    "anchor": Key(PATH, "Certificates that vouch for the broker, PEM, if those of the federation do not."),
    "certificate": Key(PATH, "Certificate to show to the broker, PEM, if not this node's own."),
    "key": Key(PATH, "Private key of that certificate, PEM, mode 600."),
    "username": Key(text("a name", r"[^\x00-\x1f]*"), "Name to log in with, if certificates do not do.", default=""),
    "password_file": Key(PATH, "File with the password, mode 600."),
}

_PLACES = {
    **dict.fromkeys(TLS_KEYS, "[tls]"),
    **dict.fromkeys(POLICY_KEYS, "[policy]"),
    "address": "[aggregator] or [[shufflers]]",
}
"""Where a key of the federation file belongs: TOML puts a key under whichever header stands above it."""


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Where:
    """A table of a file: what its errors name."""

    file: Path
    table: str = ""
    places: Mapping[str, str] = field(default_factory=dict)

    def wrong(self, key: str, problem: str) -> ConfigError:
        return ConfigError(self.file, f"{self.table}.{key}" if self.table else key, problem)

    def under(self, table: str) -> "_Where":
        return _Where(self.file, table, self.places)

    def take(self, data: Mapping[str, Any], keys: Mapping[str, Key]) -> dict[str, Any]:
        """Check a table's keys and values against those that exist, and fill in defaults."""
        for name in data:
            if name not in keys:
                raise self.wrong(name, f"no such key here; {self._hint(name, keys)}")
        values = {}
        for name, key in keys.items():
            if name not in data:
                if key.required:
                    raise self.wrong(name, f"missing; give {key.kind.allowed}")
                values[name] = key.default
                continue
            try:
                values[name] = key.kind.parse(data[name])
            except (ValueError, OverflowError):
                raise self.wrong(name, f"found {_show(data[name])}; give {key.kind.allowed}") from None
        return values

    def _hint(self, name: str, keys: Iterable[str]) -> str:
        if place := self.places.get(name):
            return f"it belongs in {place}"
        if near := get_close_matches(name.lower(), keys, 1):
            return f'did you mean "{near[0]}"?'
        if near := get_close_matches(name.lower(), self.places, 1):
            return f'did you mean "{near[0]}" in {self.places[near[0]]}?'
        return f"known are {', '.join(keys)}"


def _show(value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read: {error.strerror}") from None


def _parse(content: str, file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(content)
    except (ValueError, RecursionError) as error:  # also a number or a nesting that Python will not read
        raise ConfigError(file, "", f"is not TOML: {error}") from None


def _decode(raw: bytes, file: Path) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(file, "", f"is not UTF-8 at byte {error.start}: save it as UTF-8") from None


def load_federation(path: Path) -> Federation:
    """Read and check a federation file, or a directory's; nothing of it is taken on trust, nor learned later."""
    file = path / FEDERATION_FILE if path.is_dir() else path
    return parse_federation(_decode(_read(file), file), file)


def parse_federation(content: str, file: Path, anchor: bytes | None = None) -> Federation:
    """Check the text of a federation file; the anchor is read from beside the file unless it is given."""
    where = _Where(file, places=_PLACES)
    top = where.take(_parse(content, file), FEDERATION_KEYS)
    policy = Policy(**where.under("policy").take(top["policy"], POLICY_KEYS))
    federation = Federation(
        name=top["name"],
        aggregator=Member(**where.under("aggregator").take(top["aggregator"], MEMBER_KEYS)),
        shufflers=_members(where, "shufflers", top["shufflers"], MEMBER_KEYS),
        silos=_members(where, "silos", top["silos"], SILO_KEYS),
        policy=policy,
        anchor=_anchor(where.under("tls"), top["tls"], anchor),
    )
    _check_roster(where, federation)
    _check_policy(where.under("policy"), federation)
    return federation


def _members(where: _Where, table: str, rows: list[Any], keys: Mapping[str, Key]) -> tuple[Member, ...]:
    members = []
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise where.wrong(f"{table}[{i}]", f"found {_show(row)}; give a table")
        members.append(Member(**where.under(f"{table}[{i}]").take(row, keys)))
    return tuple(members)


def _anchor(where: _Where, data: Mapping[str, Any], given: bytes | None) -> bytes:
    tls = where.take(data, TLS_KEYS)
    if tls["insecure"]:
        if tls["anchor"] is not None:
            raise where.wrong("insecure", "found true beside an anchor; keep one of the two")
        return b""
    if tls["anchor"] is None:
        raise where.wrong("anchor", 'missing; give the CA\'s file, such as "ca.pem", or say insecure = true')
    file = where.file.parent / tls["anchor"]
    try:
        raw = _read(file) if given is None else given
        x509.load_pem_x509_certificates(raw)
    except ConfigError as error:
        raise where.wrong("anchor", str(error)) from None
    except ValueError:
        raise where.wrong("anchor", f"{file} holds no certificates; give a PEM file") from None
    return raw


def _check_roster(where: _Where, federation: Federation) -> None:
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


def _check_pool(where: _Where, key: str, hops: Iterable[str], federation: Federation) -> None:
    pool = [member.name for member in federation.shufflers]
    for hop in hops:
        if hop not in pool:
            near = get_close_matches(hop, pool, 1)
            hint = f'did you mean "{near[0]}"?' if near else f"there are {_show(pool)}"
            raise where.wrong(key, f"found {hop!r}, which is not the name of one of the [[shufflers]]; {hint}")


def _check_policy(where: _Where, federation: Federation) -> None:
    """Check what one key alone cannot tell."""
    policy, silos = federation.policy, len(federation.silos)
    if problem := federation.chain_rule.problem:
        raise where.wrong("minimum_hops", f"found {policy.minimum_hops}: {problem}; give 0 for the whole pool")
    if policy.level is Level.MALICIOUS:
        raise where.wrong("level", 'found "malicious", which is not available yet; give "semi-honest" or "trusted"')
    if policy.minimum_cohort > silos:
        raise where.wrong(
            "minimum_cohort", f"found {policy.minimum_cohort}; give at most {silos}, the number of [[silos]]"
        )
    invited, least = round(policy.subsample * silos, 9), federation.minimum_cohort
    if invited < least:
        raise where.wrong(
            "subsample",
            f"found {policy.subsample}, which invites {invited:g} of {silos} silos; give at least "
            f"{least / silos:g}, so that policy.minimum_cohort = {least} can be met",
        )
    if policy.group_size > invited:
        raise where.wrong("group_size", f"found {policy.group_size}; a round invites {invited:g} silos, give no more")
    if policy.granularity is not Granularity.SUM:
        if policy.level is not Level.TRUSTED:
            raise where.wrong(
                "granularity",
                f'found "{policy.granularity}" at level "{policy.level}"; give "sum", or policy.level = "trusted": '
                "the others are baselines for comparison, and protect nobody",
            )
        if policy.group_size:
            raise where.wrong("group_size", f'found {policy.group_size}; give 0 unless granularity is "sum"')
        unary = policy.granularity is Granularity.UNARY
        if unary and policy.encoding is Encoding.COUNTS:
            raise where.wrong("encoding", 'found "counts"; granularity "unary" takes "unary" or "first-primes"')
        if not unary and policy.weight_levels > 1:
            raise where.wrong(
                "weight_levels",
                f'found {policy.weight_levels}; give 1 with granularity "{policy.granularity}": plain values have no '
                "place for a weight",
            )
    if conflict := policy.conflict():
        raise where.wrong(*conflict)
    try:
        _ = federation.plan
    except LocalFault as fault:
        raise where.wrong(
            "precision",
            f"no plan holds with policy.precision = {policy.precision}, policy.weight_levels = "
            f"{policy.weight_levels}, policy.headroom = {policy.headroom} and {silos} silos: {fault.message} "
            "(r is policy.precision, n_max the number of silos)",
        ) from None


def load_node(path: Path) -> NodeConfig:
    """Read and check a node's file, or a directory's, with its federation file and its keys.

    What would fail at the first handshake or the first signature fails here, with the file's name.
    """
    file = path / NODE_FILE if path.is_dir() else path
    where = _Where(file)
    data = _parse(_decode(_read(file), file), file)
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
    member = _own_entry(where, role, values["name"], federation)
    _check_pool(where, "required_hops", values["required_hops"], federation)
    _check_identity(where, values["identity"], member)
    _check_tls(where, values, federation)
    if values["mqtt"] is not None:
        values["mqtt"] = _broker(where.under("mqtt"), values["mqtt"], values, federation)
    return NodeConfig(**{**values, "federation": federation, "listen": values["listen"] or member.address})


def _own_entry(where: _Where, role: Role, name: str, federation: Federation) -> Member:
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


# --- keys and certificates --------------------------------------------------------------------------------------------


def load_identity(path: Path) -> Secret:
    """Read a node's Ed25519 private key, and refuse one that others on this machine could read."""
    try:
        key = load_pem_private_key(_read_private(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(path, "", "is not an Ed25519 private key; give PEM (PKCS 8) without a passphrase")
    return Secret(key.private_bytes_raw())


def _read_private(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            if mode & 0o077:
                raise ConfigError(path, "", f"is open to others (mode {mode:o}): run chmod 600 {path}")
            return stream.read()
    except OSError as error:
        raise ConfigError(path, "", f"cannot be read: {error.strerror}") from None


def _check_identity(where: _Where, path: Path, member: Member) -> None:
    try:
        found = Identity(member.name, load_identity(path)).public
    except ConfigError as error:
        raise where.wrong("identity", str(error)) from None
    if found != member.key:
        raise where.wrong(
            "identity",
            f"{path} has the public key {found.hex()}, and the federation file lists {member.key.hex()} for "
            f"{member.name}; give the key that belongs to this entry, or have the owners change the entry",
        )


def _check_tls(where: _Where, values: Mapping[str, Any], federation: Federation) -> None:
    insecure, name = values["insecure"], values["name"]
    if insecure == bool(federation.anchor):
        other = "has a TLS anchor" if federation.anchor else "says tls.insecure = true"
        raise where.wrong("insecure", f"found {_show(insecure)}, and the federation file {other}; they must agree")
    for key in ("certificate", "key"):
        if insecure and values[key] is not None:
            raise where.wrong(key, "found a path beside insecure = true; keep one of the two")
        if not insecure and values[key] is None:
            raise where.wrong(key, f"missing; give {PATH.allowed}")
    if insecure:
        return
    try:
        private = load_pem_private_key(_read_private(values["key"]), password=None)
    except ConfigError as error:
        raise where.wrong("key", str(error)) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        problem = f"{values['key']} is not a private key; give PEM without a passphrase"
        raise where.wrong("key", problem) from None
    try:
        chain = x509.load_pem_x509_certificates(_read(values["certificate"]))
    except ConfigError as error:
        raise where.wrong("certificate", str(error)) from None
    except ValueError:
        raise where.wrong("certificate", f"{values['certificate']} holds no certificates; give a PEM file") from None
    form = KeyEncoding.DER, PublicFormat.SubjectPublicKeyInfo
    if private.public_key().public_bytes(*form) != chain[0].public_key().public_bytes(*form):
        raise where.wrong("key", f"{values['key']} does not belong to {values['certificate']}; give the one that does")
    if problem := _certificate_problem(chain, name, federation.anchor):
        raise where.wrong("certificate", f"{values['certificate']} {problem}")


def _broker(where: _Where, data: Mapping[str, Any], node: Mapping[str, Any], federation: Federation) -> Broker:
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
        raise where.wrong("anchor", "missing, and the federation has none; give the broker's CA, or say tls = false")
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
            _read_private(values["password_file"])
        except ConfigError as error:
            raise where.wrong("password_file", str(error)) from None
    for name in ("anchor", "certificate", "key"):
        if values[name] is not None and not values[name].is_file():
            raise where.wrong(name, f"{values[name]} is not there")
    return Broker(**values)


def _certificate_problem(chain: list[x509.Certificate], name: str, anchor: bytes) -> str:
    leaf = chain[0]
    common = [attribute.value for attribute in leaf.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    try:
        sans = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        dns = sans.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        dns = []
    if common != [name] or name not in dns:
        return f"is for {common} and the DNS names {dns}; give one with the common name and the DNS name {name}"
    if leaf.not_valid_after_utc < datetime.now(UTC):
        return f"ran out on {leaf.not_valid_after_utc:%Y-%m-%d}; have the federation's CA issue a new one"
    for root in x509.load_pem_x509_certificates(anchor):
        try:
            chain[-1].verify_directly_issued_by(root)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return ""
    return "was not issued by the federation's anchor; have that CA issue one"
