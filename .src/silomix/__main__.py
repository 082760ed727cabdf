"""`python -m silomix`: the command line, where the `silomix` script is not on the path."""

import sys

from silomix.runtime.cli import main

if __name__ == "__main__":
    sys.exit(main())
