"""What attacks refuse, in a sentence for whoever mounts them."""

from silomix.runtime.core.errors import UserError


class AttackError(UserError):
    """The attack cannot be mounted on what was given. The message says what is missing."""


class Unfit(AttackError):  # noqa: N818 - what the network is
    """One attack cannot be mounted on this network, for a reason that lies in it; others may."""
