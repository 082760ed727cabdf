"""A network of a given rate for the benchmark: a namespace of its own, with a slow loopback."""

import ctypes
import os
import subprocess

from silomix.runtime.core.errors import UserError

_CLONE_NEWNET = 0x40000000
_BURST_BYTES = 1 << 20  # more than goes out at one tick of the kernel's clock


def own_network(mbit: int) -> None:
    """Put this process, and all that it starts, on a network of its own whose loopback has this rate in all.

    Every byte of every arm goes over it once, so a chain pays for each of its hops.
    """
    try:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        shape = ["rate", f"{mbit}mbit", "burst", str(_BURST_BYTES), "latency", "200ms"]
        for command in (["ip", "link", "set", "lo", "up"], ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", *shape]):
            subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - the words above
    except subprocess.CalledProcessError as error:
        raise UserError(f"--mbit: {' '.join(error.cmd)} failed: {error.stderr.strip()}") from None
    except (OSError, AttributeError) as error:
        raise UserError(f"--mbit makes a network namespace, which needs root, Linux and iproute2: {error}") from None
