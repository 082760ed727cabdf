"""What the files of a node and of a federation may say: kinds of values, and keys that have one.

runtime/core/values.py has the kinds that the policy shares with commands.
"""

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from silomix.runtime.core.protocol.points import key_problem
from silomix.runtime.core.values import Kind, Unfit, text


class Role(StrEnum):
    """What a node does in its federation; the roster must say the same."""

    AGGREGATOR = "aggregator"
    SHUFFLER = "shuffler"
    SILO = "silo"


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
    key = bytes.fromhex(value)
    if problem := key_problem(key):
        raise Unfit(problem)
    return key


def _signature(value: Any) -> bytes:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{128}", value):
        raise ValueError
    return bytes.fromhex(value)


def _certificate(value: Any) -> bytes:
    """Read one certificate, PEM, as DER."""
    if not isinstance(value, str):
        raise ValueError
    match = re.fullmatch(
        r"\s*-----BEGIN CERTIFICATE-----\s([A-Za-z0-9+/=\s]{1,8000})-----END CERTIFICATE-----\s*", value
    )
    if match is None:
        raise ValueError
    return base64.b64decode("".join(match[1].split()), validate=True)


def _address(value: Any) -> str:
    match = isinstance(value, str) and re.fullmatch(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", value)
    if not match or not 0 < int(match[1]) < 1 << 16:
        raise ValueError
    return match[0]


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(set(map(str, value))) < len(value):
        raise ValueError
    return tuple(NAME.parse(name) for name in value)


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) and word and "\0" not in word for word in value):
        raise ValueError
    return tuple(value)


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
WORDS = Kind('a command as a list of words, such as ["/usr/bin/test", "-f", "go"]', _words)
SIGNATURE = Kind("an Ed25519 signature, 64 bytes as 128 hex digits", _signature)
CERTIFICATE = Kind("one certificate, PEM", _certificate)
FLAG = Kind("true or false", _flag)
TABLE = Kind("a table", _raw(dict))
TABLES = Kind("an array of tables", _raw(list))
