"""The commands that put a federation on hosts and clusters, and ask whether it is well: render, capacity, health."""

import argparse
import re
import sys
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

Commands = Any  # argparse keeps the type of its subparsers to itself

RENDER_EPILOG = """\
examples:
  silomix render k8s --federation fed --out k8s                          every node in one cluster
  silomix render k8s --federation fed --out k8s --overlay silo --node silo-01
  kubectl apply -k k8s/overlays/all-in-one
  silomix render compose --federation fed --out compose.yaml
"""
OVERLAYS = ("all-in-one", "silo", "shuffler", "aggregator")


def add(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add the commands to the parser. What they need is imported when they run."""
    render = commands.add_parser(
        "render",
        help="write a federation's files for Kubernetes or Docker Compose",
        epilog=RENDER_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = render.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_k8s(kinds, json_flag)
    cmd = kinds.add_parser("compose", help="one host: every node, Prometheus, Grafana and Mosquitto")
    _add_federation(cmd)
    cmd.add_argument("--out", type=Path, help="file to write (default: stdout)")
    cmd.add_argument(
        "--image", default="", type=_reference, help="for shufflers and the aggregator (default: silomix:VERSION)"
    )
    cmd.add_argument("--train-image", default="", type=_reference, help="for silos (default: silomix-train:VERSION)")
    cmd.set_defaults(handler=_compose)

    _add_capacity(commands, json_flag)

    cmd = commands.add_parser(
        "health",
        help="ask a node on this host whether it is well: exit code 0 or 1",
        description="Ask this node's own gRPC health service, with its own certificate. A silo serves nothing but its "
        "metrics, so it is asked there.",
    )
    cmd.add_argument("--config", type=Path, required=True, help="the node's directory, or its node.toml")
    cmd.add_argument("--peers", action="store_true", help="ask all whom this node dials instead, from here")
    cmd.add_argument("--timeout-s", type=_seconds, default=5.0, metavar="S", help="for each (default: %(default)s)")
    json_flag(cmd)
    cmd.set_defaults(handler=_health)


def _add_federation(cmd: argparse.ArgumentParser) -> None:
    cmd.add_argument("--federation", type=Path, required=True, help="the federation file, or its directory")


def _add_k8s(kinds: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    cmd = kinds.add_parser(
        "k8s",
        help="kustomize base and overlays",
        description="Write kustomize files. Private keys that are beside the federation file are copied, mode 600.",
    )
    _add_federation(cmd)
    cmd.add_argument("--out", type=Path, required=True, help="directory to write into")
    cmd.add_argument("--overlay", choices=OVERLAYS, default=OVERLAYS[0], help="what this cluster runs (%(default)s)")
    cmd.add_argument("--node", default="", help="which silo or shuffler, if the federation has several")
    cmd.add_argument("--namespace", default="silomix", type=_label, help="(default: %(default)s)")
    cmd.add_argument(
        "--image", default="", type=_reference, help="for shufflers and the aggregator (default: silomix:VERSION)"
    )
    cmd.add_argument("--train-image", default="", type=_reference, help="for silos (default: silomix-train:VERSION)")
    cmd.add_argument("--storage-class", default="", type=_object, help="of the volumes (default: the cluster's)")
    cmd.add_argument(
        "--cert-manager", default="", type=_object, metavar="ISSUER", help="TLS from this Issuer, not from files"
    )
    cmd.add_argument("--pod-monitor", action="store_true", help="add a PodMonitor for the Prometheus operator")
    cmd.add_argument("--prometheus-namespace", default="monitoring", type=_label, help="(default: %(default)s)")
    cmd.add_argument(
        "--peer",
        action="append",
        default=[],
        type=_peer,
        metavar="NODE=CIDR",
        help="where a node of another cluster is (default: its address, or any); may be repeated",
    )
    cmd.add_argument("--proxy", default="", metavar="URL", help="HTTP proxy that is the only way out: http://HOST:PORT")
    cmd.add_argument("--parameters", type=_count, metavar="N", help="of the model (default: the initial model's)")
    cmd.add_argument(
        "--data-claim", default="", type=_object, help="PersistentVolumeClaim with a silo's records, shown in /data"
    )
    cmd.add_argument("--silo-cpu", default="1", type=_quantity, help="what training takes (default: %(default)s)")
    cmd.add_argument(
        "--silo-memory", default="", type=_quantity, help="what a silo takes (default: the runtime's and 1 GiB)"
    )
    json_flag(cmd)
    cmd.set_defaults(handler=_k8s)


def _add_capacity(commands: Commands, json_flag: Callable[[argparse.ArgumentParser], None]) -> None:
    cmd = commands.add_parser(
        "capacity",
        help="show what a round takes of each host: bytes, processor, memory, disk",
        description="Show what a round takes of each place in the chain. Bytes follow from the plan; time and memory "
        "were measured on one machine. What training takes is not in it.",
    )
    cmd.add_argument("--silos", type=_count, default=10, metavar="N", help="(default: %(default)s)")
    cmd.add_argument("--shufflers", type=_count, default=3, metavar="N", help="hops (default: %(default)s)")
    cmd.add_argument(
        "--parameters", type=_count, default=11_237_432, metavar="N", help="(default: %(default)s, ResNet-18)"
    )
    cmd.add_argument("--precision", type=int, default=4, metavar="R", help="decimal digits (default: %(default)s)")
    cmd.add_argument("--rounds", type=_count, default=100, metavar="N", help="for the disk (default: %(default)s)")
    json_flag(cmd)
    cmd.set_defaults(handler=_capacity)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: give more than 0 and at most 600 seconds")
    return value


def _matching(pattern: str, what: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text and not re.fullmatch(pattern, text, re.ASCII):  # argparse asks about an empty default as well
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return text

    return parse


_label = _matching("[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", "a name: give 1 to 63 of a-z, 0-9 and -")
_object = _matching(r"[a-z0-9{](?:[a-z0-9.{}-]{0,251}[a-z0-9}])?", "a name: give 1 to 253 of a-z, 0-9, - and .")
_quantity = _matching(r"[0-9]+(?:\.[0-9]+)?(?:m|[kMGT]i?)?", "a quantity such as 2, 500m or 4Gi")
_reference = _matching(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", "an image such as registry.example.org/silomix:1.0")


def _count(text: str) -> int:
    if not re.fullmatch("0*[1-9][0-9]{0,14}", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: give a whole one from 1 to 10^15 - 1")
    return int(text)


def _peer(text: str) -> tuple[str, str]:
    name, _, block = text.partition("=")
    try:
        return name, str(ip_network(block))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not NODE=CIDR, such as silo-01=192.0.2.0/24: {error}") from None


def _k8s(args: argparse.Namespace) -> int:
    import json

    from silomix.runtime.render.k8s import Cluster, keys, render
    from silomix.runtime.render.source import RenderError, load_source, write

    source = load_source(args.federation, args.parameters)
    cidrs: dict[str, tuple[str, ...]] = {}
    for name, block in args.peer:
        if name not in source.nodes:
            raise RenderError(f"--peer {name}: no node has this name; there are {', '.join(source.nodes)}")
        cidrs[name] = (*cidrs.get(name, ()), block)
    cluster = Cluster(
        overlay=args.overlay,
        node=args.node,
        namespace=args.namespace or "silomix",
        image=args.image,
        train_image=args.train_image,
        storage_class=args.storage_class,
        issuer=args.cert_manager,
        pod_monitor=args.pod_monitor,
        prometheus_namespace=args.prometheus_namespace or "monitoring",
        cidrs=cidrs,
        proxy=args.proxy,
        data_claim=args.data_claim,
        silo_cpu=args.silo_cpu,
        silo_memory=args.silo_memory,
    )
    files = render(source, cluster)
    here, missing = keys(source, cluster)
    write(files, args.out, here)
    overlay = next(path.parent for path in files if path.parts[0] == "overlays")
    if args.json:
        found = {
            "overlay": str(args.out / overlay),
            "files": sorted(str(path) for path in files),
            "keys": sorted(str(path) for path in here),
            "missing_keys": sorted(str(path) for path in missing),
        }
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    sys.stdout.write(f"{args.out}: {len(files)} files, {len(here)} private\n")
    for path in missing:
        sys.stdout.write(f"missing: {args.out / path}, which its owner has to put there\n")
    sys.stdout.write(f"then: kubectl apply -k {args.out / overlay}\n")
    return 0


def _compose(args: argparse.Namespace) -> int:
    from silomix.runtime.render.compose import compose
    from silomix.runtime.render.source import load_source

    text = compose(load_source(args.federation), args.image, args.train_image)
    if args.out is None:
        sys.stdout.write(text)
    else:
        args.out.write_text(text)
        sys.stdout.write(f"then: docker compose -f {args.out} up\n")
    return 0


def _capacity(args: argparse.Namespace) -> int:
    from silomix.runtime.render.capacity_report import show

    return show(args.silos, args.shufflers, args.parameters, args.precision, args.rounds, as_json=args.json)


def _health(args: argparse.Namespace) -> int:
    from silomix.runtime.observe.health import show

    return show(args.config, peers=args.peers, as_json=args.json, timeout_s=args.timeout_s)
