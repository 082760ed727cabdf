"""The next epoch's file: what the one before says, with what is to change. And a node's new entry in it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from silomix.runtime.config.authority import private_pem
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import NodeConfig, identity_of, load_federation, load_node
from silomix.runtime.config.owners.assemble import checked
from silomix.runtime.config.owners.enrol import enrolment_text
from silomix.runtime.config.owners.epochs import (
    Proposal,
    check_change,
    directories,
    history_of,
    places_of,
    problem_of,
    read_proposal,
    states_below,
    together,
)
from silomix.runtime.config.owners.pins import Pins, read_pin
from silomix.runtime.config.owners.rotate import give
from silomix.runtime.config.owners.selfsigned import der
from silomix.runtime.config.tables import ConfigError, Where
from silomix.runtime.config.token import following, parse_uri, remember_key, token_key
from silomix.runtime.core.errors import PeerFault, UserError
from silomix.runtime.core.numbers.masks import Secret
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.federation import SHOWN, Federation, Member, Owner
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.owners import FIRST_PIN, Enrolment, Pin
from silomix.runtime.store.files import PUBLIC, write_atomically
from silomix.runtime.store.home import (
    ENROLMENT,
    EPOCHS_DIRECTORY,
    FEDERATION_FILE,
    NEXT_IDENTITY,
    PIN,
)


def newest(path: Path) -> tuple[Proposal, ...]:
    """The history up to the newest epoch of an owner's directory; two that are the newest are named."""
    home = path if path.is_dir() else path.parent
    base = read_proposal(home) if path.is_dir() else Proposal(load_federation(path), place=home)
    found = _known(base, home)
    last = max(one.federation.epoch for one in found.values())
    ends = [one for one in found.values() if one.federation.epoch == last]
    if len(ends) > 1:
        raise ConfigError(
            ends[1].place, "epoch", f"{ends[0].place} is epoch {last} too; say which with --previous, or remove one"
        )
    *earlier, end = history_of(ends[0].federation, found)
    changed = [read_pin(file) for state in states_below(home) for file in sorted(state.pins.glob(f"*{PIN}"))]
    pins = Pins(end.federation)
    for pin in (*(pin for one in (*earlier, end) for pin in one.pins.values()), *changed):
        with suppress(PeerFault):  # of somebody who has left, or of an identity that has changed
            pins.take(pin)
    return *earlier, replace(end, pins={pin.name: pin for pin in pins})


def bring_home(place: Path, home: Path) -> Path:
    """Put an epoch that was shown to one of the owner's nodes beside the owner's federation file too.

    With it go the epochs before it: the owner may have had none of them elsewhere than at its nodes, and a node that is
    new needs them all. One that lies there already stays as it is.
    """
    if place.resolve().is_relative_to((home / EPOCHS_DIRECTORY).resolve()):
        return place
    one = read_proposal(place)
    epoch, digest = one.federation.epoch, one.federation.digest
    target = home / EPOCHS_DIRECTORY / str(epoch)
    if (target / FEDERATION_FILE).is_file() and read_proposal(target).federation.digest != digest:
        target = target.with_name(f"{epoch}-{digest.hex()[:SHOWN]}")
    *earlier, _ = history_of(one.federation, {digest: one, **_known(read_proposal(home), home)})
    for before in earlier:
        before.write(target / EPOCHS_DIRECTORY / str(before.federation.epoch))
    one.write(target)
    return target


def _known(base: Proposal, home: Path) -> dict[bytes, Proposal]:
    """Every epoch that an owner has, by its digest.

    Another owner's lies with the nodes that were shown it: what they hold counts too, once enough owners have signed.
    """
    found = together([base, *(read_proposal(place) for place in directories(*places_of(home)))])
    shown = together(read_proposal(place) for place in directories(*(state.epochs for state in states_below(home))))
    for digest, one in sorted(shown.items(), key=lambda item: item[1].federation.epoch):
        before = found.get(one.federation.predecessor)
        if digest in found:
            found[digest] = found[digest].merged(one)
        elif before is not None and not problem_of(one, before.federation, None):
            found[digest] = one
    return found


def policy_after(policy: Policy, given: Mapping[str, Any]) -> Policy:
    """The policy with some keys changed."""
    options = {**policy.task_options, **given.get("task_options", {})}
    return replace(policy, **{**given, "task_options": options})


