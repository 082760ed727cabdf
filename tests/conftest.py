"""What all tests share: where modules are found, how hypothesis searches, and a loop for those that are coroutines."""

import asyncio
import inspect
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# Tests import each other as `tests.core.numbers.oracle`, however pytest was started.
sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.tools import examples

# Several tests run at a time: if each used every core for its matrices, they would hold each other up.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run, and no deadline: the first call of a kernel compiles it.
settings.register_profile("silomix", derandomize=True, deadline=None, max_examples=examples(100))
settings.load_profile("silomix")

LONGEST_S = 240.0
"""How long a coroutine may take before it counts as stuck: many times what the slowest does on a busy machine."""

QUICK = ("config", "core", "net", "render", "store", "vectors")
"""Folders of many small files, which go last: so no worker is left with a long one when the others are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long."""
    tests = Path(__file__).parent
    items.sort(key=lambda item: item.path.relative_to(tests).parts[0] in QUICK)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def test_...` on a loop of its own, and never for ever."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), LONGEST_S))
    return True
