"""A process that gives memory back."""

import ctypes
from contextlib import suppress

_ARENA_MAX, _TRIM_THRESHOLD, _MMAP_THRESHOLD = -8, -1, -3  # malloc.h
LARGE_BYTES = 4 << 20
"""What is larger is a sum: it goes back to the system as soon as it is freed. Messages are smaller, and are reused."""


def give_back() -> None:
    """Make malloc keep one heap and little spare room, where it is glibc's.

    It would make a heap for each thread, and leave in each what its busiest moment took: at a hop, where messages of
    many silos pass through a few threads, that is several times what is ever in use at once.
    """
    with suppress(OSError, AttributeError):  # another C library: it has its own ways
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((_ARENA_MAX, 1), (_TRIM_THRESHOLD, LARGE_BYTES), (_MMAP_THRESHOLD, LARGE_BYTES)):
            mallopt(option, value)
