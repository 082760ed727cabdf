"""A process in memory: the machine of a role, driven one event at a time as `runtime/nodes` drives it.

What a real one does with sockets, threads and files is done here with a `World` and a `Disk`. What decides is the same
code: machines, rules, facts, masks, pads, the codec, lineage.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from silomix.runtime.core.errors import PeerFault, UserError
from silomix.runtime.core.protocol.identity import Identity
from silomix.runtime.core.protocol.machine import Remember
from silomix.runtime.faults.disk import Content, Disk
from silomix.runtime.faults.scene import Scene
from silomix.runtime.faults.world import AWAY_S, FULL_S, JUMP_S, Killed, Reply
from silomix.runtime.nodes.node import HeldUpError

RETRY_S, MOST_RETRY_S = 1.0, 8.0


class Node:
    """A process with a disk: what is in its memory goes with it. Roles set `core` in `begin`."""

    core: Any

    def __init__(self, name: str, scene: Scene) -> None:
        """Start for the first time."""
        self.name, self.scene, self.world = name, scene, scene.world
        self.identity: Identity = scene.identity(name)
        self.disk = Disk(name)
        self.disk.before_write = self._before_write
        self.disk.checked = scene.checked
        self.up, self.life = False, 0
        self.offset = 0.0
        self.broken = ""
        """Why it does not start."""
        self.backups = [self.disk.copy()]
        scene.world.nodes[name] = self

    # Life and death

    def wake(self) -> None:
        """Start from the disk, or say why not."""
        if self.up or self.name in self.scene.lost:
            return
        self.life += 1
        self.held: deque[Any] = deque()
        self.learned: deque[Any] = deque()
        self._mending = self._stepping = False
        self._ticks = 0
        self.broken = ""
        try:
            self.begin()
        except (UserError, OSError) as error:  # what its owner has to see to
            self.broken = str(error)
            self.scene.watch.refused_to_start(self.name, self.broken)
            return
        self.up = True
        self.doing(self.started)
        if self.up:
            self.keep_time()

    def begin(self) -> None:
        """Make the machine, and recall what is on the disk."""
        raise NotImplementedError

    def started(self) -> None:
        """Do what a process does first."""

    def die(self) -> None:
        """Lose everything but the disk, and come back later: perhaps to another disk."""
        world = self.world
        self.up, self.life = False, self.life + 1
        self.disk.full = False
        if self.name in self.scene.federation.chain and world.strikes("lose") and self.scene.may_lose(self.name):
            return
        emptied = self.name == self.scene.lead and world.strikes("empty")
        if emptied or (world.strikes("restore") and self.scene.may_restore(self.name)):
            self.disk.content = Content() if emptied else world.random.choice(self.backups)
            self.backups = [self.disk.copy()]
            self.scene.watch.restored(self.name)
        elif world.strikes("damage"):
            self.scene.watch.damaged(self.name, self.disk.damage(world.random))
        world.after(world.between(AWAY_S), self.wake)

    def mend(self) -> None:
        """Be put right: its owner has put the disk's bytes back, and starts it."""
        self.disk.full = False
        self.disk.put_right()
        self.offset = 0.0
        self.wake()

    def _before_write(self) -> None:
        if self.up:
            self.boundary()
            if not self.disk.full and self.world.strikes("disk_full"):
                self.disk.full = True
                life = self.life
                self.world.after(self.world.between(FULL_S), lambda: self._room(life))

    def _room(self, life: int) -> None:
        if self.life == life:
            self.disk.full = False

    def boundary(self) -> None:
        """Come to the next effect or write, or be killed before it."""
        if self.world.strikes("crash"):
            self.die()
            raise Killed

    # Time

    @property
    def now(self) -> float:
        """What this node's clock says."""
        return self.world.now + self.offset

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something later, if this process is still there."""
        life = self.life

        def go() -> None:
            if self.life == life and self.up:
                self.doing(action)

        self.world.after(seconds, go)

    def doing(self, action: Callable[[], None]) -> None:
        """Do something, and be killed by it perhaps."""
        try:
            action()
        except Killed:
            return

    def keep_time(self) -> None:
        """Have the machine told when its time is up."""
        self._ticks += 1
        ticks, wake = self._ticks, self.core.wake_at()
        if wake is not None and wake < float("inf"):
            self.later(max(0.0, wake - self.now) + 1e-6, lambda: self._tick(ticks))

    def _tick(self, ticks: int) -> None:
        if ticks != self._ticks:
            return
        if self.held:
            self.later(RETRY_S, lambda: self._tick(ticks))
            return
        self.insist(self.tick())
        if ticks == self._ticks:
            self.keep_time()

    def tick(self) -> Any:
        """The event that time has passed."""
        raise NotImplementedError

    # Deciding, as `runtime.nodes.node.Driver` does

    def step(self, event: Any) -> list[Any]:
        """Let the machine decide, and carry its decisions out."""
        if self.world.strikes("clock_jump"):
            self.offset += self.world.between(JUMP_S)
        try:
            self._go_on()
        except OSError as error:
            raise HeldUpError(str(error)) from error
        decided = self.core.step(event)
        self.held.extend(decided)
        try:
            return [*decided, *self._go_on()]
        except OSError:
            self._have_mended()
            raise
        finally:
            if self.up:
                self.keep_time()

    def _go_on(self) -> list[Any]:
        decided: list[Any] = []
        while self.held or self.learned:
            while self.held:
                self.boundary()
                self._carry_out(self.held[0])
                self.held.popleft()
            if self.learned:
                effects = self.core.step(self.learned.popleft())
                decided += effects
                self.held.extend(effects)
        return decided

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, Remember):
            self.remember(effect.fact)
            self.scene.watch.remembers(self.name, effect.fact)
            if self.world.random.random() < 0.15:
                self.backups = [*self.backups[-5:], self.disk.copy()]
            return
        learned = self.perform(effect)
        if learned is not None:
            self.learned.append(learned)

    def _have_mended(self) -> None:
        if not self._mending:
            self._mending = True
            self.later(RETRY_S, self._mend)

    def _mend(self) -> None:
        self._mending = False
        try:
            self._go_on()
        except OSError:
            self._have_mended()
        else:
            self.keep_time()

    def insist(self, event: Any) -> None:
        """Step where nobody would ask again."""
        try:
            self.step(event)
        except HeldUpError:
            self.later(RETRY_S, lambda: self._insist_again(event))
        except OSError:
            return  # what was decided is carried out when there is room

    def _insist_again(self, event: Any) -> None:
        try:
            self.insist(event)
        except PeerFault as fault:  # it came too late
            self.scene.watch.refusals[fault.reason] += 1

    def remember(self, fact: Any) -> None:
        """Write a fact."""
        raise NotImplementedError

    def perform(self, effect: Any) -> Any:
        """Carry one decision out."""
        raise NotImplementedError

    # Talking

    def handle(self, sender: str, request: Any, reply: Reply) -> None:
        """Take a message in, and answer: with what was asked for, a refusal, or nothing."""
        try:
            self.answer(sender, request, reply)
        except Killed:
            return
        except (PeerFault, OSError) as error:
            if isinstance(error, PeerFault):
                self.scene.watch.refusals[error.reason] += 1
            reply(error)

    def answer(self, sender: str, request: Any, reply: Reply) -> None:
        """Answer one request."""
        raise NotImplementedError

    def ask(
        self, target: str, make: Callable[[], Any], wanted: Callable[[], bool], take: Callable[[Any], bool]
    ) -> None:
        """Ask again and again, until an answer settles it or nobody wants to know any more."""
        life, done = self.life, False

        def again(wait: float) -> None:
            if not done and wanted():
                self.world.send(self.name, target, make(), hear)
                self.later(wait, lambda: again(min(2 * wait, MOST_RETRY_S)))

        def hear(answer: Any) -> None:
            nonlocal done
            if self.life == life and self.up and not done and not isinstance(answer, OSError):
                self.doing(lambda: settle(answer))

        def settle(answer: Any) -> None:
            nonlocal done
            done = take(answer)

        again(RETRY_S)
