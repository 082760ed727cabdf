"""Mutants of state machines: of their tables, and of the order in which facts and effects leave them."""

import ast
from collections.abc import Iterator

from tests.mutants.source import Edit, Mutant, Source, appended_to, callee, name_of, targets_of


def rows(source: Source) -> Iterator[Mutant]:
    """An event that is ignored where it is refused, or answered where it is ignored."""
    values = {
        name_of(target): node.value
        for node in source.tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in targets_of(node)
    }

    def answer(value: ast.expr) -> str:
        found = values.get(value.id, value) if isinstance(value, ast.Name) else value
        return callee(found) if isinstance(found, ast.Call) else name_of(found)

    table = values.get("TABLE")
    if not isinstance(table, ast.Dict):
        return
    states = [state for state in table.values if isinstance(state, ast.Dict)]
    imported = any(alias.name == "IGNORES" for node in source.all(ast.ImportFrom) for alias in node.names)
    prelude = "from silomix.runtime.core.protocol.machine import IGNORES; "
    statement = source.parents[table]
    assert isinstance(statement, ast.stmt)
    at = source.start(statement)
    for place, state in enumerate(states):
        nearest = sorted(range(len(states)), key=lambda other, place=place: abs(other - place))  # type: ignore[misc]
        for key, value in zip(state.keys, state.values, strict=True):
            if answer(value) == "refuses":
                edits = [source.replaced(value, "IGNORES")] + ([] if imported else [Edit(at, at, prelude)])
                yield source.mutant("row", value, *edits)
            if answer(value) == "IGNORES" and key is not None:
                others = (_row(states[other], ast.unparse(key)) for other in nearest)
                does = next((o for o in others if o is not None and answer(o) == "does"), None)
                if does is not None:
                    yield source.mutant("row", value, source.replaced(value, source.part(does)))


def _row(state: ast.Dict, key: str) -> ast.expr | None:
    return next(
        (v for k, v in zip(state.keys, state.values, strict=True) if k is not None and ast.unparse(k) == key), None
    )


def facts(source: Source) -> Iterator[Mutant]:
    """A fact that is not remembered, or only when its consequence is on its way."""
    for row in source.all(ast.List):
        for index, item in enumerate(row.elts):
            if isinstance(item, ast.Call) and callee(item) == "Remember":
                yield source.mutant("fact", item, source.shortened(row, index))
            after = row.elts[index + 1] if index + 1 < len(row.elts) else None
            if after is not None and _remembers(source, item) and not _remembers(source, after):
                swapped = source.replaced(item, source.part(after)), source.replaced(after, source.part(item))
                yield source.mutant("order", item, *swapped)
    for several in source.all(ast.ListComp):
        if isinstance(several.elt, ast.Call) and callee(several.elt) == "Remember":
            yield source.mutant("fact", several, source.replaced(several, "[]"))
    for node in source.all(ast.Expr):
        if appended_to(node) and isinstance(node.value, ast.Call) and _remembers(source, node.value.args[0]):
            yield source.mutant("fact", node, source.replaced(node, "pass"))
    for both in source.all(ast.BinOp):
        if isinstance(both.op, ast.Add) and isinstance(both.left, ast.Name) and _remembers(source, both.left):
            text = f"{source.part(both.right)} + {source.part(both.left)}"
            yield source.mutant("order", both, source.replaced(both, text))


def _remembers(source: Source, node: ast.expr) -> bool:
    """Whether an effect, or several, have a fact to remember."""
    if isinstance(node, ast.Starred):
        node = node.value
    if isinstance(node, ast.Name):
        around = source.scopes(node)
        assigned = (n for n in ast.walk(around[-1]) if isinstance(n, ast.Assign | ast.AnnAssign)) if around else ()
        values = [n.value for n in assigned if node.id in map(name_of, targets_of(n)) and n.value is not None]
    else:
        values = [node] if isinstance(node, ast.Call | ast.ListComp) else []
    return any(isinstance(n, ast.Call) and callee(n) == "Remember" for value in values for n in ast.walk(value))
