"""What a node needs on its own host: files, agreement, clock, disk, kernels, task. Nothing is changed or shown that is
private.
"""

import os
import shutil
import stat
import time
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from silomix.runtime.checkup.findings import Trouble
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import NodeConfig
from silomix.runtime.config.owners.accept import NotAccepted, read_accepted
from silomix.runtime.config.owners.epochs import require_history
from silomix.runtime.consent import task_problem
from silomix.runtime.core.errors import LocalFault, UserError
from silomix.runtime.core.numbers.traps import secp256k1
from silomix.runtime.core.protocol.epochs import signers
from silomix.runtime.core.protocol.federation import SHOWN
from silomix.runtime.core.protocol.owners import not_accepted
from silomix.runtime.core.protocol.roundlog import beginning_problem
from silomix.runtime.core.protocol.rules import pin_problem
from silomix.runtime.net.transport import tls_of

SOON_DAYS = 30
LEAST_BYTES = 1 << 30
"""Free space below which a round may fail, whatever the model."""
CLOCK_FLOOR = datetime(2025, 1, 1, tzinfo=UTC)
"""No host's clock is before this: silomix did not exist."""


def federation(config: NodeConfig) -> str:
    """Say which federation this is, and the two numbers of its chain."""
    f = config.federation
    rule = f.chain_rule
    return (
        f"{f.name}, {f'epoch {f.epoch}, ' if f.epoch > 1 else ''}digest {f.digest.hex()[:SHOWN]}, "
        f"{len(f.silos)} silos; chain of {rule.minimum} or more of "
        f"{rule.pool} hops {rule.sentence()}"
    )


def agreement(config: NodeConfig) -> str:
    """Look whether every owner has signed this very file, or for a later epoch as many as it takes."""
    if config.federation.epoch > 1:
        return _later_agreement(config)
    found = read_accepted(config.agreement)
    missing, wrong = not_accepted(config.federation, {owner: signature for owner, (_, _, signature) in found.items()})
    if wrong:
        raise Trouble(
            f"{', '.join(wrong)} signed another file than this one",
            "compare `silomix digest` on both hosts; whoever has the wrong file gets the right one and accepts it",
        )
    if missing:
        ours = config.federation.member(config.name).owner
        first = "run `silomix accept` yourself" if ours in missing else f"ask {missing[0]} to run `silomix accept`"
        raise Trouble(
            f"{', '.join(missing)} of {len(config.federation.owners)} owners have not accepted the file",
            f"{first}, and put the .accepted file into {config.agreement}",
        )
    return f"all {len(config.federation.owners)} owners have accepted the file"


def _later_agreement(config: NodeConfig) -> str:
    new, old = config.history[-1], config.history[-2].federation
    try:
        require_history(config.history, config.name)
    except NotAccepted as error:
        raise Trouble(error.problem, "have the owners run `silomix accept` on that epoch's directory") from None
    count = len(signers(new.federation, old, new.accepted))
    return (
        f"{count} of {len(old.owners)} owners have accepted epoch {new.federation.epoch}, and {old.quorum} are enough"
    )


def key_files(config: NodeConfig) -> str:
    """The files themselves were read already; what is left is who else may read the directory that they are in."""
    elsewhere = config.identity_command or config.identity_token
    files = [path for path in (None if elsewhere else config.identity, config.key) if path is not None]
    for path in files:
        mode = stat.S_IMODE(path.parent.stat().st_mode)
        if mode & 0o022:
            raise Trouble(
                f"others may write to {path.parent} (mode {mode:o}), and replace the keys", f"chmod 700 {path.parent}"
            )
    home = config.file.absolute().parent
    for path in (*files, config.directory):
        if os.geteuid() == 0 and path.exists() and path.stat().st_uid != home.stat().st_uid:
            raise Trouble(
                f"{path} is {_user(path)}'s, and {home} {_user(home)}'s, who then cannot run the node",
                f"chown -R --reference={home} {path}",
            )
    return f"{len(files)} private keys, for their owner alone" if files else "no private key is in a file here"


