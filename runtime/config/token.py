"""Identities in PKCS#11 tokens, such as smart cards and hardware security modules: keys are made and stay there.

A token is named by a URI (RFC 7512), of which these parts are used:

    pkcs11:token=NAME;object=LABEL?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/silomix/pin

`module-path` is the library that the token's maker provides, and `pin-source` a file with the PIN that nobody but its
owner may read. The token has to know Ed25519 (CKM_EDDSA). Every signature is verified before it is used.
"""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from silomix.runtime.config.signer import SignerError
from silomix.runtime.config.tables import read_private
from silomix.runtime.core.errors import PeerFault, UserError
from silomix.runtime.core.protocol.identity import verify
from silomix.runtime.store.files import PUBLIC, write_atomically
from silomix.runtime.store.home import TOKENS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable

ED25519 = "1.3.101.112"
PUBLIC_BYTES = 32
FORM = "pkcs11:token=NAME;object=LABEL?module-path=FILE&pin-source=FILE"
_PATH, _QUERY = ("token", "object"), ("module-path", "pin-source")


@dataclass(frozen=True)
class TokenUri:
    """Which key in which token, through which library, and where its PIN is."""

    text: str
    token: str
    object: str
    module: Path
    pin: Path

    def __str__(self) -> str:
        return f"the key {self.object!r} in the token {self.token!r}"


def parse_uri(text: str) -> TokenUri:
    """Read a token's URI; what is not known is refused, as a PIN in it is."""
    scheme, _, rest = text.partition(":")
    path, _, query = rest.partition("?")
    if scheme != "pkcs11":
        raise UserError(f"found {text!r}; give {FORM}")
    found: dict[str, str] = {}
    for known, parts in ((_PATH, path.split(";")), (_QUERY, query.split("&"))):
        for part in filter(None, parts):
            name, equals, value = part.partition("=")
            if name == "pin-value":
                raise UserError(
                    "pin-value would let everybody read the PIN who may read this file: put it into a file of "
                    "mode 600, and give pin-source=file:THAT"
                )
            if name not in known or not equals or name in found:
                raise UserError(f"found {part[:80]!r} in a token's URI; give {FORM}")
            found[name] = unquote(value)
    if missing := [name for name in (*_PATH, *_QUERY) if not found.get(name)]:
        raise UserError(f"a token's URI lacks {', '.join(missing)}; give {FORM}")
    module, pin = Path(found["module-path"]), Path(found["pin-source"].removeprefix("file:"))
    for name, file in (("module-path", module), ("pin-source", pin)):
        if not file.is_absolute():
            raise UserError(f"found {name}={file}; give an absolute path")
    return TokenUri(text, found["token"], found["object"], module, pin)


def following(uri: TokenUri) -> TokenUri:
    """Name the key that takes over from another, in the same token: LABEL.2 after LABEL, LABEL.3 after that."""
    plain, dot, number = uri.object.rpartition(".")
    label = f"{plain}.{int(number) + 1}" if dot and number.isdecimal() else f"{uri.object}.2"
    path, _, query = uri.text.removeprefix("pkcs11:").partition("?")
    parts = [f"object={quote(label)}" if part.startswith("object=") else part for part in path.split(";")]
    return parse_uri(f"pkcs11:{';'.join(parts)}?{query}")


def remember_key(home: Path, key: "TokenSigner") -> Path:
    """Write down which key in a token a node has besides, by its public half: an epoch lists one of them."""
    file = home / TOKENS_FILE
    lines = file.read_text().splitlines() if file.is_file() else []
    line = f"{key.public.hex()} {key.uri.text}"
    if line not in lines:
        write_atomically(file, "".join(f"{one}\n" for one in (*lines, line)).encode(), mode=PUBLIC)
    return file


def uri_of(home: Path, uri: str, public: bytes) -> str:
    """Return the URI of the key with this public half, if the node was given one since; else that of its own file."""
    file = home / TOKENS_FILE
    known = dict(line.split(" ", 1) for line in file.read_text().splitlines()) if file.is_file() else {}
    return known.get(public.hex(), uri)


