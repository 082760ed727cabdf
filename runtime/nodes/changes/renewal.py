"""Certificates that change while a node runs: its own, from its files, and others', from their pins.

Every few seconds the node looks at the files of its certificate and of the pins; Kubernetes and cert-manager replace
them in place. Now and then, and whenever something has changed, it greets those whom it dials, and each takes from the
other what is news. What does not fit together, as in the middle of a change, is left alone until it does.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from silomix.runtime.config.load import reload_tls
from silomix.runtime.config.owners.rotate import keep
from silomix.runtime.core.errors import PeerFault, UserError
from silomix.runtime.core.protocol.federation import SHOWN
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.net.calls import Method
from silomix.runtime.net.edges import dialled_by
from silomix.runtime.net.meeting import Greeting, answering, meet
from silomix.runtime.net.transport import tls_of
from silomix.runtime.net.version import difference
from silomix.runtime.store.home import EPOCHS_DIRECTORY, PIN

if TYPE_CHECKING:
    from silomix.runtime.nodes.node import Node

LOOK_S = 2.0
"""Pause between two looks at the files."""
MEET_S = 30.0
"""Longest time between two greetings of a peer."""
PENDING_S = 5.0
"""The same while an epoch is about to begin."""
MEETING_S = 10.0
PIN_EVERY_S = 5.0
"""Shortest time between two new pins of one member that are taken from greetings. Each is written, passed on, and may
cost a line, and a member could sign them faster than disks write. What comes sooner is not lost: whoever knows it shows
it in its next greeting too."""
SAY_EVERY_S = 60.0
"""Pause between two lines in the log about one member's pins: it may change them every few seconds, for ever."""

Look = tuple[tuple[str, int, int, int], ...]


