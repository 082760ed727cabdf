"""Two processes of one hop: which of them goes on.

Each process of a hop has a life, a number above that of the one before and a random token, signed by the hop. When
members greet one another, they show the highest of each hop that they know of. A hop that is shown a higher one with
its own signature was started twice, or from an old copy of its disk: it must not serve beside the other. Nobody else
can make such a signature, so nobody can end a hop by claiming that there is another.
"""

from dataclasses import dataclass, replace
from enum import Enum

from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import LocalFault, Reason
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.hearing import number_of
from silomix.runtime.core.protocol.identity import Identity, verify


@dataclass(frozen=True)
class Life:
    """One process of a hop."""

    hop: str
    life: bytes
    """The number of the process, and its token."""
    signature: bytes = b""

    def digest(self, federation: Federation) -> bytes:
        """What its hop signs."""
        return digest("life", federation.first, self.hop, self.life)

    def signed(self, identity: Identity, federation: Federation) -> "Life":
        """The same with its hop's signature."""
        return replace(self, signature=identity.sign(self.digest(federation)))

    def check(self, federation: Federation) -> None:
        """Refuse a life that its hop has not signed [bad_signature]."""
        verify(federation.member(self.hop).key, self.digest(federation), self.signature, self.hop)


class Standing(Enum):
    """How a process stands to those that are known."""

    KNOWN = "known"
    NEW = "new"
    OLD = "old"


class Lives:
    """The newest process of each hop that a node has heard of."""

    def __init__(self, federation: Federation, own: Life | None = None) -> None:
        """`own` is this node's, if it is a hop."""
        self._federation = federation
        self.own = own
        self._newest = {} if own is None else {own.hop: own}

    @property
    def known(self) -> tuple[Life, ...]:
        """What others are shown."""
        return tuple(self._newest.values())

    def take(self, life: Life) -> Standing:
        """Take in a process that somebody knows of. Raise if it is of this very hop, and came after this one."""
        known = self._newest.get(life.hop)
        if known is not None and known.life == life.life:
            return Standing.KNOWN
        life.check(self._federation)
        if known is not None and life.life < known.life:
            return Standing.OLD
        if self.own is not None and self.own.hop == life.hop:
            raise self._superseded(self.own, life)
        self._newest[life.hop] = life
        return Standing.NEW

    def _superseded(self, own: Life, life: Life) -> LocalFault:
        return LocalFault(
            Reason.SUPERSEDED,
            f"another process with the identity of {own.hop} has begun (number {number_of(life.life)}; this is number "
            f"{number_of(own.life)}), or this one's state is an old copy: this one ends. Run one process, with the "
            "newest state; if that is lost, the hop needs a new name, in another epoch",
        )
