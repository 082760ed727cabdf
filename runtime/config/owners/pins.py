"""Pins: by which certificate each node is known. A side table of the federation file, which its digest leaves out.

A pin is a small file, NAME.pin, beside the federation file. The node's identity signs it and counts it, so that a node
changes its certificate without asking anybody, and nobody brings an old one back. What a node has been shown, by a file
or by a peer, it keeps in its own state; of two pins the higher counter counts.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from silomix.runtime.config.kinds import CERTIFICATE, NAME, SIGNATURE, Key
from silomix.runtime.config.owners.selfsigned import form_problem, pem
from silomix.runtime.config.tables import ConfigError, Where, parse, read_text
from silomix.runtime.config.texts import toml
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.core.values import whole
from silomix.runtime.store.files import PUBLIC, write_atomically
from silomix.runtime.store.home import EPOCHS_DIRECTORY, PIN, State

MAX_COUNTER = (1 << 53) - 1
PIN_KEYS = {
    "name": Key(NAME, "Whose certificate it is.", required=True),
    "counter": Key(whole(1, MAX_COUNTER), "Of two pins of one node the higher counts.", required=True),
    "current": Key(CERTIFICATE, "The certificate that the node shows.", required=True),
    "next": Key(CERTIFICATE, "The one that it will show next, if it is about to change.", default=b""),
    "signature": Key(SIGNATURE, "By the node's identity.", required=True),
}


class Pins:
    """The newest pin of each node that this one has seen. What is older is never taken again."""

    def __init__(self, federation: Federation) -> None:
        """Nobody is known yet."""
        self._federation = federation
        self._pins: dict[str, Pin] = {}

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._pins.values())

    def get(self, name: str) -> Pin | None:
        """The pin of a node, if there is one."""
        return self._pins.get(name)

    def take(self, pin: Pin) -> bool:
        """Take a pin in; return whether it was news. One that its node has not signed is refused.

        Of two pins with the same counter the first counts: a node that signs two means harm, or was copied.
        """
        known = self._pins.get(pin.name)
        if known is not None and pin.counter <= known.counter:
            return False
        pin.check(self._federation)
        for certificate in pin.certificates:
            if problem := form_problem(certificate, pin.name):
                what = f"the certificate that {pin.name} pins {problem}"
                raise PeerFault(Reason.UNKNOWN_PEER, what, peer=pin.name)
        self._pins[pin.name] = pin
        return True

    def known_by(self, name: str, certificate: bytes) -> bool:
        """Whether a certificate, DER, is one that a node is known by now."""
        pin = self._pins.get(name)
        return pin is not None and certificate in pin.certificates

    def roots(self, names: Iterable[str] = ()) -> bytes:
        """The certificates of some nodes, or of all, PEM: a trust store in which each vouches for itself alone."""
        chosen = [self._pins[name] for name in names if name in self._pins] if names else self._pins.values()
        return b"".join(pem(certificate) for pin in chosen for certificate in pin.certificates)

    def missing(self) -> list[str]:
        """Name the members of whom there is no pin."""
        return [name for name in self._federation.members if name not in self._pins]


def write_pin(pin: Pin, directory: Path) -> Path:
    """Write a pin as the file of its node, durably."""
    path = directory / f"{pin.name}{PIN}"
    lines = [
        "# By which certificate this node is known. Signed by its identity; the highest counter counts.",
        f"name = {toml(pin.name)}",
        f"counter = {pin.counter}",
        f"signature = {toml(pin.signature.hex())}",
        f'current = """\n{pem(pin.current).decode()}"""',
    ]
    if pin.next:
        lines.append(f'next = """\n{pem(pin.next).decode()}"""')
    write_atomically(path, ("\n".join(lines) + "\n").encode(), mode=PUBLIC)
    return path


def read_pin(path: Path) -> Pin:
    """Read a pin. Who signed it is not looked at here."""
    return _parsed(read_text(path), path)


@lru_cache(maxsize=1024)
def _parsed(text: str, path: Path) -> Pin:
    return Pin(**Where(path).take(parse(text, path), PIN_KEYS))


def load_pins(federation: Federation, *directories: Path) -> Pins:
    """Read every pin of some directories, and take the newest of each member. What was tampered with is refused."""
    pins = Pins(federation)
    for directory in directories:
        for path in sorted(directory.glob(f"*{PIN}")) if directory.is_dir() else ():
            pin = read_pin(path)
            member = federation.members.get(pin.name)
            if member is None:  # of another federation, or of an earlier one
                continue
            try:
                pins.take(pin)
            except PeerFault as fault:
                if federation.epoch > 1 and fault.reason is Reason.BAD_SIGNATURE:  # of an identity of another epoch
                    continue
                raise ConfigError(
                    path, "", f"{fault.message}: have {member.owner} send {pin.name}{PIN} again"
                ) from None
    return pins


def known_pins(federation: Federation, agreement: Path, state: State) -> Pins:
    """Read every pin that a node has: those beside its files of epochs, and those that it was shown."""
    later = (agreement / EPOCHS_DIRECTORY, state.epochs) if federation.epoch > 1 else ()
    return load_pins(federation, agreement, *(one for place in later for one in sorted(place.glob("*"))), state.pins)


def require_pins(pins: Pins, federation: Federation, directory: Path) -> None:
    """Refuse to go on while a member is not known by any certificate."""
    if missing := pins.missing():
        name = missing[0]
        raise ConfigError(
            directory,
            "",
            f"there is no {name}{PIN}, and {len(missing)} of {len(federation.members)} members are not known by a "
            f"certificate: have {federation.member(name).owner} send it, and put it beside the federation file",
        )
