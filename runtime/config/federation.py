"""The federation file: read against the tables of the keys that exist, and checked as a whole."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography import x509

from silomix.runtime.config.keys import (
    FEDERATION_KEYS,
    MEMBER_KEYS,
    OWNER_KEYS,
    PLACES,
    POLICY_KEYS,
    SILO_KEYS,
    TLS_KEYS,
)
from silomix.runtime.config.kinds import Key
from silomix.runtime.config.tables import ConfigError, Where, parse, read, read_text, show
from silomix.runtime.core.policy import LEAST_COHORT, MAX_SHUFFLERS, MAX_SILOS, Policy
from silomix.runtime.core.protocol.federation import Federation, Member, Owner
from silomix.runtime.store.home import ANCHOR_FILE, FEDERATION_FILE

LEAST_SILOS = LEAST_COHORT


def load_federation(path: Path) -> Federation:
    """Read and check a federation file, or a directory's; nothing of it is taken on trust, nor learned later."""
    file = path / FEDERATION_FILE if path.is_dir() else path
    missing = "is not there: give the federation file that `silomix assemble` or `silomix init` wrote, or its directory"
    return parse_federation(read_text(file, missing), file)


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
        genesis=bytes.fromhex(top["genesis"]),
        predecessor=bytes.fromhex(top["predecessor"]),
        owners_quorum=top["owners_quorum"],
    )
    _check_epoch(where, federation)
    _check_owners(where, federation)
    _check_roster(where, federation)
    if conflict := federation.conflict():
        raise where.under("policy").wrong(*conflict)
    return federation


def _check_epoch(where: Where, federation: Federation) -> None:
    """Check that a later epoch says what it follows, and that no two sets of owners can decide without each other."""
    for key, value in (("genesis", federation.genesis), ("predecessor", federation.predecessor)):
        if bool(value) is not (federation.epoch > 1):
            problem = "missing" if federation.epoch > 1 else "found, and nothing comes before the first"
            raise where.wrong(key, f"{problem}; `silomix assemble --previous` writes the next epoch's file")
    owners = len(federation.owners)
    if federation.owners_quorum and not owners // 2 < federation.owners_quorum <= owners:
        raise where.wrong(
            "owners_quorum",
            f"found {federation.owners_quorum}; give {owners // 2 + 1} to {owners}, or 0 for a majority of the owners",
        )


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
