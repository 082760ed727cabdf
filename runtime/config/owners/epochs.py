"""Later epochs as files. Each has a directory with what the first has: the federation file, signatures, pins.

    /var/lib/silomix/federation.toml      the file that the owner began with
    /var/lib/silomix/epochs/2/            a later epoch, as its owner was sent it
    NODE/state/epochs/2-1f0c.../          the same as the node has it, with what peers have added
    NODE/state/epochs/now                 the digest of the epoch in which the node is

Whoever has an epoch may pass it on: it counts by the owners' signatures, and at a node with its own owner's.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path

from silomix.runtime.config.federation import parse_federation
from silomix.runtime.config.owners.accept import NotAccepted, read_accepted, write_accepted
from silomix.runtime.config.owners.pins import Pins, read_pin, write_pin
from silomix.runtime.config.tables import ConfigError, read_text
from silomix.runtime.config.texts import federation_text
from silomix.runtime.core.errors import PeerFault, UserError
from silomix.runtime.core.protocol.epochs import (
    change_problem,
    check_first,
    check_successor,
    consents,
    owner_of,
    signers,
)
from silomix.runtime.core.protocol.federation import SHOWN, Federation
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.store.files import PUBLIC, write_atomically
from silomix.runtime.store.home import (
    ACCEPTED,
    ANCHOR_FILE,
    EPOCHS_DIRECTORY,
    FEDERATION_FILE,
    NODE_FILE,
    PIN,
    STATE_DIRECTORY,
    State,
)

ABOVE = 4
"""Directories above an epoch's in which an owner's files are looked for: a node keeps epochs that far below them."""


@dataclass(frozen=True)
class Proposal:
    """An epoch's file, with the owners' signatures that have come and the pins of nodes that are new in it."""

    federation: Federation
    accepted: dict[str, bytes] = field(default_factory=dict)
    pins: dict[str, Pin] = field(default_factory=dict)
    place: Path = field(default=Path(), compare=False)
    """Where it was found first."""

    @cached_property
    def file(self) -> bytes:
        """The federation file, written once: any member may ask for it, again and again."""
        return federation_text(self.federation).encode()

    def merged(self, other: "Proposal") -> "Proposal":
        """Return the same with what another copy has besides."""
        accepted, pins = {**other.accepted, **self.accepted}, {**other.pins, **self.pins}
        return Proposal(self.federation, accepted, pins, self.place)

    def write(self, place: Path) -> None:
        """Write it as its owner would have been sent it; the file itself comes last."""
        place.mkdir(parents=True, exist_ok=True)
        for pin in self.pins.values():
            write_pin(pin, place)
        for owner, signature in self.accepted.items():
            write_accepted(self.federation, owner, signature, place)
        if self.federation.anchor:
            write_atomically(place / ANCHOR_FILE, self.federation.anchor, mode=PUBLIC)
        write_atomically(place / FEDERATION_FILE, self.file, mode=PUBLIC)


@lru_cache(maxsize=128)
def _parsed(text: str, file: Path) -> Federation:
    """Nodes look at all their epochs whenever a file beside them changes, and hardly any of them ever does."""
    return parse_federation(text, file)


def read_proposal(place: Path) -> Proposal:
    """Read an epoch's directory. Signatures and pins are looked at where they count."""
    file = place / FEDERATION_FILE
    text = read_text(file)
    federation = _parsed(text, file)
    if federation.anchor:
        federation = parse_federation(text, file)  # with its certificates as they are now
    ours = federation.digest.hex()
    accepted = {owner: sign for owner, (_, digest, sign) in read_accepted(place).items() if digest == ours}
    found = [read_pin(path) for path in sorted(place.glob(f"*{PIN}"))]
    return Proposal(federation, accepted, {pin.name: pin for pin in found if pin.name in federation.members}, place)


def own_place(proposal: Proposal, state: State) -> Path:
    """Where a node keeps an epoch."""
    federation = proposal.federation
    return state.epochs / f"{federation.epoch}-{federation.digest.hex()[:SHOWN]}"


def together(proposals: Iterable[Proposal]) -> dict[bytes, Proposal]:
    """Put the copies of each epoch together, by its digest."""
    found: dict[bytes, Proposal] = {}
    for one in proposals:
        known = found.get(one.federation.digest)
        found[one.federation.digest] = one if known is None else known.merged(one)
    return found


def directories(*places: Path) -> list[Path]:
    """The directories of epochs in some places."""
    return [file.parent for place in places for file in sorted(place.glob(f"*/{FEDERATION_FILE}"))]


def places_of(home: Path) -> list[Path]:
    """Where an owner has later epochs: each may have those before it in its directory, for a node that is new."""
    return [home / EPOCHS_DIRECTORY, *sorted(home.glob(f"{EPOCHS_DIRECTORY}/*/{EPOCHS_DIRECTORY}"))]


def epochs_on_disk(base: Federation, agreement: Path, state: State) -> dict[bytes, Proposal]:
    """Find every epoch that a node has, by its digest: the one of its federation file first.

    A node that is new has what its owner had in the beginning; its owner's other nodes here were shown more signatures.
    """
    later = [read_proposal(place) for place in directories(agreement / EPOCHS_DIRECTORY, state.epochs)]
    if not later:
        return together([Proposal(base, {}, place=agreement)])
    ours = base.digest.hex()
    accepted = {o: sign for o, (_, digest, sign) in read_accepted(agreement).items() if digest == ours}
    found = together([Proposal(base, accepted, place=agreement), *later])
    if any(one.federation.predecessor not in {b"", *found} for one in later):
        before = [read_proposal(place) for place in directories(*places_of(agreement)[1:])]
        found = together([*found.values(), *before])
    others = [other for other in states_below(agreement) if other.directory != state.directory]
    for digest, one in found.items():
        old = found.get(one.federation.predecessor)
        if old is not None and problem_of(one, old.federation, None):
            for place in (own_place(one, other) for other in others):
                with suppress(UserError, OSError):  # it was not shown this one, or that is its own trouble
                    found[digest] = found[digest].merged(read_proposal(place))
    return found


