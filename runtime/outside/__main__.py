"""Run a silo whose vectors come from other processes of its host.

    python -m silomix.runtime.outside [--anyway] DIRECTORY

--anyway  take part although the silos of the last sum were asked different things: by mistake, as is known
"""

import signal
import sys
import threading

from silomix.runtime.core.errors import Fault, UserError
from silomix.runtime.local import end_with_parent
from silomix.runtime.outside.door import Door
from silomix.runtime.outside.silo import Silo


def main(arguments: list[str]) -> int:
    """Run a silo with a door until it is told to stop, or the federation is done."""
    anyway = arguments[:1] == ["--anyway"]
    arguments = arguments[anyway:]
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    end_with_parent()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with Silo(arguments[0], anyway=anyway) as silo, Door(silo):
            while not stop.wait(0.5) and silo.running:
                pass
    except (UserError, Fault) as error:
        sys.stderr.write(f"silomix: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
