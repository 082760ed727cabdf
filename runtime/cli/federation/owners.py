"""How owners who do not share a machine make a federation: keygen, assemble, accept, digest, rotate."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from silomix.runtime.cli.options import BadOption, Commands, read_pairs
from silomix.runtime.cli.policy_options import add_policy, given_policy
from silomix.runtime.core.errors import UserError
from silomix.runtime.core.numbers.plan import chunk_for
from silomix.runtime.core.policy import KEYS, Policy
from silomix.runtime.terminal import say, say_json

if TYPE_CHECKING:
    from silomix.runtime.core.protocol.federation import Federation, Owner
    from silomix.runtime.core.protocol.owners import Enrolment

KEYGEN_EPILOG = """\
Keys are made here and stay here. The owner's key, which agrees to federation files, is made beside the node's directory
the first time, and used for further nodes. Send the .enrol file to whoever assembles the federation.

examples:
  silomix keygen /var/lib/silomix/silo-02 --role silo --owner hospital-b --option directory=/srv/images
  silomix keygen /var/lib/silomix/shuffler-1 --role shuffler --owner hospital-b --address hop.example.org:7001
  silomix keygen /var/lib/silomix/silo-02 --role silo --owner hospital-b --token \\
    'pkcs11:token=hospital-b;object=silo-02?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/silomix.pin'
"""
ASSEMBLE_EPILOG = """\
Anybody may assemble: no key is needed, and every owner who does it with the same files gets the same digest. The task
is looked at here, to pin its source and the schema of its model.

examples:
  silomix assemble fed *.enrol --name hospitals --task silomix.models.digits:task --rounds 20
  silomix assemble fed *.enrol --name hospitals --policy policy.toml
  silomix assemble epochs/2 silo-04.enrol --previous /var/lib/silomix --rounds 40
  silomix assemble epochs/2 --previous /var/lib/silomix --remove silo-02
"""
ACCEPT_EPILOG = """\
Call the other owners, at numbers that you know, and read the fingerprints to each other before you sign. Then send the
.accepted file to all of them.

examples:
  silomix accept /var/lib/silomix
  silomix accept fed --owner-key /media/token/owner.key --yes
"""
ROTATE_EPILOG = """\
Without a further option it makes the next certificate and announces it: peers hear of it from the running node. With
--finish the next certificate takes the place of the current one, which opens nothing any more. The running node notices
both by itself. --now does both at once, as after a theft: send the .pin file to the other owners, who --take it.

examples:
  silomix rotate --config /var/lib/silomix/silo-02
  silomix rotate --config /var/lib/silomix/silo-02 --finish
  silomix rotate --config /var/lib/silomix/silo-01 --take silo-02.pin
