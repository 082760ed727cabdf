"""How the numeric kernels are compiled.

The loops over parameters are numba functions that release the GIL, so that a node's event loop goes on while they run.
Machine code is cached on disk: in ``NUMBA_CACHE_DIR`` if that is set, else beside the source, else in the user's cache.
A read-only container still starts: a cache that can't be written is read, and what it lacks, or what can't be read, is
compiled in memory.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core.caching import CacheImpl, UserProvidedCacheLocator
from numba.extending import intrinsic

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


class _Configured(UserProvidedCacheLocator):
    """The directory in NUMBA_CACHE_DIR, also where it can only be read; numba's own class passes such a one over."""

    def ensure_cache_path(self) -> None:
        with suppress(OSError):
            super().ensure_cache_path()  # type: ignore[no-untyped-call]


CacheImpl._locator_classes = [_Configured, *CacheImpl._locator_classes]


@cache
def _sources() -> str:
    """Hash all kernels' sources: numba looks at a kernel's own file only, and not at those of kernels that it calls."""
    hasher = hashlib.sha256()
    for source in sorted(files(__package__).iterdir(), key=lambda source: source.name):
        if source.name.endswith(".py"):
            hasher.update(source.read_bytes())
    return hasher.hexdigest()


def compiled(function: Kernel) -> Kernel:
    """Compile a kernel on its first call, without the GIL, and keep the machine code where that is possible."""
    try:
        kernel: Any = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no directory at all that can hold a cache
        return cast("Kernel", numba.njit(nogil=True)(function))
    kernel._cache._cache_file._source_stamp = _sources()
    store, load = kernel._cache.save_overload, kernel._cache.load_overload

    def store_if_possible(signature: object, code: object) -> None:
        with suppress(Exception):  # read-only, full, or torn by a crash: the kernel runs all the same
            store(signature, code)

    def load_if_possible(signature: object, context: object) -> object:
        try:
            return load(signature, context)
        except Exception:  # as good as absent
            return None

    kernel._cache.save_overload, kernel._cache.load_overload = store_if_possible, load_if_possible
    return cast("Kernel", kernel)


def kept(kernel: Any) -> bool:
    """Whether machine code of a kernel, made of these very sources, is on the disk."""
    place = getattr(kernel._cache, "_cache_file", None)
    return place is not None and bool(place._load_index())


def _word_at(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = target.make_array(signature.args[0])(target, builder, arguments[0])
    start = builder.bitcast(array.data, ir.IntType(8).as_pointer())
    return builder.bitcast(builder.gep(start, [arguments[1]]), ir.IntType(64).as_pointer())


def _load(context: Any, array: Any, offset: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_word_at(target, builder, signature, arguments), align=1)

    return types.uint64(array, types.intp), generate


def _store(context: Any, array: Any, offset: Any, word: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _word_at(target, builder, signature, arguments), align=1)
        return target.get_dummy_value()

    return types.void(array, types.intp, types.uint64), generate


def _lowest(context: Any, word: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


lowest_bit: Callable[[np.uint64], int] = cast("Any", intrinsic(_lowest))
"""Inside a kernel: the position of a word's lowest one, 64 if it has none."""

load_word: Callable[[Any, int], np.uint64] = cast("Any", intrinsic(_load))
"""Inside a kernel: read 8 bytes of an array's memory at any byte offset. Numba's own arrays know only aligned words."""

store_word: Callable[[Any, int, np.uint64], None] = cast("Any", intrinsic(_store))
"""Inside a kernel: write 8 bytes into an array's memory at any byte offset."""
