"""A federation whose nodes are all in one hand: for one machine, one operator, and trials.

It goes the way that owners go, all by itself: it makes an owner and every node's keys, assembles them, and accepts. So
whoever runs it holds every private key, and "one honest hop" says nothing against that one.
"""

import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from silomix.runtime.config.authority import CertificateAuthority, private_pem
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import LEAST_SILOS
from silomix.runtime.config.owners.accept import accept
from silomix.runtime.config.owners.assemble import assemble, write_federation
from silomix.runtime.config.owners.enrol import make_keys
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.config.texts import Value
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.policy import MAX_SHUFFLERS, MAX_SILOS, Policy
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.values import Scalar
from silomix.runtime.store.files import write_atomically
from silomix.runtime.store.home import ANCHOR_KEY_FILE, FEDERATION_FILE, OWNER_KEY_FILE

OWNER = "operator"
"""The one owner of everything."""


def init(
    directory: Path,
    silos: int,
    shufflers: int,
    *,
    name: str,
    policy: Policy,
    insecure: bool = False,
    ca: bool = False,
    host: str = "127.0.0.1",
    base_port: int = 0,
    listen_host: str = "",
    metrics_base_port: int = 0,
    silo_options: Callable[[int], Mapping[str, Scalar]] = lambda index: {},
    settings: Mapping[Role, Mapping[str, Value]] | None = None,
) -> Federation:
    """Write a complete federation into an empty directory: the federation file, and a directory for each node.

    ca                 make a CA of its own that issues the certificates, instead of pinning each node's own
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
    servers = ["aggregator", *hops]
    roles = {
        "aggregator": Role.AGGREGATOR,
        **dict.fromkeys(hops, Role.SHUFFLER),
        **dict.fromkeys(trainers, Role.SILO),
    }
    hosts = {node: host.replace("{name}", node) for node in roles}
    _check_ports(directory, "base_port", base_port, len(servers))
    _check_ports(directory, "metrics_base_port", metrics_base_port, len(roles))
    _check_empty(directory)
    ports = range(base_port, base_port + len(servers)) if base_port else _free_ports(directory, host, len(servers))
    addresses = {node: f"{_bracketed(hosts[node])}:{port}" for node, port in zip(servers, ports, strict=True)}

    private = Ed25519PrivateKey.generate()
    owner = Identity(OWNER, Secret(private.private_bytes_raw()))
    authority = CertificateAuthority(name) if ca and not insecure else None
    made = {
        node: make_keys(
            role,
            node,
            owner,
            addresses.get(node, ""),
            insecure=insecure,
            authority=authority,
            host=hosts[node],
        )
        for node, role in roles.items()
    }
    enrolments = [keys.enrolment for keys in made.values()]
    federation = assemble(  # before anything is written
        enrolments,
        name=name,
        policy=policy,
        file=directory / FEDERATION_FILE,
        pool=hops,
        anchor=authority.anchor if authority else b"",
        insecure=insecure,
    )

    directory.mkdir(parents=True, exist_ok=True)
    for index, (node, keys) in enumerate(made.items()):
        own: dict[str, Value] = dict((settings or {}).get(roles[node]) or {})
        if listen_host and node in addresses:
            own["listen"] = f"{_bracketed(listen_host)}:{addresses[node].rpartition(':')[2]}"
        if metrics_base_port:
            own["metrics_port"] = metrics_base_port + index
        options = silo_options(index - len(servers)) if node not in addresses else {}
        keys.write(directory / node, own, options)
    write_atomically(directory / OWNER_KEY_FILE, private_pem(private))
    if authority:
        write_atomically(directory / ANCHOR_KEY_FILE, authority.private_pem())
    accept(federation, owner, directory)
    write_federation(federation, enrolments, directory)
    return federation


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
