"""`kill -9` of any node between any two steps: the same attempt or a clean next one, and never a wrong sum.

Steps are effects: a fact in a journal, a call, a file. A node that is killed before one has done those before it, and
comes back with what it has remembered. Then everybody does what drivers do: calls that were not answered are made
again, an attempt that a hop has lost is given up, and silos send again what was not acknowledged.
"""

from functools import cache

import pytest
from tests.core.protocol.federations import AGGREGATOR, identity
from tests.core.protocol.nets import Killed, Net
from tests.core.protocol.test_joined import all_have_the_model

from silomix.runtime.core.errors import PeerFault
from silomix.runtime.core.protocol import aggregator as aggregating
from silomix.runtime.core.protocol import shuffler, silo
from silomix.runtime.core.protocol.aggregator import Phase
from silomix.runtime.core.protocol.messages import trailer_digest
from silomix.runtime.core.protocol.roundlog import Outcome


def take_part(net: Net, name: str) -> None:
    """Have a silo send its body, whatever becomes of it."""
    one, m = net.silos[name], net.manifest
    try:
        one.step(silo.Announced(m))
        sealing = one.core.sealing(m, net.rng)
        body, root = net.body(sealing, name, m)
        first, signature = net.hops[m.chain[0]], identity(name).sign(trailer_digest(sealing.header.digest, root))
        first.step(shuffler.HeaderIn(sealing.header, name))
        net.settle()
        effects = first.step(shuffler.BodyIn(sealing.header, root, root, signature), body)
        for receipt in (effect.receipt for effect in effects if isinstance(effect, shuffler.Acknowledge)):
            one.step(silo.ReceiptIn(receipt, root))
    except (Killed, PeerFault):
        return


def again(net: Net) -> None:
    """What drivers do when nothing is under way any more."""
    lead = net.aggregator
    for one in net.silos.values():
        if one.core.log.round < len(lead.published):
            net.call(one, one, silo.RecordsIn(tuple(lead.published)))
        elif one.at + 1 < one.core.log.round:
            net.tell(one, one.follow)
    match net.core.phase:
        case Phase.COLLECTING | Phase.RELEASING:
            m = net.manifest
            lost = [
                hop.name
                for hop in net.hops.values()
                if hop.core.attempt is None or hop.core.manifest != m or hop.core.state is shuffler.State.GIVEN_UP
            ]
            for name in lost:
                net.call(lead, lead, aggregating.HopLost(name, m.digest, "it was started again", net.now))
            if not lost:
                for name in net.f.silo_names:
                    if net.core.phase is Phase.COLLECTING and net.silos[name].counted != m.digest:
                        take_part(net, name)
                        net.settle()
        case Phase.FINISHED:
            return
        case _:
            if lead.asks is not None:
                lead.ask(lead.asks)


def run(rounds: int = 1, node: str = "", before: int = 0) -> Net:
    """A whole federation, in which one node is killed once."""
    net = Net(silos=3, hops=2, rounds=rounds, kills=(node, before))
    seen = None
    for _ in range(60):
        net.settle()
        done = net.core.phase is Phase.FINISHED
        if done and all(one.at == rounds for one in net.silos.values()):
            return net
        now = (net.core.phase, net.core.round, net.core.attempt, [one.at for one in net.silos.values()])
        if now == seen:
            net.wait(30)
        seen = now
        again(net)
    raise AssertionError(f"stuck while {net.core.phase}")


@cache
def steps(rounds: int, node: str) -> int:
    """How many effects a node carries out in a run in which nobody is killed."""
    net = run(rounds)
    assert not net.gave_up
    nodes = {**net.hops, **net.silos, AGGREGATOR: net.aggregator}
    return nodes[node].ticks


def sums_are_right(rounds: int, node: str) -> None:
    assert steps(rounds, node) > 5
    for before in range(1, steps(rounds, node) + 1):
        net = run(rounds, node, before)
        where = f"{node} killed before step {before}"
        assert net.models == [net.once(0, 1, 2)] * rounds, where
        assert [r.outcome for r in net.core.log.records[1:]] == [Outcome.APPLIED] * rounds, where
        assert len(net.gave_up) <= 1, where
        assert not any(g.abandoned for g in net.gave_up), where
        all_have_the_model(net)
        # A release that all have signed for costs no further attempt: hops answer from their journals, and the
        # aggregator has kept the padded sum.
        sealed = [(f.round, f.attempt) for f in net.aggregator.journal if isinstance(f, aggregating.Sealed)]
        assert len(sealed) == rounds, where
        assert not set(sealed) & {(g.round, g.attempt) for g in net.gave_up}, where


NODES = ["hop-1", "hop-2", "silo-2", AGGREGATOR]


@pytest.mark.parametrize("node", NODES)
def test_whoever_is_killed_and_whenever_the_sum_is_right(node: str) -> None:
    """Each model was released for one cohort (`Net.reveals` looks), and every silo computes the model on record."""
    sums_are_right(1, node)


@pytest.mark.full
@pytest.mark.parametrize("node", NODES)
def test_whoever_is_killed_and_whenever_two_sums_are_right(node: str) -> None:
    sums_are_right(2, node)
