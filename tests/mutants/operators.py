"""Mutants of a module: the same source with one check dropped or weakened.

Each kind of mutant is one generator below, and `KINDS` lists them.
"""

import ast
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from tests.mutants.machines import facts, rows
from tests.mutants.source import Edit, Mutant, Source, appended_to, callee, name_of

N = TypeVar("N", bound=ast.AST)

CHECKS = re.compile(r"_*(verify|expect|check\w*)")
"""Names of functions that raise if something is wrong."""
DUTIES = {"execute", "forget", "fsync", "recall", "remember", "wipe"}
"""Names of functions that make something durable, or leave nothing behind: to skip them is to break a promise."""
HASHES = {"digest", "frame"}
"""Names of functions that bind their arguments together, if the first is a purpose."""
BENIGN = {"NotImplementedError", "AssertionError", "StopAsyncIteration"}
"""What is raised by code that is never reached, or by no fault."""
EDGES = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_LINK = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


def mutants(module: str, text: bytes) -> list[Mutant]:
    """All mutants of a module, in the order of its lines; no two are alike."""
    source = Source(module, text)
    found: dict[bytes, Mutant] = {}
    for make in KINDS:
        for mutant in make(source):
            found.setdefault(mutant.of(text), mutant)
    found.pop(text, None)
    return sorted(found.values(), key=lambda mutant: (mutant.line, mutant.edits[0].start, mutant.kind))


# Checks that are skipped


def raises(source: Source) -> Iterator[Mutant]:
    """A fault that is not raised."""
    for node in source.all(ast.Raise):
        name = callee(node.exc) if isinstance(node.exc, ast.Call) else name_of(node.exc)
        if name not in BENIGN and not name.startswith("_Stop"):
            yield source.mutant("raise", node, source.replaced(node, "pass"))


def calls(source: Source) -> Iterator[Mutant]:
    """A check, or a duty, that is not called."""
    for node in source.all(ast.Expr):
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if not isinstance(call, ast.Call):
            continue
        names = [callee(call), *(name_of(argument) for argument in call.args)]  # `work(self.remember, fact)`
        if CHECKS.fullmatch(names[0]) or DUTIES.intersection(names):
            yield source.mutant("call", node, source.replaced(node, "pass"))
    passing = _passing(source)
    for call in source.all(ast.Call):
        if isinstance(call.func, ast.Name) and call.func.id in passing:
            yield source.mutant("call", call, source.replaced(call, source.part(call.args[0])))


def _passing(source: Source) -> set[str]:
    """Functions that check their first argument and return it; by name also those that come from another module."""
    found = {"digest_field"}
    for function in source.all(ast.FunctionDef):
        last = function.body[-1]
        if (
            function.args.args
            and isinstance(last, ast.Return)
            and any(isinstance(n, ast.Raise) for n in ast.walk(function))
        ):
            first = function.args.args[0].arg
            if first != "self" and isinstance(last.value, ast.Name) and last.value.id == first:
                found.add(function.name)
    return found


def guards(source: Source) -> Iterator[Mutant]:
    """A condition for a refusal that never holds."""
    for node in source.all(ast.If):
        if _refuses(node) and (len(node.body) > 1 or node.orelse or not isinstance(node.body[0], ast.Raise)):
            yield source.mutant("guard", node.test, source.replaced(node.test, "False"))


def branches(source: Source) -> Iterator[Mutant]:
    """A choice that always falls the same way: in a check, or about TLS."""
    simple = [n for n in source.all(ast.If) if n.orelse and not isinstance(n.orelse[0], ast.If) and not _refuses(n)]
    for test in (*(node.test for node in simple), *(node.test for node in source.all(ast.IfExp))):
        if _judges(source, test) or any(name_of(node) == "tls" for node in ast.walk(test)):
            for fixed in ("True", "False"):
                yield source.mutant("branch", test, source.replaced(test, fixed))


# Conditions that are weakened


def operands(source: Source) -> Iterator[Mutant]:
    """One of several conditions that is left out."""
    for node in _conditions(source, ast.BoolOp):
        link = " or " if isinstance(node.op, ast.Or) else " and "
        for index in range(len(node.values)):
            rest = [_wrapped(source, value) for i, value in enumerate(node.values) if i != index]
            yield source.mutant("operand", node.values[index], source.replaced(node, link.join(rest)))
    for chain in _conditions(source, ast.Compare):
        if len(chain.ops) > 1:
            terms = [chain.left, *chain.comparators]
            links = [
                f"{_wrapped(source, a)} {_LINK[type(op)]} {_wrapped(source, b)}"
                for a, op, b in zip(terms, chain.ops, terms[1:], strict=False)
            ]
            for index in range(len(links)):
                rest = [link for i, link in enumerate(links) if i != index]
                yield source.mutant("operand", chain, source.replaced(chain, f"({' and '.join(rest)})"))


def edges(source: Source) -> Iterator[Mutant]:
    """A comparison that is off by one."""
    for node in _conditions(source, ast.Compare):
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            if type(op) in EDGES:
                between = Edit(source.end(left), source.start(right), f" {EDGES[type(op)]} ")
                if source.text[between.start : between.end].decode().strip() in _LINK.values():  # no parentheses
                    yield source.mutant("edge", node, between)
            left = right