"""
YES_DIGITS = 8


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the commands to the parser."""
    raw = argparse.RawDescriptionHelpFormatter
    cmd = commands.add_parser(
        "keygen",
        help="make a node's keys on its host, and a file to enrol it with",
        epilog=KEYGEN_EPILOG,
        formatter_class=raw,
    )
    cmd.add_argument(
        "directory",
        type=Path,
        help="the node's directory, to be created; the node gets its name, unless --name says otherwise",
    )
    cmd.add_argument("--role", required=True, choices=("aggregator", "shuffler", "silo"), help="what the node is")
    cmd.add_argument("--name", default="", help="what it is called (default: the directory's name)")
    cmd.add_argument("--owner", required=True, help="the name others know you by, such as hospital-b")
    cmd.add_argument(
        "--owner-key", type=Path, metavar="FILE", help="your key (default: owner.key beside the directory)"
    )
    cmd.add_argument("--address", default="", metavar="HOST:PORT", help="where others reach it; a silo has none")
    cmd.add_argument("--listen", default="", metavar="HOST:PORT", help="where it listens, if not at its address")
    cmd.add_argument("--metrics-port", type=int, default=0, metavar="PORT", help="metrics (default: off)")
    cmd.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="a silo's own task option")
    cmd.add_argument(
        "--token",
        default="",
        metavar="URI",
        help="make the identity in this PKCS#11 token, or use the one there",
    )
    cmd.set_defaults(handler=_keygen)

    cmd = commands.add_parser(
        "assemble",
        help="make the federation file from everybody's enrolment files and a policy",
        epilog=ASSEMBLE_EPILOG,
        formatter_class=raw,
    )
    cmd.add_argument("directory", type=Path, help="where to write federation.toml and the nodes' pins")
    cmd.add_argument(
        "enrolments",
        type=Path,
        nargs="*",
        metavar="ENROL",
        help="the .enrol file of every node; with --previous, of those that are new or have changed",
    )
    cmd.add_argument("--name", default="", help="name of the federation")
    cmd.add_argument("--previous", type=Path, metavar="DIR", help="make the epoch after this one, from what it says")
    cmd.add_argument(
        "--remove", action="append", default=[], metavar="NODE", help="with --previous: a node that is to go"
    )
    cmd.add_argument(
        "--owners-quorum",
        type=int,
        metavar="N",
        help="owners who have to sign the next epoch (default: a majority, or as before)",
    )
    cmd.add_argument("--policy", type=Path, metavar="FILE", help="TOML with a table [policy]; options override it")
    cmd.add_argument("--pool", default="", metavar="A,B,C", help="shufflers in order (default: by name)")
    cmd.add_argument("--anchor", type=Path, metavar="PEM", help="the owners' own CAs, in place of pinned certificates")
    add_policy(cmd, defaults={"chunk_parameters": "by the number of silos"})
    cmd.set_defaults(handler=_assemble)

    cmd = commands.add_parser(
        "accept",
        help="show what a federation file says, and sign it for its owner",
        epilog=ACCEPT_EPILOG,
        formatter_class=raw,
    )
    cmd.add_argument("federation", type=Path, help="the directory of the federation file")
    cmd.add_argument(
        "--owner-key", type=Path, metavar="FILE", help="your key (default: owner.key in that directory, or above it)"
    )
    cmd.add_argument("--homes", type=Path, metavar="DIR", help="where your nodes are (default: beside the owner's key)")
    cmd.add_argument("--elsewhere", action="append", default=[], metavar="NODE", help="a node of yours on another host")
    cmd.add_argument("--yes", action="store_true", help="sign without asking: you have compared it already")
    cmd.set_defaults(handler=_accept)

    cmd = commands.add_parser("digest", help="print a federation file's digest, and who has accepted it")
    cmd.add_argument("federation", type=Path, help="the federation file, or its directory")
    json_flag(cmd)
    cmd.set_defaults(handler=_digest)

    cmd = commands.add_parser("enrol", help="enrol a node again for the next epoch: with a new identity, or address")
    cmd.add_argument("--config", type=Path, required=True, help="the node's directory, or its node.toml")
    cmd.add_argument("--new-identity", action="store_true", help="make an identity that takes over in the next epoch")
    cmd.add_argument("--address", default="", metavar="HOST:PORT", help="where others will reach it")
    cmd.add_argument("--owner-key", type=Path, metavar="FILE", help="your key (default: owner.key above the directory)")
    cmd.set_defaults(handler=_enrol)

    cmd = commands.add_parser(
        "rotate",
        help="change a node's certificate, without asking anybody and without a restart",
        epilog=ROTATE_EPILOG,
        formatter_class=raw,
    )
    cmd.add_argument("--config", type=Path, required=True, help="the node's directory, or its node.toml")
    how = cmd.add_mutually_exclusive_group()
    how.add_argument("--finish", action="store_true", help="change over to the certificate that was announced")
    how.add_argument("--now", action="store_true", help="make one and change over at once")
    how.add_argument("--take", type=Path, metavar="PIN", help="take in another node's new certificate")
    cmd.set_defaults(handler=_rotate)


