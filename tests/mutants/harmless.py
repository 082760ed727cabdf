"""The mutants that are known to survive and do no harm: docs/mutants.md lists them, each with the reason."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.mutants.scope import ROOT
from tests.mutants.source import Mutant

PAGE = ROOT / "docs" / "mutants.md"


@dataclass(frozen=True)
class Harmless:
    """A change that no test can notice, or need notice, and why."""

    module: str
    function: str
    difference: str
    reason: str

    def is_(self, mutant: Mutant, source: bytes) -> bool:
        """Whether it is this mutant: by module, function and text, wherever the line has moved to."""
        where = (mutant.module, mutant.function) == (self.module, self.function)
        return where and mutant.difference(source) == self.difference


def read(text: str) -> Iterator[Harmless]:
    """Read the page: a heading with the module, one with the function, differences, and the reason behind them."""
    module = function = ""
    waiting: list[str] = []
    for block in re.split(r"\n{2,}", re.sub(r"(?m)^(#+ .*)$", r"\n\1\n", text)):
        if heading := re.fullmatch(r"\s*(##+) `(.*)`\s*", block):
            assert not waiting, f"no reason is given for\n{waiting[0]}"
            module, function = (heading[2], "") if heading[1] == "##" else (module, heading[2])
        elif block.strip().startswith("```diff"):
            waiting.append("\n".join(line.rstrip() for line in block.strip().splitlines()[1:-1]))
        elif block.strip() and not block.strip().startswith("#"):
            yield from (Harmless(module, function, difference, " ".join(block.split())) for difference in waiting)
            waiting = []
    assert not waiting, f"no reason is given for\n{waiting[0]}"
