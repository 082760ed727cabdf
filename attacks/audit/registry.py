"""The attacks that an audit mounts, in the order in which its report shows them.

A new attack is a module with an `Attack` (attacks/audit/attack.py says what that is) and a line here. They are named as
tasks are, 'package.module:NAME', so that one's own can be named on the command line.
"""

import importlib
from collections.abc import Sequence

from silomix.attacks.audit.attack import Attack
from silomix.attacks.errors import AttackError
from silomix.runtime.core.errors import nearest

MOUNTED = "silomix.attacks.audit.mounted"
ATTACKS: tuple[str, ...] = (
    f"{MOUNTED}.by_mode:ATTACK",
    f"{MOUNTED}.by_skew:ATTACK",
    f"{MOUNTED}.captures:ATTACK",
    f"{MOUNTED}.residue_sums:ATTACK",
    f"{MOUNTED}.colluding_silos:ATTACK",
    f"{MOUNTED}.changing_cohorts:ATTACK",
    f"{MOUNTED}.inversion:ATTACK",
    f"{MOUNTED}.active:ATTACK",
)


def load(address: str) -> Attack:
    """Import an attack, or say what is wrong with its address."""
    module, colon, name = address.partition(":")
    if not (module and colon and name):
        raise AttackError(f"the attack {address!r} is not of the form 'package.module:NAME'")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise AttackError(f"the attack {address} cannot be imported: {error}") from error
    if not isinstance(found, Attack):
        raise AttackError(f"{address} is {type(found).__name__}: give a silomix.attacks.audit.attack.Attack")
    return found


def attacks(more: Sequence[str] = (), only: Sequence[str] = ()) -> list[Attack]:
    """Return the registered attacks and those of one's own, or of all these only some by name."""
    found = [load(address) for address in (*ATTACKS, *more)]
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise AttackError(f"there are two attacks of the name {name}: give yours another")
    for name in only:
        if name not in names:
            raise AttackError(f"there is no attack {name!r}{nearest(name, names)} They are {', '.join(names)}")
    return [one for one in found if not only or one.name in only]