def _keygen(args: argparse.Namespace) -> int:
    from silomix.runtime.config.kinds import ADDRESS, NAME, Role
    from silomix.runtime.config.owners.enrol import make_keys
    from silomix.runtime.config.owners.owner import owner_identity
    from silomix.runtime.config.texts import Value
    from silomix.runtime.config.token import parse_uri, token_key
    from silomix.runtime.core.protocol.owners import fingerprint
    from silomix.runtime.store.home import INITIAL_MODEL, OWNER_KEY_FILE

    role = Role(args.role)
    name = args.name or args.directory.resolve().name
    for option, kind, value in (
        ("--name", NAME, name),
        ("--owner", NAME, args.owner),
        ("--address", ADDRESS, args.address),
        ("--listen", ADDRESS, args.listen),
    ):
        if kind is ADDRESS and not value:
            continue
        try:
            kind.parse(value)
        except ValueError:
            raise BadOption(option, f"found {value!r}; give {kind.allowed}") from None
    if (role is Role.SILO) == bool(args.address):
        problem = "a silo only dials out: leave it out" if args.address else f"missing; give {ADDRESS.allowed}"
        raise BadOption("--address", problem)
    options = read_pairs("--option", args.option)
    if options and role is not Role.SILO:
        raise BadOption("--option", "is for silos, which train; the others have no task of their own")
    if not 0 <= args.metrics_port < 1 << 16:
        raise BadOption("--metrics-port", f"found {args.metrics_port}; give 1 to 65535")
    if args.directory.exists():
        raise UserError(f"{args.directory}: is there already, and keys are never overwritten; give another directory")
    args.directory.parent.mkdir(parents=True, exist_ok=True)
    key_file = args.owner_key or args.directory.parent / OWNER_KEY_FILE
    new = not key_file.exists()
    owner = owner_identity(args.owner, key_file, make=args.owner_key is None)
    settings: dict[str, Value] = {}
    if args.listen:
        settings["listen"] = args.listen
    if args.metrics_port:
        settings["metrics_port"] = args.metrics_port
    if role is Role.AGGREGATOR:
        settings["initial_model"] = INITIAL_MODEL
    token, fresh = None, False
    if args.token:
        token, fresh = token_key(parse_uri(args.token))
        settings["identity_token"] = args.token
    made = make_keys(role, name, owner, args.address, token=token)
    path = made.write(args.directory, settings, options)
    say(f"{args.directory}: {role} {name} of {owner.name}")
    say(f"owner's key   {fingerprint(owner.public)}{f'   made just now: {key_file}, keep it' if new else ''}")
    where = "" if token is None else f"   {'made' if fresh else 'found'} in the token, and in no file"
    say(f"node's key    {fingerprint(made.enrolment.member.key)}{where}")
    say(f"send {path} to whoever assembles the federation; all else in {args.directory} stays here")
    return 0


def _assemble(args: argparse.Namespace) -> int:
    from silomix.runtime.config.owners.assemble import assemble, read_enrolments, read_policy, write_federation
    from silomix.runtime.config.tables import ConfigError, read
    from silomix.runtime.consent import source_of
    from silomix.runtime.store.files import write_atomically
    from silomix.runtime.store.home import ACCEPTED, FEDERATION_FILE, INITIAL_MODEL
    from silomix.runtime.store.modelfile import model_digest, write_model
    from silomix.runtime.task import load_task

    file = args.directory / FEDERATION_FILE
    if file.exists():
        raise ConfigError(file, "", "is there already, and owners may have accepted it; give another directory")
    enrolments = read_enrolments(args.enrolments)
    if args.previous is not None:
        return _succeed(args, enrolments, file)
    if not args.name:
        raise BadOption("--name", "missing: a first epoch gives the federation its name")
    if not enrolments:
        raise UserError("no .enrol file was given: a first epoch needs the file of every node")
    if args.remove:
        raise BadOption("--remove", "is for a later epoch, beside --previous; leave the node's .enrol file out")
    silos = sum(enrolment.role == "silo" for enrolment in enrolments)
    given = {**(read_policy(args.policy) if args.policy else {}), **given_policy(args)}
    policy = Policy(**{"chunk_parameters": chunk_for(max(1, silos)), **given})
    if policy.task.startswith("silomix.models."):  # those deal their records out to so many
        policy = replace(policy, task_options={"silos": silos, **policy.task_options})
    source = source_of(policy.task)
    task = load_task(policy.task, policy.task_options)
    schema, first = task.schema(), task.initial()
    made = model_digest(schema, first).hex()
    policy = replace(
        policy,
        task_package=source.package,
        task_digest=source.digest,
        schema=schema.digest.hex(),
        parameters=schema.parameters,
        initial_model=policy.initial_model or made,
    )
    federation = assemble(
        enrolments,
        name=args.name,
        policy=policy,
        file=file,
        pool=[name for name in args.pool.split(",") if name],
        anchor=read(args.anchor) if args.anchor else b"",
        owners_quorum=args.owners_quorum or 0,
    )
    write_federation(federation, enrolments, args.directory)
    if policy.initial_model == made:
        write_atomically(args.directory / INITIAL_MODEL, write_model(schema, first))
    _show(federation)
    say("")
    if policy.initial_model == made:
        say(f"{args.directory / INITIAL_MODEL}: the model to begin with, for the aggregator's owner")
    else:
        say("the aggregator's owner needs the file of the model whose digest is initial_model, as its initial_model")
    say(f"{args.directory}: send federation.toml and the .pin files to every owner. Each runs `silomix accept`, and")
    say(f"sends its {ACCEPTED} file to all the others. No node serves before all are there.")
    return 0


