"""A module's source, its syntax tree, and changes of its text.

A mutant is an edit of the text that was found by looking at the tree, so that what survives can be shown as a
difference of lines.
"""

import ast
import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import dedent
from typing import TypeVar

N = TypeVar("N", bound=ast.AST)
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Edit:
    """Bytes of a source from `start` to `end`, and what is to stand there."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    module: str
    function: str
    """Its qualified name; empty for what a module does on import."""
    line: int
    kind: str
    edits: tuple[Edit, ...]
    lines: tuple[int, int]
    """The first and the last line of the statement, or of its head: who passes there may notice."""
    within: tuple[int, int]
    """The bytes of the function that is changed, or of the statement: what else stands in the module may change."""
    everywhere: bool = False
    """Whether its effect outlives the call: on import, or in a value that is cached. Any test may then notice it."""

    def of(self, source: bytes) -> bytes:
        """Return the mutated source."""
        for edit in sorted(self.edits, key=lambda edit: -edit.start):
            source = source[: edit.start] + edit.text.encode() + source[edit.end :]
        return source

    def difference(self, source: bytes) -> str:
        """Show the lines that go and those that come."""
        first = source.count(b"\n", 0, min(edit.start for edit in self.edits))
        spare = source.count(b"\n", max(edit.end for edit in self.edits))  # behind the last edit nothing changes
        before, after = (
            lines[first : len(lines) - spare]
            for lines in (text.decode().split("\n") for text in (source, self.of(source)))
        )
        changed = (line for line in difflib.unified_diff(before, after, n=0) if line[0] in "-+")
        lines = [line for line in changed if line.rstrip() not in ("---", "+++")]
        shown = dedent("\n".join(line[1:] for line in lines)).split("\n")
        return "\n".join(f"{line[0]} {text}".rstrip() for line, text in zip(lines, shown, strict=True))

    def key(self, source: bytes) -> str:
        """Name this very change of this very function."""
        first, last = self.within
        edits = [(edit.start - first, edit.end - first, edit.text) for edit in self.edits]
        return hashlib.sha256(repr((self.module, self.function, source[first:last], edits)).encode()).hexdigest()[:24]


class Source:
    """A module's text and tree, and where each node stands in the text."""

    def __init__(self, module: str, text: bytes) -> None:
        self.module, self.text = module, text
        self.tree = ast.parse(text)
        self._lines = [0]
        for line in text.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def part(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        return self.text[self.start(node) : self.end(node)].decode()

    def replaced(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        return Edit(self.start(node), self.end(node), text)

    def without(self, row: Sequence[ast.expr], index: int) -> Edit:
        """Take one of several things out that stand between commas."""
        if index + 1 < len(row):
            return Edit(self.start(row[index]), self.start(row[index + 1]), "")
        if index:
            return Edit(self.end(row[index - 1]), self.end(row[index]), "")
        return self.replaced(row[index], "")

    def shortened(self, row: ast.expr, index: int) -> Edit:
        """Take one thing out of a list or a tuple, which stays one."""
        assert isinstance(row, ast.List | ast.Tuple)
        if isinstance(row, ast.List) or len(row.elts) > 2:
            return self.without(row.elts, index)
        rest = [self.part(item) for i, item in enumerate(row.elts) if i != index]
        return self.replaced(row, f"({rest[0]},)" if rest else "()")

    def scopes(self, node: ast.AST) -> list[Scope]:
        """What a node stands in, from the outside in."""
        found: list[Scope] = []
        above = self.parents.get(node)
        while above is not None:
            if isinstance(above, Scope):
                found.insert(0, above)
            above = self.parents.get(above)
        return found

    def mutant(self, kind: str, node: ast.expr | ast.stmt, *edits: Edit) -> Mutant:
        scopes = self.scopes(node)
        functions = [scope for scope in scopes if not isinstance(scope, ast.ClassDef)]
        cached = any("cache" in ast.unparse(d) for function in functions for d in function.decorator_list)
        name = ".".join(scope.name for scope in scopes)
        within = self._span(functions[0] if functions else self._statement(node))
        return Mutant(self.module, name, node.lineno, kind, edits, self._head(node), within, cached or not functions)

    def _statement(self, node: ast.AST) -> ast.stmt:
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def _span(self, node: ast.stmt) -> tuple[int, int]:
        return min(self.start(part) for part in (node, *getattr(node, "decorator_list", ()))), self.end(node)

    def _head(self, node: ast.AST) -> tuple[int, int]:
        node = self._statement(node)
        last = node.end_lineno or node.lineno
        body = getattr(node, "body", None)
        return node.lineno, max(node.lineno, body[0].lineno - 1) if body else last

    def all(self, kind: type[N]) -> list[N]:
        """All nodes of a kind."""
        return [node for node in ast.walk(self.tree) if isinstance(node, kind)]


def name_of(node: ast.AST | None) -> str:
    """The last name of what a node stands for: `b` for `a.b`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def callee(node: ast.Call) -> str:
    """The name of what is called."""
    return name_of(node.func)


def appended_to(node: ast.Expr) -> ast.expr | None:
    """What a statement appends something to, if that is what it does."""
    call = node.value
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append" and call.args:
        return call.func.value
    return None


def targets_of(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    """What an assignment assigns to."""
    return node.targets if isinstance(node, ast.Assign) else [node.target]