class Renewal:
    """Keeps a node's TLS material up to date."""

    def __init__(self, node: "Node") -> None:
        """Nothing is looked at before `run`."""
        self._node = node
        self._news = asyncio.Event()
        self._seen: Look = ()
        self._said: dict[str, tuple[str, bytes]] = {}
        self._taken: dict[str, float] = {}
        """By member: when its last pin was taken from a greeting."""

    @property
    def services(self) -> dict[str, dict[str, Method]]:
        """What others may ask of this."""
        return answering(self._node.federation, self._node.limits, self._node.succession, self.heard)

    def tell(self) -> None:
        """Greet everybody soon: there is news."""
        self._news.set()

    async def run(self) -> None:
        """Look at the files and greet peers, until the node ends. The first look finds what has come since they were
        read for the start."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_files())
            group.create_task(self._greet())

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            found = await self._node.work(self._look)
            if found == self._seen:
                continue
            await self._node.succession.look()
            if self._node.tls is None or await self.reload():
                self._seen = found  # and not what is there by now: some of that may have come after it was read

    def _look(self) -> Look:
        """Tell the files apart from what they were, without reading them."""
        config = self._node.config
        paths: list[Path] = [path for path in (config.certificate, config.key) if path is not None]
        for directory in (config.agreement, config.state.pins):
            paths += sorted(directory.glob(f"*{PIN}")) if self._node.federation.pinned else []
        for directory in (config.agreement / EPOCHS_DIRECTORY, config.state.epochs):
            paths += sorted(directory.glob("*/*"))
        found = []
        for path in paths:
            with suppress(OSError):
                stat = path.stat()
                found.append((str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(found)

    async def reload(self) -> bool:
        """Read the files anew and use what they say, if it fits together; return whether it did."""
        node = self._node
        assert node.tls is not None
        try:
            await node.work(reload_tls, node.config)
            read = await node.work(tls_of, node.config)
        except (UserError, OSError, ValueError) as error:
            node.log.warning(f"the certificate or a pin has changed and cannot be used yet: {error}")
            return False
        assert read is not None
        if read.pins is not None and node.tls.pins is not None:
            for pin in node.tls.pins:  # a peer may have shown one that is not written yet
                read.pins.take(pin)
            read.anchor = read.pins.roots()
        if node.tls.renew(read):
            node.metrics.certificate_expires(node.tls.expires)
            node.log.info("certificates have changed, and are in use")
            node.drop_callers()
            self._news.set()
        return True

    def heard(self, peer: str, greeting: Greeting) -> None:
        """Take in what a peer said: log what differs, once, and keep what is news about certificates."""
        node = self._node
        if self._said.get(peer) != (greeting.protocol, greeting.federation):
            self._said[peer] = (greeting.protocol, greeting.federation)
            found = difference(greeting.protocol, peer, node.config.name)
            if found and (unsaid := node.unsaid(peer, "another protocol")) is not None:
                node.log.warning(": ".join(found), peer=peer, **unsaid)
            known = {one.federation.digest for one in node.config.history} | {node.succession.ready}
            if greeting.federation not in known and (unsaid := node.unsaid(peer, "another file")) is not None:
                theirs, ours = greeting.federation.hex()[:SHOWN], node.federation.digest.hex()[:SHOWN]
                node.log.warning(f"{peer} has the federation file {theirs}, and this node {ours}", peer=peer, **unsaid)
        node.succession.heard(peer, greeting)
        if node.heard_lives(peer, greeting.lives):
            self._news.set()
        if node.tls is None or node.tls.pins is None:
            return
        news: list[Pin] = []
        try:
            for pin in greeting.pins:
                if self._due(pin) and node.tls.pins.take(pin):
                    self._taken[pin.name] = node.steady()
                    news.append(pin)
        finally:  # those before one that is refused were taken, and will never be news again
            self._use(news, peer)

    def _due(self, pin: Pin) -> bool:
        """Whether it is time for another pin of a member. Only what the member itself has signed counts as its last."""
        taken = self._taken.get(pin.name)
        return taken is None or self._node.steady() - taken >= PIN_EVERY_S

    def _use(self, news: list[Pin], peer: str) -> None:
        """Know members by the pins that are news, keep these, and pass them on."""
        node = self._node
        if not news:
            return
        assert node.tls is not None
        copied = any(pin.name == node.config.name for pin in news)
        if copied and (unsaid := node.unsaid(peer, "our pin", every_s=SAY_EVERY_S)) is not None:
            node.log.error(
                "somebody who has this node's identity has announced another certificate for it: was the identity "
                "copied, or this directory restored? `silomix rotate` goes on from there",
                peer=peer,
                **unsaid,
            )
        node.spawn(self._keep(news))
        if node.tls.trust():
            node.drop_callers()
        self._news.set()

    async def _keep(self, news: list[Pin]) -> None:
        """Write what is news, durably: after a restart nothing older is taken either."""
        node = self._node
        for pin in news:
            if (unsaid := node.unsaid(pin.name, "a pin", every_s=SAY_EVERY_S)) is not None:
                node.log.info("a member has changed its certificate", peer=pin.name, counter=pin.counter, **unsaid)
            try:
                await node.work(keep, pin, node.config)
            except OSError as error:
                node.log.error(f"cannot keep the pin of {pin.name}: {error}")

    def knows(self, name: str) -> int:
        """The counter of the newest pin that this node has seen of a member; 0 for none."""
        return next((pin.counter for pin in self._node.succession.pins if pin.name == name), 0)

    async def _greet(self) -> None:
        """Greet everybody whom this node dials, now and then, and at once when there is news."""
        node = self._node
        peers = dict.fromkeys(dialled_by(node.config.name, node.federation))
        await asyncio.sleep(LOOK_S)  # nobody is in a hurry when everything starts
        while True:
            self._news.clear()
            for peer in peers:
                with suppress(grpc.aio.AioRpcError, PeerFault, OSError):
                    their = self._said.get(peer, ("", b""))[1]
                    self.heard(peer, await meet(node.config, peer, node.tls, node.succession, MEETING_S, their))
            with suppress(TimeoutError):
                async with asyncio.timeout(min(MEET_S, PENDING_S) if node.succession.pending else MEET_S):
                    await self._news.wait()
                    await asyncio.sleep(LOOK_S)