def _accept(args: argparse.Namespace) -> int:
    from silomix.runtime.config.load import load_federation
    from silomix.runtime.config.owners.accept import accept, owner_of
    from silomix.runtime.config.owners.epochs import ABOVE, check_change, predecessor_of
    from silomix.runtime.config.owners.owner import check_own_nodes, owner_identity
    from silomix.runtime.config.owners.pins import load_pins, require_pins
    from silomix.runtime.config.owners.successor import bring_home
    from silomix.runtime.store.home import FEDERATION_FILE, OWNER_KEY_FILE

    home = args.federation if args.federation.is_dir() else args.federation.parent
    federation = load_federation(args.federation)
    previous = predecessor_of(federation, home).federation if federation.predecessor else None
    if previous is not None:
        check_change(federation, previous, home / FEDERATION_FILE)
    elif federation.pinned:
        require_pins(load_pins(federation, home), federation, home)
    above = (place / OWNER_KEY_FILE for place in (home, *list(home.resolve().parents)[:ABOVE]))
    key_file = args.owner_key or next((path for path in above if path.is_file()), home / OWNER_KEY_FILE)
    identity = owner_identity("owner", key_file)
    owner = owner_of(federation, identity.public, key_file, previous)
    check_own_nodes(federation, owner, args.homes or key_file.parent, args.elsewhere)
    _show(federation, owner)
    if previous is not None:
        _show_changes(federation, previous)
    if not args.yes:
        _ask(federation)
    path = accept(federation, replace(identity, name=owner.name), home)
    say(f"{path}: send it to the other owners")
    if previous is not None:
        ours = (args.homes or key_file.parent).resolve()
        if (ours / FEDERATION_FILE).is_file() and home.resolve().is_relative_to(ours):
            bring_home(home, ours)
        say("a running node that finds it tells the others; the epoch begins after the next round that is applied")
    return 0


def _show_changes(federation: "Federation", previous: "Federation") -> None:
    from silomix.runtime.core.protocol.epochs import differences

    say("")
    say(f"what changes after epoch {previous.epoch}, which {previous.quorum} of {len(previous.owners)} owners decide:")
    for line in differences(federation, previous) or ["nothing"]:
        say(f"  {line}")


def _succeed(args: argparse.Namespace, enrolments: "list[Enrolment]", file: Path) -> int:
    """Make the epoch after another, of what that one says and of what is to change."""
    from silomix.runtime.config.owners.assemble import read_policy
    from silomix.runtime.config.owners.successor import newest, policy_after, succeed, write_successor
    from silomix.runtime.consent import source_of
    from silomix.runtime.store.home import ACCEPTED, EPOCHS_DIRECTORY

    for option, given in (("--name", args.name), ("--anchor", args.anchor)):
        if given:
            raise BadOption(option, "is what the epoch before says: leave it out beside --previous")
    history = newest(args.previous)
    old = history[-1].federation
    given = {**(read_policy(args.policy) if args.policy else {}), **given_policy(args)}
    if "task" in given:
        source = source_of(given["task"])
        given |= {"task_package": source.package, "task_digest": source.digest}
    federation = succeed(
        old,
        enrolments,
        remove=args.remove,
        policy=policy_after(old.policy, given),
        pool=[name for name in args.pool.split(",") if name],
        owners_quorum=old.owners_quorum if args.owners_quorum is None else args.owners_quorum,
        file=file,
    )
    write_successor(federation, enrolments, history, args.directory)
    _show(federation)
    _show_changes(federation, old)
    say("")
    place = f"{EPOCHS_DIRECTORY}/{federation.epoch}"
    say(f"{args.directory}: put it into {place} beside your nodes' federation file, and run `silomix accept` there.")
    say("Running nodes pass it on: the other owners find it in the state of their nodes, look at it, and accept it.")
    say(f"An owner who is new gets this directory with everybody's {ACCEPTED} files, and puts it above its nodes.")
    return 0


def _ask(federation: "Federation") -> None:
    """Let a person say yes by what they have read, and not by habit."""
    if not sys.stdin.isatty():
        raise UserError("nobody is here to ask: compare the fingerprints with the other owners, then give --yes")
    wanted = federation.digest.hex()[:YES_DIGITS]
    sys.stdout.write(f"\nType the first {YES_DIGITS} digits of the digest to sign: ")
    sys.stdout.flush()
    if sys.stdin.readline().replace(" ", "").strip() != wanted:
        raise UserError("that is not the digest: nothing was signed")


