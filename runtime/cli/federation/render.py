"""The command `render`: a federation's files for Kubernetes and for Docker Compose."""

import argparse
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from silomix.runtime.cli.options import Commands, matching, positive
from silomix.runtime.terminal import say, say_json

if TYPE_CHECKING:
    from silomix.runtime.render.source import Source

RENDER_EPILOG = """\
examples:
  silomix render k8s --federation fed --out k8s                          every node in one cluster
  silomix render k8s --federation fed --out k8s --overlay silo --node silo-01
  kubectl apply -k k8s/overlays/all-in-one
  silomix render helm --federation fed --node silo-01 --out silo-01.yaml
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
    kinds = render.add_subparsers(title="commands", metavar="COMMAND")
    _add_k8s(kinds, json_flag)
    _add_helm(kinds)
    cmd = kinds.add_parser("compose", help="one host: every node, Prometheus, Grafana and Mosquitto")
    _add_federation(cmd)
    cmd.add_argument("--out", type=Path, help="file to write (default: stdout)")
    cmd.add_argument(
        "--image", default="", type=_reference, help="for shufflers and the aggregator (default: silomix:VERSION)"
    )
    cmd.add_argument("--train-image", default="", type=_reference, help="for silos (default: silomix-train:VERSION)")
    cmd.set_defaults(handler=_compose)


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
    cmd.add_argument(
        "--image-pull-secret", action="append", default=[], type=_object, metavar="SECRET", help="may be repeated"
    )
    cmd.add_argument(
        "--volume-size", default="20Gi", type=_quantity, help="of each node's state; fixed once applied (%(default)s)"
    )
    cmd.add_argument("--storage-class", default="", type=_object, help="of the volumes (default: the cluster's)")
    cmd.add_argument(
        "--cert-manager", default="", type=_object, metavar="ISSUER", help="TLS from this Issuer, not from files"
    )
    cmd.add_argument("--pod-monitor", action="store_true", help="add a PodMonitor for the Prometheus operator")
    cmd.add_argument("--prometheus-namespace", default="monitoring", type=_label, help="(default: %(default)s)")
    _add_peers(cmd)
    _add_sizes(cmd)
    json_flag(cmd)
    cmd.set_defaults(handler=_k8s)


def _add_peers(cmd: argparse.ArgumentParser) -> None:
    cmd.add_argument(
        "--peer",
        action="append",
        default=[],
        type=_peer,
        metavar="NODE=CIDR",
        help="where a node of another cluster is (default: its address, or any); may be repeated",
    )
    cmd.add_argument("--proxy", default="", metavar="URL", help="HTTP proxy that is the only way out: http://HOST:PORT")


def _add_sizes(cmd: argparse.ArgumentParser) -> None:
    cmd.add_argument("--parameters", type=positive, metavar="N", help="of the model (default: the initial model's)")
    cmd.add_argument(
        "--data-claim", default="", type=_object, help="PersistentVolumeClaim with a silo's records, shown in /data"
    )
    cmd.add_argument(
        "--initial-model-claim",
        default="",
        type=_object,
        metavar="CLAIM",
        help="PersistentVolumeClaim with initial.safetensors, to begin with (default: the task makes it)",
    )
    cmd.add_argument("--silo-cpu", default="1", type=_quantity, help="what training takes (default: %(default)s)")
    cmd.add_argument(
        "--silo-memory", default="", type=_quantity, help="what a silo takes (default: the runtime's and 1 GiB)"
    )


def _add_helm(kinds: Commands) -> None:
    cmd = kinds.add_parser(
        "helm",
        help="values of the chart in deploy/helm, for one node",
        description="Write the values of the chart in deploy/helm, for one node in its owner's own cluster. No key is "
        "among them: the chart takes Secrets that are there already.",
    )
    _add_federation(cmd)
    cmd.add_argument("--node", required=True, help="which one")
    cmd.add_argument("--out", type=Path, help="file to write (default: stdout)")
    _add_peers(cmd)
    _add_sizes(cmd)
    cmd.set_defaults(handler=_helm)


_label = matching("[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", "a name: give 1 to 63 of a-z, 0-9 and -")
_object = matching(r"[a-z0-9{](?:[a-z0-9.{}-]{0,251}[a-z0-9}])?", "a name: give 1 to 253 of a-z, 0-9, - and .")
_quantity = matching(r"[0-9]+(?:\.[0-9]+)?(?:m|[kMGT]i?)?", "a quantity such as 2, 500m or 4Gi")
_reference = matching(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", "an image such as registry.example.org/silomix:1.0")


def _peer(text: str) -> tuple[str, str]:
    name, _, block = text.partition("=")
    try:
        return name, str(ip_network(block))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not NODE=CIDR, such as silo-01=192.0.2.0/24: {error}") from None


def _k8s(args: argparse.Namespace) -> int:
    from silomix.runtime.render.k8s import Cluster, Wants, keys, remarks, render
    from silomix.runtime.render.source import load_source, write

    source = load_source(args.federation, args.parameters)
    cluster = Cluster(
        overlay=args.overlay,
        node=args.node,
        namespace=args.namespace or "silomix",
        image=args.image,
        train_image=args.train_image,
        storage_class=args.storage_class,
        volume_size=args.volume_size,
        pod_monitor=args.pod_monitor,
        prometheus_namespace=args.prometheus_namespace or "monitoring",
        cidrs=_peers(args, source),
        wants=Wants(
            issuer=args.cert_manager,
            proxy=args.proxy,
            data_claim=args.data_claim,
            model_claim=args.initial_model_claim,
            pull_secrets=tuple(args.image_pull_secret),
            silo_cpu=args.silo_cpu,
            silo_memory=args.silo_memory,
        ),
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
            "remarks": remarks(source, cluster),
        }
        say_json(found)
        return 0
    say(f"{args.out}: {len(files)} files, {len(here)} private")
    for path in missing:
        say(f"missing: {args.out / path}, which its owner has to put there")
    for remark in remarks(source, cluster):
        say(remark)
    say(f"then: kubectl apply -k {args.out / overlay}")
    return 0


def _peers(args: argparse.Namespace, source: "Source") -> dict[str, tuple[str, ...]]:
    from silomix.runtime.render.source import RenderError

    cidrs: dict[str, tuple[str, ...]] = {}
    for name, block in args.peer:
        if name not in source.nodes:
            raise RenderError(f"--peer {name}: no node has this name; there are {', '.join(source.nodes)}")
        cidrs[name] = (*cidrs.get(name, ()), block)
    return cidrs


def _helm(args: argparse.Namespace) -> int:
    from silomix.runtime.render.helm import surroundings, text
    from silomix.runtime.render.pod import Wants
    from silomix.runtime.render.source import load_source

    source = load_source(args.federation, args.parameters)
    wants = Wants(
        proxy=args.proxy,
        data_claim=args.data_claim,
        model_claim=args.initial_model_claim,
        silo_cpu=args.silo_cpu,
        silo_memory=args.silo_memory,
    )
    made = text(args.node, source, surroundings(args.node, _peers(args, source), args.proxy), wants)
    if args.out is None:
        say(made.decode().rstrip("\n"))
    else:
        args.out.write_bytes(made)
        say(f"then: helm install {args.node} deploy/helm/silomix-node --values {args.out}")
    return 0


def _compose(args: argparse.Namespace) -> int:
    from silomix.runtime.render.compose import compose
    from silomix.runtime.render.source import load_source

    text = compose(load_source(args.federation), args.image, args.train_image)
    if args.out is None:
        say(text.rstrip("\n"))
    else:
        args.out.write_text(text)
        say(f"then: docker compose -f {args.out} up")
    return 0
