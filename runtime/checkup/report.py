"""All looks in the order in which things are needed: who cannot read its own file need not dial."""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from silomix.runtime.checkup import host
from silomix.runtime.checkup.findings import Finding, looked
from silomix.runtime.checkup.peers import peers
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import NodeConfig, load_node
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import UserError
from silomix.runtime.net.meeting import own_version
from silomix.runtime.net.version import PROTOCOL


def checkup(path: Path, *, quick: bool = False, offline: bool = False, timeout_s: float = 5.0) -> list[Finding]:
    """Look at everything, and say what was found."""
    try:
        config = load_node(path)
    except ConfigError as error:
        where = f"{error.file}: {error.key}" if error.key else str(error.file)
        return [Finding("configuration", False, f"{where}: {error.problem}", "mend this first; the rest needs it")]
    except UserError as error:
        return [Finding("configuration", False, str(error), "mend this first; the rest needs it")]
    found = [
        Finding("configuration", True, f"{config.role} {config.name}, silomix {own_version()}, protocol {PROTOCOL}")
    ]
    looks: list[tuple[str, Callable[[NodeConfig], str]]] = [
        ("federation file", host.federation),
        ("agreement", host.agreement),
        ("key files", host.key_files),
        ("certificate", host.certificate),
        ("pins", host.pins),
        ("clock", host.clock),
        ("disk", host.disk),
    ]
    if not quick:
        looks.append(("kernels", host.kernels))
    if config.federation.policy.traps:
        looks.append(("traps", host.curve))
    if config.role is Role.SILO or config.evaluate:
        looks.append(("task", host.task_pinned if quick else host.task))
    if config.role is Role.AGGREGATOR:
        looks.append(("initial model", host.initial_model))
    if config.before_round:
        looks.append(("before_round", host.before_round))
    for what, look in looks:
        found.append(looked(what, partial(look, config)))
    if not offline:
        found += asyncio.run(peers(config, timeout_s))
    return found


def show(path: Path, *, quick: bool, offline: bool, timeout_s: float, as_json: bool) -> int:
    """Look and print; the exit code is 0 if all is well, else 1."""
    found = checkup(path, quick=quick, offline=offline, timeout_s=timeout_s)
    well = all(finding.well for finding in found)
    if as_json:
        sys.stdout.write(json.dumps({"well": well, "findings": [asdict(finding) for finding in found]}) + "\n")
        return 0 if well else 1
    width = max(len(finding.what) for finding in found)
    for finding in found:
        sys.stdout.write(f"{'ok  ' if finding.well else 'FAIL'}  {finding.what:<{width}}  {finding.found}\n")
        if not finding.well:
            sys.stdout.write(f"      {'':<{width}}  -> {finding.do}\n")
    return 0 if well else 1
