"""A last hop that sends the aggregator a header behind the cohort: no mask comes off the sum that is not on it."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from tests.nodes.federations import assert_model, make, manifest_at, peer, refusal, run, shuffler, until
from tests.nodes.test_overtaken import Held

from silomix.runtime.core.errors import Reason
from silomix.runtime.core.protocol import shuffler as core
from silomix.runtime.core.protocol.messages import Header, Manifest
from silomix.runtime.core.protocol.silo import Silo
from silomix.runtime.local import InProcess
from silomix.runtime.net.wire import write_header
from silomix.runtime.nodes.passage import SumPassage
from silomix.v1 import services_pb2

Frame = services_pb2.RelayFrame


async def sent_behind(directory: Path, m: Manifest, late: Header) -> str:
    """Send the aggregator a header over a second stream, and return why that is refused."""

    async def frames() -> AsyncIterator[services_pb2.RelayFrame]:
        yield Frame(open=services_pb2.RelayOpen(hop="shuffler-1", manifest_digest=m.digest))
        yield Frame(header=write_header(late))

    async with peer(directory, "shuffler-1", "aggregator") as hop:
        error = await refusal(lambda: hop.aggregator.Deliver(frames(), metadata=hop.metadata))
    return (error.details() or "").partition(":")[0]


def test_a_header_behind_the_cohort_changes_no_sum(tmp_path: Path) -> None:
    """While masks of absentees are put back, streams of the hop are still read: one more mask would stay off. The
    aggregator alone would have another sum than all silos, and be the one who lied."""
    directory = tmp_path / "f"
    federation = make(directory, 4, 1, minimum_cohort=3, quorum=0.75)
    why: list[str] = []

    async def go() -> None:
        async with InProcess(directory, without=("silo-03", "silo-04")) as running:
            m = await manifest_at(running)
            hop, lead = shuffler(running), running.aggregator
            async with peer(directory, "silo-04") as silo:
                machine = Silo(federation, silo.identity)
                absent, late = (machine.sealing(m, os.urandom).header for _ in range(2))
            await hop.step(core.HeaderIn(absent, "silo-04"))
            await until(lambda: len(lead.core._headers) == 3, "the headers are at the aggregator")
            passage = lead.passage
            assert isinstance(passage, SumPassage)
            await asyncio.gather(*passage._pending)
            held = Held(passage, "_apply", skip=1)  # the mask of silo-03 comes off, and the absentee's is put back
            running.start("silo-03")
            await held.begun()
            why.append(await sent_behind(directory, m, late))
            held.let_go()
            await running.finished()
            assert [done.cohort for done in lead.history] == [3]
            assert_model(lead.tensors, [range(3)], federation.policy)

    run(go(), 40)
    assert why == [Reason.COHORT_CLOSED]
