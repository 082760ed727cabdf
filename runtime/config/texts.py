"""Writing the files that a person reads: every key explained, from the same tables that they are read against."""

import json
import re
from collections.abc import Iterator, Mapping
from textwrap import wrap

from silomix.runtime.config.keys import MQTT_KEYS, NODE_KEYS, POLICY_KEYS
from silomix.runtime.config.kinds import FLAG, PATH, Key, Role
from silomix.runtime.core.policy import KEYS
from silomix.runtime.core.protocol.federation import Federation, Member, Owner
from silomix.runtime.core.values import Scalar
from silomix.runtime.store.home import ANCHOR_FILE

Value = Scalar | tuple[str, ...] | list[str] | Mapping[str, Scalar]


def federation_text(federation: Federation) -> str:
    """Write a federation file."""
    return "\n".join((*_federation_lines(federation), ""))


def _federation_lines(federation: Federation) -> Iterator[str]:
    yield "# The federation file: who takes part, with which keys, under which policy."
    yield "# Every node pins its own copy. A digest of all that it says is in every message, so the copies must agree;"
    yield "# comments and the order of keys may differ, the order of nodes may not."
    yield ""
    yield f"name = {toml(federation.name)}"
    yield ""
    yield "# The number of this file among those of the federation. The first counts when every owner has signed it."
    yield f"epoch = {federation.epoch}"
    if federation.epoch > 1:
        yield "# The first of them, and the one before this, by their digests."
        yield f"genesis = {toml(federation.genesis.hex())}"
        yield f"predecessor = {toml(federation.predecessor.hex())}"
    yield "# Owners who have to sign the next one; 0 for a majority of them."
    yield f"owners_quorum = {federation.owners_quorum}"
    yield ""
    yield "[tls]"
    if federation.pinned:
        yield "# Each node has a certificate of its own making, pinned by its identity: NAME.pin, beside this file."
        yield "pinned = true"
    elif federation.anchor:
        yield "# Certificates of the CAs that vouch for nodes. Each node needs a copy of this file, beside this one."
        yield f"anchor = {toml(ANCHOR_FILE)}"
    else:
        yield "# No TLS: for trials on one machine only."
        yield "insecure = true"
    yield ""
    yield "[policy]"
    for name, key in POLICY_KEYS.items():
        if name != "task_options":
            value = getattr(federation.policy, name)
            yield from _entry(key, name, value, commented=KEYS[name].later and value == key.default)
    yield from _options("policy.task_options", POLICY_KEYS["task_options"], federation.policy.task_options)
    yield ""
    yield "# Who has to agree to this file, by a signature beside it: OWNER.accepted, which `silomix accept` writes."
    for owner in federation.owners:
        yield from _owner(owner)
    yield from _member("[aggregator]", federation.aggregator)
    yield ""
    yield "# The pool of hops. Bodies pass them in this order."
    for member in federation.shufflers:
        yield from _member("[[shufflers]]", member)
    for member in federation.silos:
        yield from _member("[[silos]]", member)


def _owner(owner: Owner) -> Iterator[str]:
    yield ""
    yield "[[owners]]"
    yield f"name = {toml(owner.name)}"
    yield f"key = {toml(owner.key.hex())}"


def _member(header: str, member: Member) -> Iterator[str]:
    yield ""
    yield header
    yield f"name = {toml(member.name)}"
    yield f"key = {toml(member.key.hex())}"
    yield f"owner = {toml(member.owner)}"
    if member.address:
        yield f"address = {toml(member.address)}"


def node_text(settings: Mapping[str, Value], options: Mapping[str, Scalar]) -> str:
    """Write what is set, and what is not as a comment, so that the file is its own manual."""
    lines = ["# This node's own settings. Paths are relative to this file."]
    for name, key in NODE_KEYS.items():
        if settings["role"] not in key.roles or name in ("task_options", "mqtt"):
            continue
        set_here = name in settings
        example = "" if key.default is None else key.default
        lines += _entry(key, name, settings[name] if set_here else example, commented=not set_here)
    if settings["role"] is Role.SILO:
        lines += _options("task_options", NODE_KEYS["task_options"], options)
    lines += _broker(settings.get("mqtt"))
    return "\n".join((*lines, ""))


def _broker(given: Value | None) -> Iterator[str]:
    """Write the table of the broker, or how one would be given: last, since a table ends only with the next."""
    broker = given if isinstance(given, Mapping) else {}
    yield ""
    yield f"# {NODE_KEYS['mqtt'].what}"
    yield "[mqtt]" if broker else "# [mqtt]"
    for name, key in MQTT_KEYS.items():
        example = "" if key.default is None else key.default
        yield from _entry(key, name, broker.get(name, example), commented=name not in broker)


def _entry(key: Key, name: str, value: Value, *, commented: bool = False) -> Iterator[str]:
    yield ""
    yield from (f"# {line}" for line in wrap(key.what, 100, break_on_hyphens=False))
    if key.kind not in (PATH, FLAG):
        yield f"# Allowed: {key.kind.allowed}."
    yield f"{'# ' if commented else ''}{name} = {toml(key.kind.shown(value))}"


def _options(header: str, key: Key, options: Mapping[str, Scalar]) -> Iterator[str]:
    yield ""
    yield f"# {key.what}"
    yield f"[{header}]"
    for name, value in options.items():
        yield f"{name if re.fullmatch('[A-Za-z0-9_-]+', name) else toml(name)} = {toml(value)}"


def toml(value: Value) -> str:
    """Write a value."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):  # a JSON string is a TOML string, but for one character
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    return f"[{', '.join(map(toml, value))}]"