def members(source: Source) -> Iterator[Mutant]:
    """One of several values that are compared at once, and is left out."""
    for node in _conditions(source, ast.Compare):
        right = node.comparators[0]
        if len(node.ops) > 1 or not isinstance(right, ast.Tuple):
            continue
        both = isinstance(node.left, ast.Tuple) and len(node.left.elts) == len(right.elts)
        for index in range(len(right.elts) if both or isinstance(node.ops[0], ast.In | ast.NotIn) else 0):
            edits = [source.shortened(side, index) for side in ([node.left, right] if both else [right])]
            yield source.mutant("member", node, *edits)


def filters(source: Source) -> Iterator[Mutant]:
    """A selection that selects everything."""
    for comprehension in (n for n in ast.walk(source.tree) if isinstance(n, ast.comprehension)):
        for condition in comprehension.ifs:
            yield source.mutant("filter", condition, source.replaced(condition, "True"))


def bounds(source: Source) -> Iterator[Mutant]:
    """One of several limits, of which the strictest counts, that is left out."""
    for node in source.all(ast.Call):
        limits = source.module.startswith("runtime/core/") or _judges(source, node)
        if limits and callee(node) in ("max", "min") and isinstance(node.func, ast.Name) and len(node.args) > 1:
            for index in range(len(node.args)):
                rest = [argument for i, argument in enumerate(node.args) if i != index]
                if len(rest) == 1 and not isinstance(rest[0], ast.Starred):
                    yield source.mutant("bound", node, source.replaced(node, _wrapped(source, rest[0])))
                else:
                    yield source.mutant("bound", node, source.without(node.args, index))


# What digests cover


def parts(source: Source) -> Iterator[Mutant]:
    """Something that a digest does not cover, or the purpose that it is not bound to."""
    for call in source.all(ast.Call):
        if callee(call) not in HASHES or not call.args or not isinstance(call.func, ast.Name):
            continue
        if not (isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)):
            continue
        yield source.mutant("part", call, source.replaced(call.args[0], '""'))
        for index in range(1, len(call.args)):
            yield source.mutant("part", call.args[index], source.without(call.args, index))
            argument = call.args[index]
            if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Name):
                yield from _collected(source, call, argument.value.id)


def _collected(source: Source, call: ast.Call, name: str) -> Iterator[Mutant]:
    """Leave out what was collected under a name for a digest."""
    for node in ast.walk(source.scopes(call)[-1]):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in map(name_of, targets) and isinstance(node.value, ast.List | ast.Tuple):
                row = node.value
                for index, item in enumerate(row.elts):
                    yield source.mutant("part", item, source.shortened(row, index))
        if isinstance(node, ast.Expr) and name_of(appended_to(node)) == name:
            yield source.mutant("part", node, source.replaced(node, "pass"))


# How connections are made


def options(source: Source) -> Iterator[Mutant]:
    """A setting of gRPC that is left at its default."""
    for row in source.all(ast.Tuple):
        for index, item in enumerate(row.elts):
            name = item.elts[0] if isinstance(item, ast.Tuple) and len(item.elts) == 2 else None
            if isinstance(name, ast.Constant) and str(name.value).startswith("grpc."):
                yield source.mutant("option", item, source.shortened(row, index))
    for call in source.all(ast.Call):
        for keyword in call.keywords:
            if str(keyword.arg).startswith("require") and ast.unparse(keyword.value) == "True":
                yield source.mutant("option", keyword.value, source.replaced(keyword.value, "False"))


KINDS: tuple[Callable[[Source], Iterator[Mutant]], ...] = (
    raises,
    calls,
    guards,
    operands,
    edges,
    members,
    filters,
    bounds,
    parts,
    rows,
    facts,
    options,
    branches,
)


# Looking at trees


def _judges(source: Source, node: ast.AST) -> bool:
    """Whether a node stands in a function that may refuse something."""
    around = source.scopes(node)
    return bool(around) and any(isinstance(inner, ast.Raise) for inner in ast.walk(around[-1]))


def _refuses(node: ast.If) -> bool:
    """Whether a condition leads to a refusal: a fault, a complaint, an attempt given up, or nothing that is done."""
    last = node.body[-1]
    if not isinstance(last, ast.Return):
        return isinstance(last, ast.Raise)
    value = last.value
    if isinstance(value, ast.Call):
        return callee(value) == "_give_up"
    empty = isinstance(value, ast.List) and not value.elts
    told = isinstance(value, ast.JoinedStr)  # what is wrong, for a person
    return value is None or empty or told or (isinstance(value, ast.Constant) and not value.value)


def _conditions(source: Source, kind: type[N]) -> list[N]:
    """Nodes of a kind in whatever decides about a refusal: there, in a name for it, in a predicate, in a filter."""
    roots: list[ast.expr] = [node.test for node in source.all(ast.If) if _refuses(node)]
    statements: list[ast.Assign | ast.AnnAssign | ast.Return] = [*source.all(ast.Assign), *source.all(ast.AnnAssign)]
    for node in (*statements, *source.all(ast.Return)):
        value = node.value
        while isinstance(value, ast.UnaryOp):
            value = value.operand
        if isinstance(value, ast.BoolOp | ast.Compare):
            roots.append(value)
    roots += [condition for node in source.all(ast.comprehension) for condition in node.ifs]
    found = {node: None for root in roots for node in ast.walk(root) if isinstance(node, kind)}
    return list(found)


def _wrapped(source: Source, node: ast.expr) -> str:
    text = source.part(node)
    return f"({text})" if isinstance(node, ast.BoolOp | ast.IfExp | ast.NamedExpr | ast.Lambda) else text
