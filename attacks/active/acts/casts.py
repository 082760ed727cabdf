"""Who lies, in the constellations that attacks share."""

from silomix.attacks.active.registry import Cast
from silomix.attacks.active.stage import FIRST, HOSTILE, LAST, SECOND

AGGREGATOR = Cast()
WITH_FIRST = Cast(hops=(FIRST,))
WITH_SECOND = Cast(hops=(SECOND,))
WITH_SILO = Cast(silos=(HOSTILE,))
SILO = Cast(aggregator=False, silos=(HOSTILE,))
LAST_HOP = Cast(aggregator=False, hops=(LAST,))