def _show(federation: "Federation", us: "Owner | None" = None) -> None:
    """Show what there is to agree to."""
    from silomix.runtime.core.protocol.owners import fingerprint

    digest = federation.digest.hex()
    say(f"federation {federation.name}, epoch {federation.epoch}{' (the first)' if federation.epoch == 1 else ''}")
    say(f"digest {' '.join(digest[i : i + 4] for i in range(0, len(digest), 4))}")
    say("")
    for owner in federation.owners:
        say(f"{owner.name}{' (you)' if owner == us else ''}   key {fingerprint(owner.key)}")
        for name in federation.owned_by(owner.name):
            member = federation.member(name)
            say(f"    {name:<20} key {fingerprint(member.key)}   {member.address or 'dials out'}")
    say("")
    policy = federation.policy
    for name, key in KEYS.items():
        value = getattr(policy, name)
        if name != "task_options" and (value != key.default or name in ("task", "rounds", "level")):
            say(f"{name} = {value}")
    for name, option in policy.task_options.items():
        say(f"task_options.{name} = {option}")
    rule = federation.chain_rule
    say(f"chain of {rule.minimum} or more of {rule.pool} hops: {rule.sentence()}")
    say(f"a sum holds {federation.minimum_cohort} or more of {len(federation.silos)} silos")
    tls = "each node's own certificate, pinned" if federation.pinned else "CAs" if federation.anchor else "NO TLS"
    say(f"certificates: {tls}")


def _digest(args: argparse.Namespace) -> int:
    from silomix.runtime.config.load import load_federation
    from silomix.runtime.config.owners.accept import read_accepted
    from silomix.runtime.config.owners.epochs import predecessor_of
    from silomix.runtime.core.protocol.epochs import signers
    from silomix.runtime.core.protocol.owners import not_accepted

    federation = load_federation(args.federation)
    home = args.federation if args.federation.is_dir() else args.federation.parent
    found = read_accepted(home)
    signatures = {owner: signature for owner, (_, _, signature) in found.items()}
    if federation.predecessor:
        old = predecessor_of(federation, home).federation
        have = signers(federation, old, signatures)
        states = {o.name: "accepted" if o.name in have else "missing" for o in old.owners}
        return _say_digest(args, federation, states, f"it takes {old.quorum} of them")
    missing, wrong = not_accepted(federation, signatures)
    states = {
        owner.name: "missing" if owner.name in missing else "wrong" if owner.name in wrong else "accepted"
        for owner in federation.owners
    }
    return _say_digest(args, federation, states)


def _say_digest(args: argparse.Namespace, federation: "Federation", states: dict[str, str], rule: str = "") -> int:
    if args.json:
        say_json({"digest": federation.digest.hex(), "epoch": federation.epoch, "owners": states})
        return 0
    say(federation.digest.hex())
    words = {"accepted": "has accepted it", "missing": "has not accepted it", "wrong": "has accepted another file"}
    for owner, state in states.items():
        say(f"{owner} {words[state]}")
    if rule:
        say(rule)
    return 0


def _enrol(args: argparse.Namespace) -> int:
    from silomix.runtime.config.kinds import ADDRESS
    from silomix.runtime.config.owners.owner import owner_identity
    from silomix.runtime.config.owners.successor import enrol_again
    from silomix.runtime.core.protocol.owners import fingerprint
    from silomix.runtime.store.home import OWNER_KEY_FILE

    if args.address:
        try:
            ADDRESS.parse(args.address)
        except ValueError:
            raise BadOption("--address", f"found {args.address!r}; give {ADDRESS.allowed}") from None
    home = args.config if args.config.is_dir() else args.config.parent
    owner = owner_identity("owner", args.owner_key or home.resolve().parent / OWNER_KEY_FILE)
    enrolment, path = enrol_again(args.config, owner, args.address, new_identity=args.new_identity)
    say(f"node's key    {fingerprint(enrolment.member.key)}{'   made just now' if args.new_identity else ''}")
    say(f"{path}: send it to whoever assembles the next epoch. Until that begins, the node is as it was")
    return 0


def _rotate(args: argparse.Namespace) -> int:
    from silomix.runtime.config.owners.rotate import finish, prepare, take

    if args.take is not None:
        pin, news = take(args.config, args.take)
        say(f"{pin.name} is known by certificate number {pin.counter}{'' if news else ', as before'}")
        return 0
    if args.finish:
        path = finish(args.config)
        say(f"the announced certificate is the current one now; {path} says so")
        return 0
    path = prepare(args.config)
    if args.now:
        path = finish(args.config)
        say(f"the certificate is a new one. Send {path} to the other owners: each runs `silomix rotate --take` on it")
        return 0
    say(f"the next certificate is announced in {path}, and the running node tells its peers. When they have heard:")
    say(f"  silomix rotate --config {args.config} --finish")
    return 0
