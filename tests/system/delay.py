"""A slow wire: packets that come out of one TUN device go into another one, some time later.

python delay.py SOURCE SINK SECONDS PARENT    as root, in the namespace of both devices; it ends with its parent
"""

import ctypes
import fcntl
import os
import select
import signal
import struct
import sys
import time
from collections import deque
from contextlib import suppress

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MOST_PACKETS = 50_000
"""On their way at once; more are lost, as on any wire."""
BATCH = 64


def open_tun(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


def relay(source: int, sink: int, delay_s: float) -> None:
    waiting: deque[tuple[float, bytes]] = deque()
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([source], [], [], pause)
        now = time.monotonic()
        for _ in range(BATCH if ready else 0):
            try:
                packet = os.read(source, 65536)
            except BlockingIOError:
                break
            if len(waiting) < MOST_PACKETS:
                waiting.append((now + delay_s, packet))
        while waiting and waiting[0][0] <= now:
            with suppress(OSError):  # the device is down, or has no room: the packet is lost
                os.write(sink, waiting.popleft()[1])


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # end with the parent
    if os.getppid() != int(sys.argv[4]):  # which was faster
        sys.exit(1)
    relay(open_tun(sys.argv[1]), open_tun(sys.argv[2]), float(sys.argv[3]))
