"""The commands that make a federation and run its nodes: init, aggregator, shuffler, silo."""

import argparse
import asyncio
import atexit
import os
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silomix.runtime.cli.options import BadOption, Commands
from silomix.runtime.cli.policy_options import add_policy, by_option, policy_of
from silomix.runtime.core.errors import RunError
from silomix.runtime.core.numbers.plan import Encoding, Granularity, chunk_for
from silomix.runtime.core.policy import MAX_SILOS

if TYPE_CHECKING:
    from silomix.runtime.config.load import NodeConfig
    from silomix.runtime.nodes.aggregator import AggregatorNode
    from silomix.runtime.nodes.node import Node

INIT_EPILOG = """\
Each node gets a directory with its configuration, its Ed25519 identity and its TLS certificate. The federation file is
the same for all: every node pins it. Whoever runs this holds every private key; owners who do not trust one another to
do so each run `silomix keygen`, and no key travels.

examples:
  silomix init fed --silos 10 --shufflers 3
  silomix init fed --silos 5 --shufflers 2 --rounds 50 --precision 5 --task my.package:task --option lr=0.01
  silomix init fed --shufflers 5 --minimum-hops 4 --quorum 0.8 --cohort-step 3
  silomix shuffler --config fed/shuffler-1 &    and so on: one process for each directory
"""


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the commands to the parser."""
    raw = argparse.RawDescriptionHelpFormatter
    cmd = commands.add_parser(
        "init",
        help="write a complete federation for trials, with all keys in one place",
        epilog=INIT_EPILOG,
        formatter_class=raw,
    )
    cmd.add_argument("directory", type=Path, help="where to; must be empty or absent")
    cmd.add_argument("--silos", type=int, default=10, metavar="N", help="silos (default: %(default)s)")
    cmd.add_argument("--shufflers", type=int, default=3, metavar="N", help="hops of the chain (default: %(default)s)")
    cmd.add_argument("--name", default="local", help="name of the federation (default: %(default)s)")
    cmd.add_argument("--host", default="127.0.0.1", help="where nodes are reached; {name} stands for the node's name")
    cmd.add_argument("--listen-host", default="", help="where nodes listen, if not at --host, such as 0.0.0.0")
    cmd.add_argument("--base-port", type=int, default=0, metavar="PORT", help="first port (default: any free ones)")
    cmd.add_argument(
        "--metrics-base-port", type=int, default=0, metavar="PORT", help="metrics, from here on (default: off)"
    )
    cmd.add_argument(
        "--metrics-port", type=int, default=0, metavar="PORT", help="metrics, the same port on each host (default: off)"
    )
    cmd.add_argument("--metrics-host", default="", help="address of the metrics (default: 127.0.0.1, this host alone)")
    cmd.add_argument("--mqtt", default="", metavar="HOST[:PORT]", help="MQTT broker to tell of rounds (default: none)")
    cmd.add_argument("--ca", action="store_true", help="make a CA that issues the certificates; --mqtt needs one")
    cmd.add_argument("--insecure", action="store_true", help="NO TLS: for experiments on one machine only")
    add_policy(cmd, defaults={"chunk_parameters": "by the number of silos", "encoding": "counts, or unary with unary"})
    cmd.set_defaults(handler=_init)

    for an, role, what in (
        ("an", "aggregator", "announce rounds, serve the model, make the next one from the sums"),
        ("a", "shuffler", "run one hop of the chain"),
        ("a", "silo", "train on this silo's data and submit under masks"),
    ):
        cmd = commands.add_parser(role, help=what, description=f"Run {an} {role}: {what}.")
        cmd.add_argument("--config", type=Path, required=True, help="the node's directory, or its node.toml")
        cmd.add_argument("--capture", type=Path, metavar="DIR", help="record all that this node receives and sends")
        if role == "aggregator":
            cmd.add_argument(
                "--evaluate", action="store_true", help="evaluate each model here; the task must be installed"
            )
        if role == "silo":
            cmd.add_argument("--keep-updates", action="store_true", help="keep them in clear, for tests and audits")
        cmd.set_defaults(handler=_node, role=role)
    _add_pause(commands)


def _add_pause(commands: Commands) -> None:
    for name, what in (
        ("pause", "hold the federation between rounds, on the aggregator's host"),
        ("resume", "let a paused federation go on"),
    ):
        cmd = commands.add_parser(name, help=what)
        cmd.add_argument("--config", type=Path, required=True, help="the aggregator's directory, or its node.toml")
        cmd.set_defaults(handler=_pause, pause=name == "pause")


def _pause(args: argparse.Namespace) -> int:
    from silomix.runtime.config.kinds import Role
    from silomix.runtime.config.load import load_node
    from silomix.runtime.config.tables import ConfigError

    config = load_node(args.config)
    if config.role is not Role.AGGREGATOR:
        raise ConfigError(args.config, "role", f'found "{config.role}"; only the aggregator is paused, and all wait')
    file = config.state.paused
    if args.pause:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        sys.stdout.write(
            "the attempt that is under way is brought to its end, and no other begins until `silomix resume`\n"
        )
    else:
        found = file.exists()
        file.unlink(missing_ok=True)
        sys.stdout.write("the next round begins\n" if found else "nobody had paused it\n")
    return 0


def _init(args: argparse.Namespace) -> int:
    from silomix.runtime.config.kinds import Role
    from silomix.runtime.local import create

    if not 0 <= args.metrics_port < 1 << 16:
        raise BadOption("--metrics-port", f"found {args.metrics_port}; give 1 to 65535")
    granularity = Granularity(args.granularity or Granularity.SUM)
    policy = policy_of(
        args,
        encoding=Encoding.UNARY if granularity is Granularity.UNARY else Encoding.COUNTS,
        chunk_parameters=chunk_for(args.silos if granularity is Granularity.SUM else MAX_SILOS),
    )
    if policy.task.startswith("silomix.models."):  # those deal their records out to so many
        policy = replace(policy, task_options={"silos": args.silos, **policy.task_options})
    broker = _broker(args.mqtt)
    settings: dict[str, Any] = _given(metrics_port=args.metrics_port, metrics_host=args.metrics_host)
    if broker:
        settings["mqtt"] = {**broker, "tls": False} if args.insecure else broker
    with by_option():
        federation = create(
            args.directory,
            args.silos,
            args.shufflers,
            name=args.name,
            policy=policy,
            insecure=args.insecure,
            ca=args.ca or bool(broker),
            host=args.host,
            listen_host=args.listen_host,
            base_port=args.base_port,
            metrics_base_port=args.metrics_base_port,
            settings=dict.fromkeys(Role, settings),
        )
    if broker and not args.insecure:
        from silomix.runtime.config.broker import write_broker

        write_broker(args.directory, federation, str(broker["host"]), int(broker["port"]))
    out = sys.stdout.write
    if args.insecure:
        out("WARNING: no TLS. Anybody on the network can read and forge everything. For experiments only.\n")
    out(f"{args.directory}: {args.silos} silos, {args.shufflers} shufflers, one aggregator\n")
    out(
        "All private keys are in this one directory, so whoever can read it can be every node: for one machine, one "
        "operator and trials. Owners who do not share one begin with `silomix keygen`.\n"
    )
    out(f"federation digest {federation.digest.hex()[:16]}, {federation.plan.packed_bits} bits per parameter\n")
    rule = federation.chain_rule
    out(f"chain of {rule.minimum} or more of {rule.pool} hops: {rule.sentence()}\n")
    out("run each node with:\n")
    for name in (*federation.chain, federation.aggregator.name, *federation.silo_names):
        role = name.partition("-")[0]
        out(f"  silomix {role} --config {args.directory / name}\n")
    return 0


def _given(**settings: str | int) -> dict[str, str | int]:
    """Keep what the user gave, so that the node files say nothing about the rest."""
    return {key: value for key, value in settings.items() if value}


def _broker(address: str) -> dict[str, str | int]:
    """The host and port of a broker; the nodes show it the certificates that they have."""
    from silomix.runtime.config.keys import MQTT_KEYS

    if not address:
        return {}
    host, _, port = address.rpartition(":") if re.fullmatch(r"[^:]+:[0-9]+", address) else (address, "", "")
    broker: dict[str, str | int] = {"host": host, "port": int(port or MQTT_KEYS["port"].default)}
    try:
        for key, value in broker.items():
            MQTT_KEYS[key].kind.parse(value)
    except ValueError:
        raise BadOption("--mqtt", f"found {address!r}; give HOST or HOST:PORT") from None
    return broker


def _node(args: argparse.Namespace) -> int:
    from silomix.runtime.config.kinds import Role
    from silomix.runtime.config.load import load_node
    from silomix.runtime.config.tables import ConfigError
    from silomix.runtime.local import end_with_parent
    from silomix.runtime.nodes.aggregator import AggregatorNode
    from silomix.runtime.nodes.memory import give_back

    end_with_parent()
    config = load_node(args.config)
    if str(config.role) != args.role:
        raise ConfigError(args.config, "role", f'found "{config.role}"; start it with `silomix {config.role}`')
    if args.capture is not None:
        config = replace(config, capture=args.capture)
    if getattr(args, "evaluate", False):
        config = replace(config, evaluate=True)
    if getattr(args, "keep_updates", False):
        config = replace(config, keep_updates=True)
    if config.role is Role.SHUFFLER:
        give_back()
    node = asyncio.run(_run(config))
    if isinstance(node, AggregatorNode):
        check_end(node, args.config)
    atexit.register(_leave_work, config.name)
    return 0


def _leave_work(name: str) -> None:
    """Leave a thread that still trains behind, at the end of the process: all that counts is on the disk.

    The interpreter would end the thread inside torch, which takes that for a crash and aborts the process.
    """
    if any(thread.name == name and thread.is_alive() for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def check_end(node: "AggregatorNode", where: Path) -> None:
    """Raise if an aggregator has come to an end that is none: its federation had to stop, or has trained nothing."""
    from silomix.runtime.core.protocol.aggregator import Phase

    history = node.history
    if node.core.phase is not Phase.FINISHED:
        return
    if node.core.barred:
        who = " and ".join(node.core.barred)
        rounds = sorted({node.core.convicted[hop].round for hop in node.core.barred})
        looks = ", ".join(f"`silomix verify {round_} --config {where}`" for round_ in rounds)
        raise RunError(
            f"the federation stopped in round {rounds[-1]}: it was shown that {who} lied, and no chain can do without "
            f"that; look at the evidence with {looks}, and go on in a new federation of the other hops, which begins "
            f"with the newest model, {node.model_file}"
        )
    if history and not any(done.cohort for done in history):
        raise RunError(
            f"{len(history)} rounds are over, and no silo contributed to any: there is no trained model; "
            "the logs of the silos say why"
        )


async def _run(config: "NodeConfig") -> "Node":
    """Run a node to its end, and return it as it is then: another than at first, if another epoch has begun."""
    from silomix.runtime.local import make_node, run_alone
    from silomix.runtime.observe.stderr import Stderr

    try:
        with Stderr() as stderr:
            first_node = make_node(config)
            stderr.told = first_node.handshake_failed
            return await run_alone(first_node, lambda renewed: setattr(stderr, "told", renewed.handshake_failed))
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
