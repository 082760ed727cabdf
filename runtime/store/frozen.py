"""A silo's frozen integers: what it sends on a model, the same in every attempt and after every restart.

Were a silo to train a second time from one model, noise and chance would make other integers of it, and the difference
of two sums would tell of the silo alone. So the file says for which model and policy it is, by its name, and carries a
checksum over content and name. Whatever does not fit is not used, and not made anew either.

    content                                     packed planes, or a baseline's values; not masked
    digest("frozen file", name, BLAKE3(content))  32 bytes
"""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from silomix.runtime.core.digest import DIGEST_BYTES, digest, fast_hash
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.numbers.packing import Bytes
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.store.files import sweep, write_atomically

_SUFFIX = ".planes"
_FORMAT = "slices"
"""How integers are packed: another way to pack them is another name."""


class FrozenError(UserError):
    """A file of frozen integers cannot be used: which one, and what its owner can do."""


def frozen_name(manifest: Manifest, federation: Federation) -> str:
    """One name for one set of integers: what they were trained from, and everything that shaped them."""
    name = digest(
        "frozen",
        _FORMAT,
        manifest.model,
        manifest.schema.digest,
        manifest.plan.digest,
        manifest.chunk_parameters,
        str(manifest.update),
        str(manifest.granularity),
        b"".join(struct.pack("<d", bound) for bound in manifest.bounds),
        federation.noise.variance,
        federation.policy.shape(),
    )
    return name.hex()


@dataclass(frozen=True)
class Frozen:
    """The directory of a silo's frozen integers. It holds those of one round: the newest."""

    directory: Path

    def path(self, name: str) -> Path:
        """Where the integers of a name lie."""
        return self.directory / f"{name}{_SUFFIX}"

    def clear(self) -> None:
        """Delete the integers of earlier rounds, and what a process left that was killed while it wrote."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for old in self.directory.glob(f"*{_SUFFIX}"):
            old.unlink(missing_ok=True)
        sweep(self.directory)

    def write(self, name: str, body: Bytes) -> None:
        """Write integers, durably, in the place of those of earlier rounds."""
        self.clear()
        write_atomically(self.path(name), body.data, checksum(name, fast_hash(body.data)))

    def read(self, name: str) -> Bytes | None:
        """Read the integers of a name, whole and checked, or nothing if there are none."""
        path = self.path(name)
        try:
            data = np.fromfile(path, np.uint8)
        except FileNotFoundError:
            return None
        return whole(name, data, path)


def whole(name: str, data: Bytes, path: Path) -> Bytes:
    """Take the integers out of a file's content, or refuse it if its checksum is another."""
    body, found = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:].tobytes()
    if checksum(name, fast_hash(body.data)) != found:
        raise FrozenError(
            f"{path} is damaged: this silo sits the round out, since training again would give its update away. "
            "See to the disk; leave the file where it is, the next round replaces it"
        )
    return body


def checksum(name: str, content: bytes) -> bytes:
    """What stands at the end of a file."""
    return digest("frozen file", name, content)
