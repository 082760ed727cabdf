"""What was begun is ended, however often its caller is cancelled."""

import asyncio

import pytest
from tests.nodes.federations import run

from silomix.runtime.nodes.node import whole


@pytest.mark.parametrize("cancels", [0, 1, 3])
def test_nobody_leaves_while_it_is_at_work(cancels: int) -> None:
    async def go() -> None:
        work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        caller = asyncio.create_task(whole(work))
        for _ in range(cancels):
            await asyncio.sleep(0)
            caller.cancel()
            await asyncio.sleep(0)
            assert not caller.done()
            assert not work.cancelled()
        work.set_result("done")
        if cancels:
            with pytest.raises(asyncio.CancelledError):
                await caller
        else:
            assert await caller == "done"

    run(go())


def test_what_went_wrong_is_told() -> None:
    async def go() -> None:
        work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        work.set_exception(ValueError("wrong"))
        with pytest.raises(ValueError, match="wrong"):
            await whole(work)

    run(go())
