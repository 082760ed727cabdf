"""Epochs at a running node: what is proposed, what counts, and going into the next one without a restart.

A later epoch comes from the owner's disk or from any peer. It counts here when enough owners of the present one have
signed it, this node's own owner among those who agree, and the node has what it takes to be in it. The machine hears
of it then. Which round is the first of it, the round log says; when that record counts, the node ends all that it does,
and goes on as a node of the next epoch: in the same process, at its port, from the same journal.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

from silomix.runtime.config.load import load_node
from silomix.runtime.config.owners.epochs import (
    Proposal,
    directories,
    double_signers,
    own_place,
    own_problem,
    problem_of,
    read_proposal,
)
from silomix.runtime.config.owners.pins import Pins
from silomix.runtime.core.digest import fast_hash
from silomix.runtime.core.errors import PeerFault, UserError
from silomix.runtime.core.protocol.epochs import Epochs, agrees, change_problem, may_begin, owner_of, signers
from silomix.runtime.core.protocol.federation import SHOWN, Federation
from silomix.runtime.core.protocol.hearing import Life
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.net.meeting import Greeting, read_epoch
from silomix.runtime.store.files import PUBLIC, write_atomically
from silomix.runtime.store.home import EPOCHS_DIRECTORY
from silomix.v1 import member_pb2

if TYPE_CHECKING:
    from silomix.runtime.nodes.node import Node

MOST_EACH = 2
"""Files for the next epoch that a node keeps on one owner's word; a newer one takes the place of the oldest."""
SEEN = 64
"""Files of peers that a node knows to have looked at already, and files of which it knows what it last said."""
OFFERS_S, OFFERS_TIMES = 1.0, 10
"""Least pause between two looks at what one peer offers, and how many times as long it is as the look took. To read a
file that was written for that takes seconds of a worker, of which there are few."""
PATIENCE_S = 86_400.0
"""Time that an aggregator gives owners to accept an epoch that counts: a day. Then it begins without those nodes that
are not ready, if a chain and a cohort can be formed of the others."""


