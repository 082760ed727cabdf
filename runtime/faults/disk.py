"""A node's disk in memory: it can be full, damaged, or put back as it was some time ago.

Facts go through the bytes that a node's journal would hold, and back, with its checksums. So a schedule of faults also
tries what stands in `runtime/nodes/facts.py`.
"""

import hashlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from silomix.runtime.core.numbers.masks import SEED_BYTES, Secret
from silomix.runtime.store.journal import Journal, JournalBusy, checksum
from silomix.runtime.store.vault import DamagedError, Secrets

Place = tuple[str, int, str]
"""Kind, round, key."""
Lot = tuple[tuple[tuple[str, bytes], ...], bytes]
"""Secrets by name, and their checksum."""


@dataclass
class Content:
    """All bytes of a disk."""

    facts: dict[Place, tuple[bytes, bytes]] = field(default_factory=dict)
    """Each with its checksum."""
    secrets: dict[Place, Lot] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


class Disk:
    """What outlives a process."""

    def __init__(self, owner: str) -> None:
        """Start empty."""
        self.owner = owner
        self.content = Content()
        self.full = False
        self.checked = True
        """Whether what is read is compared with its checksum: not in a mutant."""
        self._spoiled: list[tuple[Content, Content]] = []
        self.before_write: Callable[[], None] = lambda: None
        """Where a schedule kills the node, or fills the disk."""

    def write(self) -> None:
        """Be written to, or have no room."""
        self.before_write()
        if self.full:
            raise JournalBusy(f"the disk of {self.owner} is full")

    def copy(self) -> Content:
        """What a backup would hold."""
        return deepcopy(self.content)

    def damage(self, random: Random) -> str:
        """Flip one bit somewhere, and say where; nothing if the disk is empty."""
        content = self.content
        spots: list[tuple[str, Callable[[], None]]] = []
        for place, fact in sorted(content.facts.items()):
            spots.append((f"fact {place[0]}", partial(self._damage_fact, place, fact, random)))
        for place, lot in sorted(content.secrets.items()):
            spots.append((f"secret {place[0]}", partial(self._damage_lot, place, lot, random)))
        for name, data in sorted(content.files.items()):
            spot = (f"file {name.partition('-')[0]}", partial(self._damage_file, name, data, random))
            spots += [spot] * 3  # there are few of them
        if not spots:
            return ""
        what, spoil = random.choice(spots)
        before = self.copy()
        spoil()
        self._spoiled.append((before, self.copy()))
        return what

    def put_right(self) -> None:
        """Give what was damaged, and is still there as it was, its old bytes back."""
        for before, after in reversed(self._spoiled):
            for name in ("facts", "secrets", "files"):
                good, bad, now = (getattr(one, name) for one in (before, after, self.content))
                for key, value in bad.items():
                    if good[key] != value and now.get(key) == value:
                        now[key] = good[key]
        self._spoiled = []

    def _damage_fact(self, place: Place, fact: tuple[bytes, bytes], random: Random) -> None:
        value, check = fact
        self.content.facts[place] = (_flipped(value, random), check) if value else (value, _flipped(check, random))

    def _damage_lot(self, place: Place, lot: Lot, random: Random) -> None:
        secrets, check = [*lot[0]], lot[1]
        at = random.randrange(len(secrets))
        secrets[at] = (secrets[at][0], _flipped(secrets[at][1], random))
        self.content.secrets[place] = (tuple(secrets), check)

    def _damage_file(self, name: str, data: bytes, random: Random) -> None:
        self.content.files[name] = _flipped(data, random)

    def put_file(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all."""
        self.write()
        self.content.files[name] = data


def _flipped(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


class MemoryVault:
    """What `Vault` is to a directory, to a disk in memory."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def put(self, kind: str, round_: int, key: str, secrets: Secrets) -> None:
        """Write a lot."""
        self._disk.write()
        lot = tuple((name, bytes(bytearray(secret.value))) for name, secret in secrets)
        self._disk.content.secrets[kind, round_, key] = (lot, _lot_check(lot))

    def lots(self, kind: str) -> Iterator[tuple[int, str, Secrets]]:
        """Read all lots of a kind."""
        for (found, round_, key), (lot, check) in sorted(self._disk.content.secrets.items()):
            if found == kind:
                if self._disk.checked and _lot_check(lot) != check:
                    raise DamagedError(f"{kind} of round {round_} is damaged")
                yield round_, key, tuple((name, Secret(bytes(bytearray(value)))) for name, value in lot)

    def forget(self, kind: str, round_: int, key: str) -> None:
        """Delete a lot."""
        self._disk.write()
        self._disk.content.secrets.pop((kind, round_, key), None)


def _lot_check(lot: tuple[tuple[str, bytes], ...]) -> bytes:
    check = hashlib.sha256()
    for name, value in lot:
        assert len(value) == SEED_BYTES
        check.update(name.encode() + b"\0" + value)
    return check.digest()


class MemoryJournal(Journal):
    """A journal on a disk in memory: the same facts, in the same bytes, under the same checksums."""

    def __init__(self, disk: Disk) -> None:
        """Open it. What is damaged is found when it is read."""
        self._path = Path(disk.owner) / "journal"
        self._disk = disk
        self.secrets = MemoryVault(disk)  # type: ignore[assignment]

    def put(self, kind: str, round_: int, key: str, value: bytes) -> None:
        """Write a fact."""
        self._disk.write()
        self._disk.content.facts[kind, round_, key] = (value, checksum(kind, round_, key, value))

    def facts(self, kind: str) -> Iterator[tuple[int, str, bytes]]:
        """Read all facts of a kind."""
        for (found, round_, key), (value, written) in sorted(self._disk.content.facts.items()):
            if found == kind:
                if self._disk.checked:
                    self.check(kind, round_, key, value, written)
                yield round_, key, value

    def forget(self, kind: str, round_: int, key: str) -> None:
        """Delete a fact."""
        self._disk.write()
        self._disk.content.facts.pop((kind, round_, key), None)

    def close(self) -> None:
        """There is nothing to close."""