def _user(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:
        return f"user {path.stat().st_uid}"


def certificate(config: NodeConfig) -> str:
    """Look how long the certificate is good."""
    if config.certificate is None:
        raise Trouble(
            "NO TLS: anybody on the network can read and forge everything", "only for one machine; else use TLS"
        )
    end = x509.load_pem_x509_certificates(config.certificate.read_bytes())[0].not_valid_after_utc
    days = (end - datetime.now(UTC)).days
    if days < SOON_DAYS:
        do = "run `silomix rotate`" if config.federation.pinned else "have the CA issue a new one"
        raise Trouble(f"runs out on {end:%Y-%m-%d}, in {days} days", do)
    return f"good until {end:%Y-%m-%d}"


def pins(config: NodeConfig) -> str:
    """Look whether every member is known by a certificate."""
    if not config.federation.pinned:
        return "none: CAs vouch for certificates"
    tls = tls_of(config)
    assert tls is not None
    assert tls.pins is not None
    if missing := tls.pins.missing():
        owner = config.federation.member(missing[0]).owner
        raise Trouble(
            f"there is no pin of {', '.join(missing)}",
            f"ask {owner} for {missing[0]}.pin, and put it into {config.agreement}",
        )
    return f"all {len(config.federation.members)} members are known by a certificate"


def clock(config: NodeConfig) -> str:
    """Look whether the date can be right."""
    now = datetime.now(UTC)
    if now < CLOCK_FLOOR:
        raise Trouble(
            f"this host thinks that it is {now:%Y-%m-%d %H:%M} UTC", "set the clock: certificates look at the date"
        )
    if config.certificate is not None:
        start = x509.load_pem_x509_certificates(config.certificate.read_bytes())[0].not_valid_before_utc
        if now < start:
            raise Trouble(
                f"it is {now:%Y-%m-%d %H:%M} UTC here, and the certificate is good from {start:%Y-%m-%d %H:%M}",
                "set the clock: no peer would take the certificate",
            )
    return f"{now:%Y-%m-%d %H:%M:%S} UTC"


def disk(config: NodeConfig) -> str:
    """Look whether there is room, and whether it may be written."""
    place = config.directory
    while not place.exists():
        place = place.parent
    probe = place / f".silomix-check-{time.monotonic_ns()}"
    try:
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as error:
        raise Trouble(
            f"{place} cannot be written: {error.strerror}", f"give {place} to the user that runs the node"
        ) from None
    free = shutil.disk_usage(place).free
    need = max(LEAST_BYTES, 3 * 8 * config.federation.policy.parameters)
    if free < need:
        raise Trouble(
            f"{place} has {free / 1e9:.1f} GB free, and {need / 1e9:.1f} GB are needed at least",
            "make room, or move `directory` to a larger disk; `silomix capacity` says how much",
        )
    return f"{free / 1e9:.1f} GB free at {place}"


def kernels(_: NodeConfig) -> str:
    """Compile every kernel, or load what was compiled."""
    from silomix.runtime.bench.warm import warm_kernels

    started = time.monotonic()
    warm_kernels()
    took = time.monotonic() - started
    return f"compiled, ready in {took:.1f} s"


def task_pinned(config: NodeConfig) -> str:
    """Look whether the task is the one that was agreed on, without running any of it."""
    policy = config.federation.policy
    if problem := task_problem(policy):
        raise Trouble(problem, "nothing was run; get the source that the owners agreed on")
    return f"{policy.task} is the one that was agreed on" if policy.task_digest else f"{policy.task}: any version"


def task(config: NodeConfig) -> str:
    """Look whether the task is the one that was agreed on, and train one step of it."""
    import numpy as np

    from silomix.runtime.store.modelfile import model_digest
    from silomix.runtime.task import load_task, train_task

    policy = config.federation.policy
    task_pinned(config)
    mend = "mend it, or `task_options` in node.toml, which are this silo's own: where its data is, for example"
    try:
        task = load_task(policy.task, config.options)
        schema = task.schema()
    except UserError as error:
        raise Trouble(str(error), mend) from None
    if problem := pin_problem(schema, policy):
        raise Trouble(f"its model {problem}", "its options differ from what the owners agreed on, or its version does")
    if config.role is not Role.SILO:
        return f"{policy.task} loads, {schema.parameters:,} parameters"
    started = time.monotonic()
    try:
        first = task.initial()
        trained = train_task(task, first, 1)
    except UserError as error:
        raise Trouble(str(error), mend) from None
    took = time.monotonic() - started
    if wrong := [name for name, tensor in trained.tensors.items() if not np.isfinite(tensor).all()]:
        raise Trouble(
            f"{policy.task} trained {wrong[0]} to NaN or infinity, so this silo would send nothing",
            "look at its data for missing values, and at the task's learning rate",
        )
    if took > policy.deadline_s:
        raise Trouble(
            f"training takes {took:.0f} s here, and silos have {policy.deadline_s} s",
            "train less in a round, use a faster host, or have the owners agree on a longer deadline_s",
        )
    done = f"{policy.task} trained on {trained.examples} examples in {took:.1f} s, {schema.parameters:,} parameters"
    if not policy.initial_model:
        return done
    if model_digest(schema, first).hex() == policy.initial_model:
        return f"{done}; it makes the agreed initial model"
    return f"{done}; the agreed initial model is another than it makes here: ask whoever assembled the federation why"


def curve(config: NodeConfig) -> str:
    """Look for the package that traps take."""
    try:
        secp256k1()
    except LocalFault:
        raise Trouble(
            "the policy has traps, and the package coincurve is missing", "pip install 'silomix[traps]'"
        ) from None
    return f"{config.federation.policy.traps} traps, and coincurve is here"


def initial_model(config: NodeConfig) -> str:
    """Look whether the model before round 1 is there, and of the task."""
    from silomix.runtime.store.modelfile import model_digest, read_model

    if config.initial_model is None:
        return "none given: the task makes it"
    make = f"run `silomix model init --config {config.initial_model.parent}`"
    if not config.initial_model.is_file():
        raise Trouble(f"{config.initial_model} is not there", make)
    try:
        schema, tensors = read_model(config.initial_model.read_bytes(), config.initial_model)
    except LocalFault as fault:
        raise Trouble(fault.message, make) from None
    if problem := pin_problem(schema, config.federation.policy):
        raise Trouble(
            f"{config.initial_model}: the model {problem}", "it is of another task or other options; make it anew"
        )
    if problem := beginning_problem(model_digest(schema, tensors), config.federation):
        raise Trouble(f"{config.initial_model}: the model {problem}", "take the file that `silomix assemble` wrote")
    return f"{schema.parameters:,} parameters"


def before_round(config: NodeConfig) -> str:
    """Look whether the owner's command can be run. It is not asked: there is no round."""
    command = shutil.which(config.before_round[0])
    if command is None:
        raise Trouble(
            f"{config.before_round[0]} cannot be run, so this silo would never take part",
            "correct before_round in node.toml, or make the file executable",
        )
    return f"{command} is asked before each round"
