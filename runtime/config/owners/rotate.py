"""Changing a node's certificate, in two steps: announce the next one, and change over when others have heard of it.

Both are new pins of the node, each with the next counter and signed by its identity; nobody else is asked. The files of
the running node are replaced one by one, and it takes them up when they fit together.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate

from silomix.runtime.config.authority import private_pem
from silomix.runtime.config.load import NodeConfig, identity_of, load_node
from silomix.runtime.config.owners.pins import Pins, known_pins, read_pin, write_pin
from silomix.runtime.config.owners.selfsigned import der, pem, self_signed
from silomix.runtime.config.tables import ConfigError, parse, read_text
from silomix.runtime.core.errors import PeerFault, UserError
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.store.files import PUBLIC, write_atomically
from silomix.runtime.store.home import NEXT_CERTIFICATE_FILE, NEXT_KEY_FILE, NODE_FILE, PIN


def prepare(path: Path) -> Path:
    """Make the next certificate and announce it; return the new pin's file."""
    config, _, pin = _own(path)
    assert config.key is not None
    assert config.certificate is not None
    shown = der(config.certificate.read_bytes())  # that of the pin, or its next if a change-over was interrupted
    key = ec.generate_private_key(ec.SECP256R1())
    made = self_signed(config.name, key)
    home = config.key.parent
    write_atomically(home / NEXT_KEY_FILE, private_pem(key))
    write_atomically(home / NEXT_CERTIFICATE_FILE, made.public_bytes(Encoding.PEM), mode=PUBLIC)
    give((home / NEXT_KEY_FILE, home / NEXT_CERTIFICATE_FILE), home)
    return _say(config, Pin(config.name, pin.counter + 1, shown, made.public_bytes(Encoding.DER)))


def finish(path: Path) -> Path:
    """Let the certificate that was announced take the place of the current one; return the new pin's file.

    The pin comes last: until then both certificates are good, so the node may show either. Killed anywhere, it goes on
    when it is run again.
    """
    resume(path)
    config, _, pin = _own(path)
    assert config.key is not None
    assert config.certificate is not None
    home = config.key.parent
    key, certificate = home / NEXT_KEY_FILE, home / NEXT_CERTIFICATE_FILE
    announced = der(certificate.read_bytes()) if certificate.is_file() and key.is_file() else b""
    if announced and announced == pin.current:  # all was done but to clear up
        _clear(key, certificate)
        return config.state.pins / f"{config.name}{PIN}"
    if not pin.next or announced != pin.next:
        raise UserError(f"{home}: no next certificate was announced; run `silomix rotate` first")
    if not belongs(key, certificate):
        raise UserError(f"{key}: does not belong to {certificate}, which was announced; run `silomix rotate` again")
    write_atomically(config.key, key.read_bytes())
    write_atomically(config.certificate, pem(pin.next), mode=PUBLIC)
    give((config.key, config.certificate), home)
    done = _say(config, Pin(config.name, pin.counter + 1, pin.next))
    _clear(key, certificate)
    return done


def resume(path: Path) -> None:
    """Go on where an earlier change-over was killed: the new key was in place, and its certificate was not."""
    file = path / NODE_FILE if path.is_dir() else path
    data = parse(read_text(file), file)
    if not isinstance(data.get("key"), str) or not isinstance(data.get("certificate"), str):
        return  # no TLS, or something that `load_node` has a word for
    key, certificate = file.parent / data["key"], file.parent / data["certificate"]
    next_key, following = key.with_name(NEXT_KEY_FILE), key.with_name(NEXT_CERTIFICATE_FILE)
    if not all(one.is_file() for one in (key, certificate, next_key, following)):
        return
    if key.read_bytes() == next_key.read_bytes() and belongs(key, following) and not belongs(key, certificate):
        write_atomically(certificate, following.read_bytes(), mode=PUBLIC)
        give((certificate,), key.parent)


def belongs(key: Path, certificate: Path) -> bool:
    """Whether a private key is that of a certificate."""
    try:
        private = load_pem_private_key(key.read_bytes(), password=None)
        shown = load_pem_x509_certificate(certificate.read_bytes())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    return private.public_key().public_bytes(*form) == shown.public_key().public_bytes(*form)


def _clear(*files: Path) -> None:
    for file in files:
        file.unlink(missing_ok=True)


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
