"""Attack a federation that has run on this machine, and say whether its silos are protected."""

from pathlib import Path
from typing import TYPE_CHECKING

from silomix.runtime.results import find

if TYPE_CHECKING:
    from silomix.attacks.audit.watch import Compared


def audit(directory: Path | str, *, seed: int = 1) -> "Compared":
    """Mount source inference on what the server captured, and on the same updates without protection.

    The directory is that of a run that was `auditable`, and its task one that has a torch network and records. The
    attack has to work on the unprotected updates, or its failure on the others would prove nothing.

    >>> import silomix
    >>> _ = silomix.run("silomix.models.digits:task", silos=5, rounds=4, out="audited", auditable=True)
    >>> verdict = silomix.audit("audited")
    >>> verdict.protected, verdict.captured.outcome.last.accuracy < verdict.unprotected.outcome.last.accuracy
    (True, True)
    """
    from silomix.attacks.audit.watch import verdict  # it needs torch, which only those who train have

    return verdict(find(Path(directory)).home, seed=seed)
