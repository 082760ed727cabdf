"""R4: whoever can have a silo left out chooses whom the others hide among; and keys that hide nothing."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from silomix.attacks.active.acts.casts import AGGREGATOR, WITH_SECOND
from silomix.attacks.active.liars.member import Refused
from silomix.attacks.active.liars.sealing import SMALL, open_without_key
from silomix.attacks.active.registry import Loot, Outcome, Rule, attack
from silomix.attacks.active.stage import FIRST, LAST, SECOND, VICTIM, Stage
from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol.messages import Evidence, Header, Manifest
from silomix.runtime.core.protocol.shuffler import State
from silomix.runtime.net.wire import write_evidence

WORD = PeerFault(Reason.SEAL_BROKEN, "its seed does not open", peer=VICTIM)

Forge = Callable[[Manifest, Header], bytes]
Accuser = Callable[[Stage, Manifest, Forge | None], AbstractContextManager[list[Header]]]
"""Who says it, and to which headers it has said it so far."""


async def _told(stage: Stage, manifest: Manifest, hop: str, said: list[Header]) -> Loot:
    """Wait until an honest hop has heard what was said of the victim, and see what it made of it."""
    node = stage.hop(hop)

    def decided() -> bool:
        gone = node.core.state is State.GIVEN_UP
        return bool(said) and (gone or VICTIM in node.core.unfit)

    await stage.until(decided, f"{hop} has made up its mind")
    left_out = VICTIM in node.core.unfit
    words = "a silo left out, for ten rounds" if left_out else "an attempt lost, and no silo left out"
    return stage.loot_for("false_evidence", left_out, words)


@contextmanager
def _by_hop(stage: Stage, manifest: Manifest, forge: Forge | None) -> Iterator[list[Header]]:
    liar = stage.liar(SECOND)
    heard: list[Header] = []

    def answer(_: object, header: Header) -> tuple[PeerFault, bytes] | None:
        if header.silo != VICTIM or header.manifest != manifest.digest:
            return None
        heard.append(header)
        return WORD, forge(manifest, header) if forge is not None else b""

    liar.on_relay = answer
    try:
        yield heard
    finally:
        liar.on_relay = lambda heard, header: None


@contextmanager
def _by_aggregator(stage: Stage, manifest: Manifest, forge: Forge | None) -> Iterator[list[Header]]:
    us = stage.aggregator
    heard: list[Header] = []

    def answer(_: object, header: Header) -> None:
        if header.silo == VICTIM and header.manifest == manifest.digest:
            heard.append(header)
            us.evidence = forge(manifest, header) if forge is not None else b""
            raise WORD

    us.on_header = answer
    try:
        yield heard
    finally:
        us.on_header = lambda came, header: None


async def _accuse(stage: Stage, by: Accuser, to: str, forge: Forge | None) -> Loot:
    """Say in an attempt that the victim's seed does not open, and see what the honest hop makes of it that is told."""
    number = stage.next_round()
    manifest = stage.aggregator.propose(number, await stage.keys(number))
    with by(stage, manifest, forge) as said:
        await stage.open(manifest)
        await stage.aggregator.announce(manifest, stage.honest_silos)
        return await _told(stage, manifest, to, said)


async def _accuse_as_hop(stage: Stage, forge: Forge | None) -> Loot:
    return await _accuse(stage, _by_hop, FIRST, forge)


async def _accuse_as_aggregator(stage: Stage, forge: Forge | None) -> Loot:
    return await _accuse(stage, _by_aggregator, LAST, forge)


@attack("bare-word-of-a-hop", Rule.R4, "shuffler-2", Outcome.USELESS, WITH_SECOND)
async def bare_word_of_a_hop(stage: Stage) -> Loot:
    """A hop says that a silo's seed does not open, and shows nothing for it."""
    return await _accuse_as_hop(stage, None)


@attack("bare-word-of-the-aggregator", Rule.R4, "aggregator", Outcome.USELESS, AGGREGATOR)
async def bare_word_of_the_aggregator(stage: Stage) -> Loot:
    """The aggregator says that a silo's seed does not open, and shows nothing for it."""
    return await _accuse_as_aggregator(stage, None)


