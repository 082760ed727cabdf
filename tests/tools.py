"""Programs of the system that some tests need: found, or the test is skipped and says what to install."""

import os
import shutil
from collections.abc import Iterable
from typing import Any, NoReturn

import pytest

PACKAGES = {
    "mosquitto": "mosquitto",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "nft": "nftables",
    "ip": "iproute2",
    "tc": "iproute2",
    "kubectl": "kubernetes-client",
    "softhsm2-util": "softhsm2",
}
"""The Debian package of each program."""


def examples(thorough: int) -> int:
    """How many examples a property is tried with: all of them in `make test-full`, and a fifth in `make test`."""
    return thorough if os.environ.get("SILOMIX_THOROUGH") else max(10, thorough // 5)


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """Have a test run for so many of its cases in `make test`, and for all of them in `make test-full`."""
    given = list(cases)
    rest = [case if isinstance(case, tuple) else (case,) for case in given[count:]]
    return given[:count] + [pytest.param(*case, marks=pytest.mark.full) for case in rest]


def program(name: str) -> str:
    """Return a program's path. Without it the test is skipped; where CI=true it fails, for there nothing is missing."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if found is None:
        missing(f"{name} is not installed: apt-get install {PACKAGES[name]}")
    return found


def root() -> None:
    """Skip a test that makes networks of its own unless it runs as root."""
    if os.geteuid() != 0:
        missing("network namespaces need root")


def missing(why: str) -> NoReturn:
    """Skip a test for want of something; fail where CI=true."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{why} (a failure, since CI=true)", pytrace=False)
    pytest.skip(why)