class Succession:
    """What a node knows of the epochs after the one that it is in."""

    def __init__(self, node: "Node") -> None:
        """Nothing is looked at before the node runs."""
        self._node = node
        self._proposals: dict[bytes, Proposal] = {}
        self._seen: dict[bytes, None] = {}
        self._said: dict[bytes, str] = {}
        self._offering: set[str] = set()
        self._offered_first = 0
        self._turn = asyncio.Lock()
        self._reading = asyncio.Lock()
        """What peers offer is read one by one: members together take one worker, and no more."""
        self._ready: dict[str, bytes] = {}
        self._since = 0.0
        self.following: Proposal | None = None
        """The first that enough owners have signed: there is no other after the present epoch."""
        self.counts = False
        """Whether that one counts here."""
        self._named = False

    @property
    def _now(self) -> Federation:
        return self._node.federation

    @property
    def epochs(self) -> Epochs:
        """The epochs that count here."""
        known, counting = self._node.config.epochs, self._counting
        return known if counting is None else known.extended(counting.federation)

    @property
    def _counting(self) -> Proposal | None:
        return self.following if self.counts else None

    @property
    def pending(self) -> bool:
        """Whether something is proposed that others may not know yet."""
        return bool(self._proposals)

    # What others are told

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The newest pins."""
        tls = self._node.tls
        return () if tls is None or tls.pins is None else tuple(tls.pins)

    @property
    def ready(self) -> bytes:
        """Digest of the epoch that counts here as the next."""
        return b"" if self._counting is None else self._counting.federation.digest

    @property
    def lives(self) -> tuple[Life, ...]:
        """The newest process of each hop that is known."""
        return self._node.lives.known

    def offers(self, federation: bytes) -> tuple[Proposal, ...]:
        """What somebody may lack who has this federation file: what came after it, and what is proposed."""
        history = self._node.config.history
        places = [i for i, one in enumerate(history) if one.federation.digest == federation]
        if not places or federation == self._now.digest:
            first = (self.following,) if self.following is not None else ()
            rest = [p for p in self._proposals.values() if p is not self.following]
            self._offered_first += 1  # a greeting has room for few: each comes first in its turn
            start = self._offered_first % max(1, len(rest))
            return (*first, *rest[start:], *rest[:start])
        return history[places[0] + 1 :]

    # What comes in

    async def look(self) -> None:
        """Take in what lies on the disk."""
        node = self._node
        places = (node.config.agreement / EPOCHS_DIRECTORY, node.config.state.epochs)
        for place in await node.work(directories, *places):
            try:
                await self._take(await node.work(read_proposal, place))
            except (UserError, PeerFault, OSError) as error:
                self._say(str(place).encode(), f"an epoch cannot be used: {error}", (str(place),))

    def heard(self, peer: str, greeting: Greeting) -> None:
        """Take in what a peer said of epochs."""
        self._ready[peer] = greeting.ready
        if greeting.epochs and peer not in self._offering:
            self._offering.add(peer)
            self._node.spawn(self._offers_of(peer, greeting.epochs))
        self._node.spawn(self._name_it())

    async def _offers_of(self, peer: str, offered: tuple[member_pb2.Epoch, ...]) -> None:
        """Look at what a peer offers: not twice at what was seen, and for no more than a tenth of the time."""
        took = 0.0
        for wire in offered:
            key = fast_hash(wire.SerializeToString(deterministic=True))
            if key not in self._seen:
                self._seen[key] = None
                while len(self._seen) > SEEN:
                    del self._seen[next(iter(self._seen))]
                async with self._reading:
                    began = self._node.steady()
                    if not await self._offered(peer, wire):
                        self._seen.pop(key, None)
                    took += self._node.steady() - began
        await asyncio.sleep(max(OFFERS_S, OFFERS_TIMES * took))
        self._offering.discard(peer)

    async def _offered(self, peer: str, wire: member_pb2.Epoch) -> bool:
        """Look at a file, and say whether that was all: one that found no room on the disk may be offered again."""
        node = self._node
        try:
            await self._take(await node.work(read_epoch, wire, self._now, peer))
        except PeerFault as fault:
            node.metrics.rejected(fault.reason)
            if (unsaid := node.unsaid(peer, "an epoch", fault.reason)) is not None:
                node.log.fault("an epoch that a peer offers is refused", fault, peer=peer, **unsaid)
        except UserError as error:
            node.log.error(f"an epoch cannot be kept: {error}")
        except OSError as error:
            if (unsaid := node.unsaid("an epoch", "no room")) is not None:
                node.log.error(f"an epoch cannot be kept yet: {error}", **unsaid)
            return False
        return True

    async def _take(self, proposal: Proposal) -> None:
        """Take a proposal in, with the signatures and pins in it that hold, and see whether one counts now."""
        async with self._turn:
            new, old = proposal.federation, self._now
            if change_problem(new, old):
                return
            held = self._holding(proposal)
            known = self._proposals.get(new.digest)
            brought = proposal.place != Path()  # by the owner of this node
            if known is None and not brought and not signers(new, old, held.accepted):
                return  # nobody has signed it who has a say
            merged = held if known is None else known.merged(held)
            quorate = not problem_of(merged, old, None)
            if known is None and not brought and not quorate:
                await self._make_room(merged)
            news = merged != known
            if news:
                place = own_place(merged, self._node.config.state)
                await self._node.work(merged.write, place)
                before = self._node.config.history[-1]
                if not own_place(before, self._node.config.state).exists():  # for `silomix accept`, which compares
                    await self._node.work(before.write, own_place(before, self._node.config.state))
                merged = Proposal(merged.federation, merged.accepted, merged.pins, place)
                self._proposals[new.digest] = merged
                self._node.renewal.tell()
            if quorate:
                await self._choose(self._proposals[new.digest])
            await self._look_again(self._proposals[new.digest])
        await self._name_it()

    async def _make_room(self, proposal: Proposal) -> None:
        """Forget the oldest of those files that nobody wants but one owner, who signs ever more of them.

        What this node's own owner has signed stays, and so does what others have signed too: no owner can push out
        another's.
        """
        new, old = proposal.federation, self._now
        ours = owner_of(self._node.config.name, new, old) if self._node.config.name in old.members else ""
        for owner in signers(new, old, proposal.accepted):
            alone = [
                one
                for one in self._proposals.values()
                if one is not self.following and signers(one.federation, old, one.accepted) == [owner] != [ours]
            ]
            for one in alone[: max(0, len(alone) + 1 - MOST_EACH)]:
                del self._proposals[one.federation.digest]
                await self._node.work(rmtree, own_place(one, self._node.config.state), True)

    def _holding(self, proposal: Proposal) -> Proposal:
        """Return a proposal without the signatures and pins that do not hold: whoever passes it on may add some."""
        new, old = proposal.federation, self._now
        accepted = {o: s for o, s in proposal.accepted.items() if agrees(o, new, old, {o: s})}
        pins = Pins(new)
        for pin in proposal.pins.values():
            with suppress(PeerFault):  # also one of a certificate that cannot be read, and so not be written either
                pins.take(pin)
        return Proposal(new, accepted, {pin.name: pin for pin in pins}, proposal.place)

    async def _choose(self, proposal: Proposal) -> None:
        """Hold on to the first epoch that enough owners have signed; a second one is refused, and said."""
        node, state = self._node, self._node.config.state
        chosen = state.epochs / "next"
        digest = proposal.federation.digest
        if self.following is None:
            before = chosen.read_text().split() if chosen.is_file() else []
            known = before[0] if len(before) == 2 and before[1] == self._now.digest.hex() else ""
            if known and known != digest.hex():
                return self._forked(known, proposal)
            if not known:
                line = f"{digest.hex()} {self._now.digest.hex()}\n".encode()
                await node.work(lambda: write_atomically(chosen, line, mode=PUBLIC))
            self.following = proposal
            return None
        if self.following.federation.digest != digest:
            return self._forked(self.following.federation.digest.hex(), proposal)
        self.following = proposal
        return None

    def _forked(self, known: str, proposal: Proposal) -> None:
        new = proposal.federation
        other = self._proposals.get(bytes.fromhex(known))
        both = (
            double_signers(other, proposal, self._now)
            if other is not None
            else signers(new, self._now, proposal.accepted)
        )
        self._say(
            new.digest + b"fork",
            f"FORK: two files are signed as epoch {new.epoch}, {known[:SHOWN]} and {new.digest.hex()[:SHOWN]}: the "
            f"second is refused here, and kept in {proposal.place}. Both were signed by {', '.join(both)}",
            ("fork", *both),
        )

    async def _look_again(self, proposal: Proposal) -> None:
        """See whether an epoch counts here now; if it does, tell the machine, if not, say what is missing."""
        node, new, old = self._node, proposal.federation, self._now
        if self.counts:
            return
        problem = problem_of(proposal, old, None)
        if not problem and self.following is not proposal:
            return  # there is another one, and it was said
        listed = node.config.name in new.members
        if not problem and listed:
            pins = None if node.tls is None else node.tls.pins
            problem = problem_of(proposal, old, pins) or own_problem(proposal, old, node.config.name)
        if not problem and listed:
            try:
                await node.work(load_node, node.config.file, new.digest)
            except UserError as error:
                problem = f"this node cannot be in epoch {new.epoch}: {error}"
        if problem:
            few = proposal is self.following  # others may be as many as their owners like
            self._say(new.digest, problem, (problem,) if few else tuple(signers(new, old, proposal.accepted)))
            return
        self.counts, self._since = True, node.clock()
        text = f"epoch {new.epoch} counts here, and begins after the next round that is applied"
        if not listed:
            text = f"epoch {new.epoch} counts, and this node is not in it: its owners have taken it out"
        node.log.warning(text, digest=new.digest.hex()[:SHOWN])
        await node.epochs_in(self.epochs, b"")
        node.renewal.tell()

    def _say(self, key: bytes, what: str, about: tuple[str, ...]) -> None:
        """Log what is new about a file, and now and then if it is `about` what an owner can cause at will."""
        if self._said.get(key) == what or (unsaid := self._node.unsaid("an epoch", *about)) is None:
            return
        self._said.pop(key, None)
        self._said[key] = what
        while len(self._said) > SEEN:
            del self._said[next(iter(self._said))]
        self._node.log.warning(what, **unsaid)

    # The aggregator's part

    async def _name_it(self) -> None:
        """Let the aggregator name the next epoch as soon as those who have to go along are ready."""
        node, following = self._node, self._counting
        if self._named or following is None or node.config.name != self._now.aggregator.name:
            return
        new, old = following.federation, self._now
        ready = {name for name, digest in self._ready.items() if digest == new.digest}
        if not may_begin(new, old, ready, node.listening, patient=node.clock() - self._since < PATIENCE_S):
            return
        self._named = True
        node.log.info(f"the next record names epoch {new.epoch}", digest=new.digest.hex()[:SHOWN])
        await node.epochs_in(self.epochs, new.digest)


async def live(node: "Node", renewed: Callable[["Node"], object]) -> "Node":
    """Run a node to its end, one epoch after the other, and return the last; `renewed` hears of each that goes on."""
    while True:
        await node.run()
        if node.stopping.is_set() or not node.switching.is_set():
            return node
        node = node.again()
        renewed(node)
