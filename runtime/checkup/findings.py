"""What a look finds: a line, and if that will not do, what to do about it."""

from collections.abc import Callable
from dataclasses import dataclass

from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.errors import Fault, UserError


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    well: bool
    found: str
    do: str = ""
    """What to do about it, if it is not well."""


class Trouble(Exception):  # noqa: N818 - what it is
    """How a look ends that found something."""

    def __init__(self, found: str, do: str) -> None:
        """Say what was found, and what to do."""
        super().__init__(found)
        self.found, self.do = found, do


def looked(what: str, look: Callable[[], str]) -> Finding:
    """Look at one thing. Whatever goes wrong is a finding, and the next thing is looked at all the same."""
    try:
        return Finding(what, True, look())
    except Trouble as trouble:
        return Finding(what, False, trouble.found, trouble.do)
    except ConfigError as error:
        return Finding(what, False, str(error), "mend the file that it names")
    except (UserError, Fault, OSError, ValueError) as error:
        return Finding(what, False, str(error), "see what it says; nothing else was tried")
