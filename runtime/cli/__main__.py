"""`python -m silomix.runtime.cli`: how nodes are started where the `silomix` script may not be on the path."""

import sys

from silomix.runtime.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
