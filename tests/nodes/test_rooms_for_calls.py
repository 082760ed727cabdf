"""R7: of each method that a node answers, a member may have so many calls open, and one more is refused."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.core.protocol.federations import federation
from tests.nodes.alone import alone, config_of
from tests.nodes.leads import home_of_an_aggregator, leading

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.net.calls import CALLS_EACH, QUESTIONS_EACH, Method, Pace
from silomix.runtime.net.health import Health, reflect
from silomix.runtime.net.lines import SERVICES
from silomix.runtime.net.meeting import SERVICE
from silomix.runtime.nodes import shuffler
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.runtime.nodes.lead.service import Service
from silomix.runtime.nodes.shuffler import SILO_STREAMS, ShufflerNode

Methods = dict[str, dict[str, Method]]

EACH = {
    "Submit": SILO_STREAMS,
    "GiveModel": 1,
    **dict.fromkeys(("GetStatus", "Check", "Meet"), QUESTIONS_EACH),
}
"""Methods with a number of their own; all others have the same."""
ANSWERED = [(service.name, name) for service in SERVICES.values() for name in service.methods_by_name] + [
    ("Health", "Check"),
    ("Health", "Watch"),
    ("ServerReflection", "ServerReflectionInfo"),
    (SERVICE.name, "Meet"),
]


@pytest.fixture(scope="module")
def methods(_two_rounds: Path, tmp_path_factory: pytest.TempPathFactory) -> Methods:
    """What an aggregator and a hop answer, by service."""
    directory = tmp_path_factory.mktemp("rooms")

    async def lead() -> Methods:
        async with leading(home_of_an_aggregator(_two_rounds, directory / "led")) as node:
            assert isinstance(node, AggregatorNode)
            return {"AggregatorService": Service(node).methods}

    async def hop(node: ShufflerNode) -> Methods:
        named = {name.rpartition(".")[2]: answered for name, answered in node.renewal.services.items()}
        return {"ShufflerService": shuffler._Service(node).methods, **named}

    return {
        **asyncio.run(lead()),
        **alone(lambda: ShufflerNode(config_of(directory / "hop", federation(), "hop-1")), hop),
        "Health": Health().methods,
        "ServerReflection": reflect((), Pace(float)),
    }


def test_every_method_that_is_answered_is_looked_at(methods: Methods) -> None:
    assert sorted(ANSWERED) == sorted((service, name) for service, answered in methods.items() for name in answered)


@pytest.mark.parametrize(("service", "name"), ANSWERED)
def test_a_member_has_so_many_calls_of_a_method_open_and_no_more(methods: Methods, service: str, name: str) -> None:
    room = methods[service][name].room
    with ExitStack() as held:
        for _ in range(EACH.get(name, CALLS_EACH)):
            held.enter_context(room.place("silo-1"))
        with pytest.raises(PeerFault) as caught:
            held.enter_context(room.place("silo-1"))
    assert caught.value.reason is Reason.BUSY