def states_below(home: Path) -> list[State]:
    """What an owner's nodes keep whose directories are in one place."""
    return [State(file.parent / STATE_DIRECTORY) for file in sorted(home.glob(f"*/{NODE_FILE}"))]


def in_force(found: dict[bytes, Proposal], epoch: bytes, state: State, name: str) -> Federation:
    """The epoch that is asked for, or in which the node was last, or the first that lists it."""
    if not epoch and state.epoch.is_file():
        text = state.epoch.read_text().strip()
        try:
            epoch = bytes.fromhex(text)
        except ValueError:
            raise ConfigError(state.epoch, "", f"found {text[:80]!r}; give the digest of an epoch") from None
    base = next(iter(found.values())).federation
    if not epoch:
        listed = [one for one in found.values() if name in one.federation.members]
        if name in base.members or not listed:
            return base
        return min(listed, key=lambda one: (one.federation.epoch, -len(one.accepted))).federation
    if epoch not in found:
        raise ConfigError(
            state.epoch,
            "",
            f"this node is in the epoch with digest {epoch.hex()[:SHOWN]}, and its file is gone: put it back into "
            f"{state.epochs}",
        )
    return found[epoch].federation


def enter(federation: Federation, state: State) -> None:
    """Write down, durably, in which epoch a node is."""
    state.epochs.mkdir(parents=True, exist_ok=True)
    write_atomically(state.epoch, f"{federation.digest.hex()}\n".encode(), mode=PUBLIC)


def history_of(federation: Federation, found: dict[bytes, Proposal]) -> tuple[Proposal, ...]:
    """The epochs up to one, from the first on."""
    chain = [found[federation.digest]]
    while before := chain[0].federation.predecessor:
        if before not in found:
            now = chain[0].federation
            raise ConfigError(
                chain[0].place,
                "predecessor",
                f"epoch {now.epoch} follows the file {before.hex()[:SHOWN]}, which is not here: put it, with its "
                f"{ACCEPTED} files, into {EPOCHS_DIRECTORY}/{now.epoch - 1} beside the federation file",
            )
        chain.insert(0, found[before])
    return tuple(chain)


def require_history(history: tuple[Proposal, ...], node: str) -> None:
    """Refuse to go on in an epoch that does not follow from the first one, or that the node's owner did not accept."""
    try:
        check_first(history[0].federation, history[0].accepted)
        for before, one in pairwise(history):
            check_successor(one.federation, before.federation, one.accepted)
    except PeerFault as fault:
        raise NotAccepted(history[-1].place, "", fault.message) from None
    if problem := own_problem(history[-1], history[-2].federation, node):
        raise NotAccepted(history[-1].place, "", problem)


def own_problem(proposal: Proposal, old: Federation, node: str) -> str:
    """Say what a node's own owner has to do before an epoch counts there, or nothing."""
    new = proposal.federation
    if consents(node, new, old, proposal.accepted):
        return ""
    owner = owner_of(node, new, old)
    return (
        f"{owner} has not accepted epoch {new.epoch}, {new.digest.hex()[:SHOWN]}, and this node stays out of it: look "
        f"at it, and sign it with `silomix accept {proposal.place}`"
    )


def problem_of(proposal: Proposal, old: Federation, pins: Pins | None) -> str:
    """Say why an epoch does not count yet for anybody, or nothing."""
    new = proposal.federation
    try:
        check_successor(new, old, proposal.accepted)
    except PeerFault as fault:
        return fault.message
    if pins is None:
        return ""
    missing = missing_pins(proposal, pins)
    return f"there is no pin of {', '.join(missing)}, who are new in epoch {new.epoch}" if missing else ""


def missing_pins(proposal: Proposal, known: Iterable[Pin]) -> list[str]:
    """Name the members of an epoch who are not known by a certificate."""
    pins = Pins(proposal.federation)
    for pin in (*known, *proposal.pins.values()):
        try:
            if pin.name in proposal.federation.members:
                pins.take(pin)
        except PeerFault:
            continue
    return pins.missing()


def double_signers(one: Proposal, other: Proposal, old: Federation) -> list[str]:
    """Name the owners who have signed two successors of one epoch."""
    first = signers(one.federation, old, one.accepted)
    return [owner for owner in signers(other.federation, old, other.accepted) if owner in first]


def predecessor_of(federation: Federation, home: Path) -> Proposal:
    """Find the epoch before one, in the directories round about it."""
    near = list(home.resolve().parents)[:ABOVE]
    places = [p for p in near if (p / FEDERATION_FILE).is_file()]
    places += directories(home / EPOCHS_DIRECTORY, home.parent, *(p / EPOCHS_DIRECTORY for p in near))
    for place in places:
        found = read_proposal(place)
        if found.federation.digest == federation.predecessor:
            return found
    raise ConfigError(
        home / FEDERATION_FILE,
        "predecessor",
        f"the file {federation.predecessor.hex()[:SHOWN]}, which epoch {federation.epoch} follows, is not here: put "
        f"this directory beside that one, as {EPOCHS_DIRECTORY}/{federation.epoch}",
    )


def check_change(new: Federation, old: Federation, file: Path) -> None:
    """Refuse to write or to sign a file that can never follow another."""
    if problem := change_problem(new, old):
        raise UserError(f"{file}: the file {problem}")
