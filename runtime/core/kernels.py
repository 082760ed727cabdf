"""How the numeric kernels are compiled.

The loops over parameters are numba functions that release the GIL, so that a node's event loop goes on while they run.
Machine code is cached on disk: beside the source, else in the user's cache, else where ``NUMBA_CACHE_DIR`` says. A
read-only container still starts: a cache that can't be written is read, and what it lacks is compiled in memory.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(function: Kernel) -> Kernel:
    """Compile a kernel on its first call, without the GIL, and keep the machine code where that is possible."""
    try:
        kernel = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no directory at all that can hold a cache
        return cast("Kernel", numba.njit(nogil=True)(function))
    store = kernel._cache.save_overload

    def store_if_possible(signature: object, code: object) -> None:
        with suppress(OSError):  # read-only or full: the kernel runs all the same
            store(signature, code)

    kernel._cache.save_overload = store_if_possible
    return cast("Kernel", kernel)
