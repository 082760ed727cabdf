"""Changing a node's certificate, in two steps: announce the next one, and change over when others have heard of it.

Both are new pins of the node, each with the next counter and signed by its identity; nobody else is asked. The files of
the running node are replaced one by one, and it takes them up when they fit together.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from silomix.runtime.config.authority import private_pem
from silomix.runtime.config.load import NodeConfig, identity_of, load_node
from silomix.runtime.config.owners.pins import Pins, known_pins, read_pin, write_pin
from silomix.runtime.config.owners.selfsigned import der, pem, self_signed
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import PeerFault, UserError
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.store.files import PUBLIC, write_atomically
from silomix.runtime.store.home import NEXT_CERTIFICATE_FILE, NEXT_KEY_FILE


def prepare(path: Path) -> Path:
    """Make the next certificate and announce it; return the new pin's file."""
    config, _, pin = _own(path)
    assert config.key is not None
    key = ec.generate_private_key(ec.SECP256R1())
    made = self_signed(config.name, key)
    home = config.key.parent
    write_atomically(home / NEXT_KEY_FILE, private_pem(key))
    write_atomically(home / NEXT_CERTIFICATE_FILE, made.public_bytes(Encoding.PEM), mode=PUBLIC)
    give((home / NEXT_KEY_FILE, home / NEXT_CERTIFICATE_FILE), home)
    return _say(config, Pin(config.name, pin.counter + 1, pin.current, made.public_bytes(Encoding.DER)))


def finish(path: Path) -> Path:
    """Let the certificate that was announced take the place of the current one; return the new pin's file.

    The pin comes last: until then both certificates are good, so the node may show either.
    """
    config, _, pin = _own(path)
    assert config.key is not None
    assert config.certificate is not None
    home = config.key.parent
    key, certificate = home / NEXT_KEY_FILE, home / NEXT_CERTIFICATE_FILE
    if not pin.next or not certificate.is_file() or der(certificate.read_bytes()) != pin.next:
        raise UserError(f"{home}: no next certificate was announced; run `silomix rotate` first")
    write_atomically(config.key, key.read_bytes())
    write_atomically(config.certificate, pem(pin.next), mode=PUBLIC)
    give((config.key, config.certificate), home)
    done = _say(config, Pin(config.name, pin.counter + 1, pin.next))
    key.unlink()
    certificate.unlink()
    return done


def take(path: Path, file: Path) -> tuple[Pin, bool]:
    """Take another node's new pin in; return it, and whether it was news."""
    config = load_node(path)
    pins, pin = _pins(config), read_pin(file)
    try:
        news = pins.take(pin)
    except PeerFault as fault:
        raise ConfigError(file, "", f"{fault.message}; ask its owner for another") from None
    if news:
        keep(pin, config)
    return pins.get(pin.name) or pin, news


def keep(pin: Pin, config: NodeConfig) -> Path:
    """Write a pin where the node finds it again, whatever the files beside the federation file say later."""
    place = config.state.pins
    place.mkdir(parents=True, exist_ok=True)
    path = write_pin(pin, place)
    give((place.parent, place, path), config.identity.parent)
    return path


def give(paths: Iterable[Path], like: Path) -> None:
    """Give what root has written to the user that runs the node, whose directory this is."""
    if os.geteuid() == 0:
        owner = like.stat()
        for path in paths:
            os.chown(path, owner.st_uid, owner.st_gid)


def _own(path: Path) -> tuple[NodeConfig, Pins, Pin]:
    config = load_node(path)
    if not config.federation.pinned:
        raise UserError(f"{path}: this federation has CAs: have one issue a certificate, and replace the files")
    pins = _pins(config)
    pin = pins.get(config.name)
    assert pin is not None  # `load_node` has looked
    return config, pins, pin


def _pins(config: NodeConfig) -> Pins:
    return known_pins(config.federation, config.agreement, config.state)


def _say(config: NodeConfig, pin: Pin) -> Path:
    return keep(pin.signed(identity_of(config)), config)