@dataclass(frozen=True)
class _Open:
    """The sessions of this process. A token is logged in to once by a process, however many nodes it has."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    sessions: dict[tuple[Path, str], Any] = field(default_factory=dict)

    def use(self, uri: TokenUri, work: "Callable[[Any], Any]") -> Any:
        """Do something in a session with a token, one thing at a time; one that failed is opened again next time."""
        with self.lock:
            where = (uri.module, uri.token)
            pkcs11 = _library()
            try:
                if where not in self.sessions:
                    pin = read_private(uri.pin).decode().strip()
                    token = pkcs11.lib(str(uri.module)).get_token(token_label=uri.token)
                    self.sessions[where] = token.open(rw=True, user_pin=pin)
                return work(self.sessions[where])
            except pkcs11.exceptions.NoSuchKey:
                raise SignerError(f"{uri} is not there: look at the label, or make it with `silomix keygen`") from None
            except (pkcs11.exceptions.PKCS11Error, RuntimeError) as error:
                self._drop(where)
                said = str(error) or type(error).__name__
                raise SignerError(f"{uri} cannot be used through {uri.module}: {said}") from None

    def _drop(self, where: tuple[Path, str]) -> None:
        session = self.sessions.pop(where, None)
        if session is not None:
            try:
                session.close()
            except _library().exceptions.PKCS11Error:
                return  # it is gone already


_OPEN = _Open()


def _library() -> Any:
    try:
        import pkcs11
    except ImportError:
        raise UserError("identities in tokens need python-pkcs11: pip install 'silomix[pkcs11]'") from None
    return pkcs11


@dataclass(frozen=True)
class TokenSigner:
    """Signs with a key in a token, whose public half is known."""

    uri: TokenUri
    public: bytes

    def sign(self, what: bytes) -> bytes:
        """Sign a digest."""
        signature: bytes = _OPEN.use(self.uri, lambda session: _sign(session, self.uri, what))
        try:
            verify(self.public, what, signature, str(self.uri))
        except PeerFault:
            raise SignerError(
                f"{self.uri} is another than {self.public.hex()}, which the federation file lists"
            ) from None
        return signature


def _sign(session: Any, uri: TokenUri, what: bytes) -> bytes:
    from pkcs11 import KeyType, Mechanism, ObjectClass

    key = session.get_key(object_class=ObjectClass.PRIVATE_KEY, key_type=KeyType.EC_EDWARDS, label=uri.object)
    return bytes(key.sign(what, mechanism=Mechanism.EDDSA))


def token_key(uri: TokenUri) -> tuple[TokenSigner, bool]:
    """Return a signer for a key in a token, which is made there if it is not there yet; and whether it was made."""
    public, made = _OPEN.use(uri, lambda session: _find_or_make(session, uri))
    return TokenSigner(uri, public), made


def _find_or_make(session: Any, uri: TokenUri) -> tuple[bytes, bool]:
    from pkcs11 import Attribute, KeyType, Mechanism, ObjectClass
    from pkcs11.exceptions import NoSuchKey
    from pkcs11.util.ec import encode_named_curve_parameters

    made = False
    try:
        key = session.get_key(object_class=ObjectClass.PUBLIC_KEY, key_type=KeyType.EC_EDWARDS, label=uri.object)
    except NoSuchKey:
        curve = {Attribute.EC_PARAMS: encode_named_curve_parameters(ED25519)}
        parameters = session.create_domain_parameters(KeyType.EC_EDWARDS, curve, local=True)
        key, _ = parameters.generate_keypair(mechanism=Mechanism.EC_EDWARDS_KEY_PAIR_GEN, store=True, label=uri.object)
        made = True
    return bytes(key[Attribute.EC_POINT])[-PUBLIC_BYTES:], made  # some tokens wrap it into an OCTET STRING
