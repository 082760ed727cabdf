"""What all tests share: where modules are found, and how hypothesis looks for counterexamples."""

import sys
from pathlib import Path

from hypothesis import settings

# Tests import each other as `tests.core.numbers.oracle`, however pytest was started.
sys.path.insert(0, str(Path(__file__).parents[1]))

# The same examples in every run, and no deadline: the first call of a kernel compiles it.
settings.register_profile("silomix", derandomize=True, deadline=None)
settings.load_profile("silomix")