def _evidence(manifest: Manifest, recipient: str, header: Header, private: bytes) -> bytes:
    shown = Evidence(manifest.digest, recipient, header.silo, header.digest, private)
    return write_evidence(shown).SerializeToString()


@attack("false-evidence-of-a-hop", Rule.R4, "shuffler-2", Outcome.REFUSED, WITH_SECOND)
async def false_evidence_of_a_hop(stage: Stage) -> Loot:
    """A hop opens its key for an honest silo, whose seed it opens, and says that it does not."""
    liar = stage.liar(SECOND)
    return await _accuse_as_hop(stage, lambda m, h: _evidence(m, SECOND, h, liar.own(m)[VICTIM].value))


@attack("another-key-as-evidence", Rule.R4, "shuffler-2", Outcome.REFUSED, WITH_SECOND)
async def another_key_as_evidence(stage: Stage) -> Loot:
    """A hop shows the key that it made for another silo, which of course opens nothing of the victim's."""
    liar = stage.liar(SECOND)
    other = next(name for name in stage.honest_silos if name != VICTIM)
    return await _accuse_as_hop(stage, lambda m, h: _evidence(m, SECOND, h, liar.own(m)[other].value))


@attack("false-evidence-of-the-aggregator", Rule.R4, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def false_evidence_of_the_aggregator(stage: Stage) -> Loot:
    """The aggregator opens its key for an honest silo, whose seed it opens, and says that it does not."""
    us = stage.aggregator
    return await _accuse_as_aggregator(stage, lambda m, h: _evidence(m, us.name, h, us.private[m.digest][VICTIM].value))


@attack("evidence-for-another-attempt", Rule.R4, "shuffler-2", Outcome.REFUSED, WITH_SECOND)
async def evidence_for_another_attempt(stage: Stage) -> Loot:
    """A hop shows evidence that names another attempt, of which there is nothing to look at."""
    elsewhere = Evidence(bytes(32), SECOND, VICTIM, bytes(32), bytes(32))
    return await _accuse_as_hop(stage, lambda m, h: write_evidence(elsewhere).SerializeToString())


# Keys of small order


async def _readable(stage: Stage, manifest: Manifest, recipient: str) -> Loot:
    """Announce whatever hops say, and count the seeds that somebody without any key can open."""
    for hop in reversed(manifest.chain):
        try:
            await stage.open(manifest, (hop,))
        except Refused:
            continue
    await stage.aggregator.announce(manifest, stage.honest_silos)

    def headers() -> dict[str, Header]:
        if SECOND in stage.cast.hops:
            return stage.liar(SECOND).heard[manifest.digest].headers
        return stage.came(manifest).headers

    await stage.until(
        lambda: stage.refused_by(stage.honest_silos) or len(headers()) == len(stage.honest_silos),
        "each silo has sealed or refused",
    )
    context = manifest.context(manifest.layer(recipient))
    sealed = [next(s for s in h.seeds if s.recipient == recipient) for h in headers().values()]
    opened = sum(open_without_key(s.sealed, SMALL, context) is not None for s in sealed)
    return stage.loot_for("wrong_keys", opened > 0, "seeds that anybody can open", seeds=opened)


@attack("small-order-key-of-the-aggregator", Rule.R4, "aggregator", Outcome.REFUSED, AGGREGATOR)
async def small_order_of_the_aggregator(stage: Stage) -> Loot:
    """The aggregator's round keys are a point of small order: every hop could read layer 0, and with it the sum."""
    number = stage.next_round()
    manifest = stage.aggregator.propose(number, await stage.keys(number), small=SMALL)
    return await _readable(stage, manifest, stage.aggregator.name)


@attack("small-order-key-of-a-hop", Rule.R4, "aggregator and shuffler-2", Outcome.REFUSED, WITH_SECOND)
async def small_order_of_a_hop(stage: Stage) -> Loot:
    """A hop's round keys are a point of small order: its masks hide nothing from anybody."""
    number = stage.next_round()
    manifest = stage.aggregator.propose(number, await stage.keys(number, small={SECOND: SMALL}))
    return await _readable(stage, manifest, SECOND)