def succeed(
    old: Federation,
    enrolments: Sequence[Enrolment],
    *,
    policy: Policy,
    file: Path,
    remove: Sequence[str] = (),
    pool: Sequence[str] = (),
    owners_quorum: int = 0,
) -> Federation:
    """Make the epoch after another. Nodes that are enrolled take the place of those of their name, or are added."""
    where = Where(file)
    for name in remove:
        if name not in old.members or name == old.aggregator.name:
            raise where.wrong(name, f"is no shuffler or silo of epoch {old.epoch}, and cannot be removed")
    listed: dict[Role, dict[str, Member]] = {
        Role.AGGREGATOR: {old.aggregator.name: old.aggregator},
        Role.SHUFFLER: {m.name: m for m in old.shufflers if m.name not in remove},
        Role.SILO: {m.name: m for m in old.silos if m.name not in remove},
    }
    for enrolment in enrolments:
        listed[Role(enrolment.role)][enrolment.member.name] = enrolment.member
    if len(listed[Role.AGGREGATOR]) > 1:
        raise where.wrong("aggregator", "the aggregator of a federation stays; that takes a new federation")
    shufflers = listed[Role.SHUFFLER]
    if pool and sorted(pool) != sorted(shufflers):
        raise where.wrong("shufflers", f"the pool is {', '.join(pool)}, and there are {', '.join(shufflers)}")
    members = [*listed[Role.AGGREGATOR].values(), *shufflers.values(), *listed[Role.SILO].values()]
    federation = replace(
        old,
        aggregator=members[0],
        shufflers=tuple(shufflers[name] for name in pool or shufflers),
        silos=tuple(sorted(listed[Role.SILO].values(), key=lambda m: m.name)),
        policy=policy,
        owners=_owners(where, old, enrolments, {m.owner for m in members}),
        epoch=old.epoch + 1,
        genesis=old.first,
        predecessor=old.digest,
        owners_quorum=owners_quorum,
    )
    check_change(federation, old, file)
    return checked(federation, file)


def _owners(where: Where, old: Federation, enrolments: Sequence[Enrolment], with_nodes: set[str]) -> tuple[Owner, ...]:
    owners = {owner.name: owner for owner in old.owners}
    for enrolment in enrolments:
        known = owners.setdefault(enrolment.owner.name, enrolment.owner)
        if known != enrolment.owner:
            raise where.wrong(
                "owners",
                f"{enrolment.member.name} is vouched for by another key of {known.name} than the one that epoch "
                f"{old.epoch} lists: call {known.name} and find out which is theirs",
            )
    return tuple(sorted((o for o in owners.values() if o.name in with_nodes), key=lambda owner: owner.name))


def write_successor(
    federation: Federation, enrolments: Sequence[Enrolment], history: Sequence[Proposal], directory: Path
) -> None:
    """Write an epoch's directory; with the epochs before it, and all pins, for an owner who is new."""
    pins = {pin.name: pin for one in history for pin in one.pins.values() if pin.name in federation.members}
    if federation.pinned:
        pins |= {enrolment.member.name: enrolment.pin for enrolment in enrolments}
    for one in history:
        one.write(directory / EPOCHS_DIRECTORY / str(one.federation.epoch))
    Proposal(federation, {}, pins if federation.pinned else {}).write(directory)


def enrol_again(path: Path, owner: Identity, address: str, *, new_identity: bool) -> tuple[Enrolment, Path]:
    """Write a node's enrolment file anew for the next epoch, with another identity or address."""
    config = load_node(path)
    if not new_identity and not address:
        raise UserError(f"{path}: nothing is to change; give --new-identity or --address")
    if bool(address) and config.role is Role.SILO:
        raise UserError(f"{path}: a silo only dials out, and has no address")
    now = config.federation.member(config.name)
    identity = identity_of(config)
    home = config.file.absolute().parent
    if new_identity:
        if config.identity_command:
            raise UserError(
                f"{path}: a command signs for it, which knows one key; a new key needs a node with a new name"
            )
        identity = _token_identity(config, home) if config.identity_token else _file_identity(config, home)
    certificate = b""
    if config.federation.pinned and config.certificate is not None:
        certificate = der(config.certificate.read_bytes())
    owned = Owner(now.owner, owner.public)
    member = Member(config.name, identity.public, address or now.address, now.owner)
    made = Enrolment(str(config.role), member, owned, Pin(config.name, FIRST_PIN, certificate)).signed(identity, owner)
    target = home / f"{config.name}{ENROLMENT}"
    write_atomically(target, enrolment_text(made).encode(), mode=PUBLIC)
    return made, target


def _file_identity(config: NodeConfig, home: Path) -> Identity:
    """Make the next identity beside the present one; the epoch says which counts."""
    private = Ed25519PrivateKey.generate()
    plain = config.identity.with_name(config.identity.name.removeprefix(NEXT_IDENTITY))
    following = plain.with_name(f"{NEXT_IDENTITY}{plain.name}")
    if config.identity == following:  # the one that is in use takes the plain name first
        write_atomically(plain, following.read_bytes())
        give((plain,), home)
    write_atomically(following, private_pem(private))
    give((following,), home)
    return Identity(config.name, Secret(private.private_bytes_raw()))


def _token_identity(config: NodeConfig, home: Path) -> Identity:
    """Make the next identity in the same token, under the next label."""
    key, _ = token_key(following(parse_uri(config.identity_token)))
    give((remember_key(home, key),), home)
    return Identity(config.name, key)
