"""What nodes on this machine have to say: warnings and errors, read from their own logs as they are written.

Whoever runs all nodes of a federation owns all of its logs, and wants to read in one place what went wrong in any of
them. Nothing of it travels: a silo's log stays on the silo's host, and here that is this one.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silomix.runtime.observe.log import HERE

OUT_OF_ROUND = "not in this round"
"""How a silo's log says that it could not take part."""
CLIPPED = "clipped"
"""How it says that values were beyond their bound."""

_LINE = re.compile(r"\S+Z (WARNING|ERROR) +(\S+)  (.*)")
_FIELD = re.compile(r"  (\w+)=")
_STARTING = "reachable"
"""In what nodes say of each other while they start: it is over as soon as all are there."""
PASSING = ("attempt ", "hop does not answer", "hop in trouble", "hop lost", "refused ", "the next hop", "TLS handshake")
"""How nodes begin to tell of trouble with each other. On a busy machine there is some of it, and most of it passes."""
_SHOWN_TENSORS = 3


@dataclass(frozen=True)
class Remark:
    """One warning or error of a node."""

    node: str
    level: str
    """"warning" or "error"."""
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def round(self) -> int:
        """The round that it is about, or 0."""
        found = self.fields.get("round")
        return found if isinstance(found, int) else 0

    @property
    def passing(self) -> bool:
        """Whether it is over and done with once every round has come to its sum."""
        return self.message.startswith(PASSING)


def read_line(line: str) -> Remark | None:
    """Read a line of a log in either style; nothing if it is no warning, or only about nodes that find each other."""
    if line.startswith("{"):
        try:
            whole = json.loads(line)
            remark = Remark(whole.pop("node"), whole.pop("level"), whole.pop("message"), whole)
        except (ValueError, KeyError, RecursionError):
            return None
        if not all(isinstance(text, str) for text in (remark.node, remark.level, remark.message)):
            return None
    else:
        found = _LINE.match(line)
        if found is None:
            return None
        message, *pairs = _FIELD.split(found[3])
        values = (_value(text) for text in pairs[1::2])
        remark = Remark(found[2], found[1].lower(), message, dict(zip(pairs[::2], values, strict=True)))
    return remark if remark.level in ("warning", "error") and _STARTING not in remark.message else None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class Follower:
    """Reads what is added to some logs."""

    def __init__(self, logs: Iterable[Path]) -> None:
        """Begin at their ends: what an earlier run said is no news."""
        self._read = {path: path.stat().st_size if path.exists() else 0 for path in logs}

    def new(self) -> list[Remark]:
        """Return the remarks since the last call, log by log."""
        found = []
        for path, start in self._read.items():
            if not path.exists():
                continue
            with path.open("rb") as log:
                log.seek(start)
                data = log.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = start + len(whole)
            lines = whole.decode(errors="replace").splitlines()
            found += [remark for line in lines if (remark := read_line(line)) is not None]
        return found


def sentences(remarks: Sequence[Remark]) -> list[str]:
    """Say remarks in as few lines as tell it all: the same from many silos once, with how many said it."""
    clipped = [remark for remark in remarks if remark.message.startswith(f"{CLIPPED}: ") and "tensor" in remark.fields]
    said: dict[str, list[str]] = {}
    for remark in remarks:
        if remark not in clipped:
            said.setdefault(remark.message, []).append(remark.node)
    lines = [message if {*nodes} == {HERE} else f"{_names(nodes)}: {message}" for message, nodes in said.items()]
    return [*_clipping(clipped), *lines]


def _names(nodes: Sequence[str]) -> str:
    different = list(dict.fromkeys(nodes))
    return different[0] if len(different) == 1 else f"{different[0]} and {len(different) - 1} more"


def _clipping(remarks: Sequence[Remark]) -> list[str]:
    if not remarks:
        return []
    worst: dict[str, Remark] = {}
    for remark in sorted(remarks, key=lambda one: -one.fields["share"]):
        worst.setdefault(remark.fields["tensor"], remark)
    silos = len({remark.node for remark in remarks})
    shown = [f"{name} (up to {one.fields['share']:.0%} of its values)" for name, one in worst.items()]
    more = len(shown) - _SHOWN_TENSORS
    tensors = ", ".join(shown[:_SHOWN_TENSORS]) + (f" and {more} more tensors" if more > 0 else "")
    bound = next(iter(worst.values())).fields["bound"]
    enough = max(remark.fields["suggested_bound"] for remark in remarks)
    to, what = (
        f" to the bound {bound:g}",
        'at one digit of precision for each factor of ten; "auto" gives each tensor its own',
    )
    if any(remark.fields.get("automatic") for remark in remarks):
        to, what = "", "and bounds that follow from the model grow with what it has moved"
    sentence = (
        f"{silos} silo{'s' if silos > 1 else ''} clipped {tensors}{to}, so less was sent than was trained: "
        f"policy.bound = {enough:g} would hold all of it, {what}"
    )
    return [sentence]
