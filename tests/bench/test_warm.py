"""`silomix warm` leaves nothing to compile: a node that compiles in its first round takes seconds and much memory."""

import subprocess
import sys
from pathlib import Path

import pytest

from silomix.runtime.core.numbers.plan import Level

ROUND = """
import asyncio, importlib, pkgutil, sys
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from silomix.runtime.core import numbers
from silomix.runtime.bench.warm import warm_kernels
from silomix.runtime.local import InProcess

def compiled():
    names = [module.name for module in pkgutil.iter_modules(numbers.__path__)]
    modules = [importlib.import_module(f"silomix.runtime.core.numbers.{name}") for name in names]
    found = {value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}
    return {(kernel.__name__, str(signature)) for kernel in found for signature in kernel.signatures}

warm_kernels()
before = compiled()
assert before

async def go():
    async with InProcess(Path(sys.argv[1])) as running:
        assert [r.cohort for r in await running.finished()] == [4]

asyncio.run(asyncio.wait_for(go(), 60))
print("\\n".join(sorted(f"{name} {signature}" for name, signature in compiled() - before)))
"""


@pytest.mark.full
@pytest.mark.parametrize("level", [Level.SEMI_HONEST, Level.TRUSTED])
def test_a_round_compiles_nothing_after_warm(level: Level, tmp_path: Path) -> None:
    from tests.nodes.federations import make

    make(tmp_path / "f", 4, 2, level=level)
    done = subprocess.run(
        [sys.executable, "-c", ROUND, tmp_path / "f"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
