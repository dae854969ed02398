"""Wrong versions of the analysers, each with one small mistake that a test must notice.

`mutants` is a pure function of the source: the same text has the same mutants in the same order.
Error text, annotations, `assert` and `__repr__` are left alone.
"""

from __future__ import annotations

import ast
import functools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from tools.analyses.source import MODULE, Mutant, Source, lines_of, source_of

_T = TypeVar("_T")
_MOST: Final = 256  # constants beyond are limits of effort, and one more or less of them is nothing


class Change(NamedTuple):
    """The bytes from `start` to `end` become `text`; `what` describes the change in words."""

    what: str
    start: int
    end: int
    text: str


class Site(NamedTuple):
    """A node, its parents, and the function that they are in (None outside of functions)."""

    source: Source
    node: ast.AST
    parent: ast.AST
    function: ast.FunctionDef | ast.AsyncFunctionDef | None

    def instead(self, what: str, text: str, node: ast.AST | None = None) -> Change:
        """A change that replaces the whole node, or the node `node`, by `text`."""
        return Change(what, *self.source.span(node or self.node), text)

    def between(self, left: ast.AST, right: ast.AST, old: str, new: str) -> Iterator[Change]:
        """The change of the operator `old` between two operands to `new`."""
        start, end = self.source.span(left)[1], self.source.span(right)[0]
        gap = self.source.data[start:end].decode()
        match = re.search(r"\s+".join(map(re.escape, old.split())), gap)
        if match is not None:
            at = start + len(gap[: match.start()].encode())
            yield Change(f"{old} to {new}", at, at + len(match[0].encode()), new)


# --------------------------------------------------------------------------------------- conditions


def _tests(node: ast.AST) -> Iterator[ast.expr]:
    """The conditions of a statement, a conditional expression or a comprehension; not those that choose
    between strings.
    """
    if isinstance(node, ast.If | ast.While) or (
        isinstance(node, ast.IfExp) and not (_is_text(node.body) and _is_text(node.orelse))
    ):
        yield node.test
    elif isinstance(node, ast.comprehension):
        yield from node.ifs


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_not(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _is_constant(node: ast.AST, *values: object) -> bool:
    return isinstance(node, ast.Constant) and any(node.value is value for value in values)


def _conditions(site: Site) -> Iterator[Change]:
    for test in _tests(site.node):
        if isinstance(test, ast.UnaryOp) and _is_not(test):
            yield site.instead("not dropped", site.source.segment(test.operand), test)
        elif not isinstance(test, ast.Constant):
            yield site.instead("negated", f"not ({site.source.segment(test)})", test)


def _nots(site: Site) -> Iterator[Change]:
    node = site.node
    is_test = any(test is node for test in _tests(site.parent))
    if isinstance(node, ast.UnaryOp) and _is_not(node) and not is_test:
        yield site.instead("not dropped", f"({site.source.segment(node.operand)})")


def _guards(site: Site) -> Iterator[Change]:
    node = site.node
    if isinstance(node, ast.If) and not node.orelse:
        yield site.instead("never", "False", node.test)
        yield site.instead("always", "True", node.test)
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield site.instead("always", "True", test)


def _operands(site: Site) -> Iterator[Change]:
    node = site.node
    if isinstance(node, ast.BoolOp):
        neutral = str(isinstance(node.op, ast.And))
        for value in node.values:
            yield site.instead("an operand dropped", neutral, value)


def _connectives(site: Site) -> Iterator[Change]:
    node = site.node
    if isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from site.between(left, right, old, new)


_COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}


def _comparisons(site: Site) -> Iterator[Change]:
    node = site.node
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for left, right, op in zip(operands, operands[1:], node.ops, strict=False):
            yield from site.between(left, right, *_COMPARISONS[type(op)])


# --------------------------------------------------------------------------------------- arithmetic

_ARITHMETIC: Final[dict[type[ast.operator], tuple[str, str]]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_SETS: Final[dict[type[ast.operator], tuple[str, str]]] = {
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "|"),
}


def _arithmetic(site: Site) -> Iterator[Change]:
    yield from _swapped(site, _ARITHMETIC)


def _sets(site: Site) -> Iterator[Change]:
    if not _is_type(site):
        yield from _swapped(site, _SETS)


def _is_type(site: Site) -> bool:
    """Whether `A | B` may be a type: of `isinstance`, or an alias."""
    parent = site.parent
    if isinstance(parent, ast.Call):
        return ast.unparse(parent.func) in ("isinstance", "issubclass")
    return isinstance(parent, ast.Assign | ast.BinOp) and site.function is None


def _swapped(site: Site, table: dict[type[ast.operator], tuple[str, str]]) -> Iterator[Change]:
    node = site.node
    if isinstance(node, ast.BinOp) and type(node.op) in table:
        if not any(_is_text(o) or isinstance(o, ast.Tuple | ast.List) for o in _sides(node)):
            yield from site.between(node.left, node.right, *table[type(node.op)])
    elif isinstance(node, ast.AugAssign) and type(node.op) in table:
        old, new = table[type(node.op)]
        if not _is_text(node.value):
            yield from site.between(node.target, node.value, f"{old}=", f"{new}=")


def _sides(node: ast.BinOp) -> tuple[ast.expr, ast.expr]:
    return node.left, node.right


def _constants(site: Site) -> Iterator[Change]:
    node = site.node
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value <= _MOST:
        yield site.instead("+1", str(node.value + 1))
        if node.value:
            yield site.instead("-1", str(node.value - 1))


def _flags(site: Site) -> Iterator[Change]:
    node = site.node
    if _is_constant(node, True, False) and not isinstance(site.parent, ast.Return | ast.While | ast.If):
        yield site.instead("flipped", str(_is_constant(node, False)))


_REDUCTIONS: Final = {
    "any": "all",
    "all": "any",
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
}


def _reductions(site: Site) -> Iterator[Change]:
    node, parent = site.node, site.parent
    if not isinstance(parent, ast.Call) or parent.func is not node:
        return
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    if name in _REDUCTIONS:
        end = site.source.span(node)[1]
        other = _REDUCTIONS[name]
        yield Change(f"{name} to {other}", end - len(name), end, other)


# --------------------------------------------------------------------------------------- statements


def _returns(site: Site) -> Iterator[Change]:
    node, function = site.node, site.function
    if not isinstance(node, ast.Return) or node.value is None or function is None:
        return
    value = node.value
    annotation = "" if function.returns is None else ast.unparse(function.returns)
    if _is_constant(value, True, False):
        yield site.instead("flipped", str(_is_constant(value, False)), value)
    elif annotation == "bool" and not isinstance(value, ast.Compare | ast.UnaryOp):
        yield site.instead("negated", f"not ({site.source.segment(value)})", value)
    elif "None" in annotation and not _is_constant(value, None):
        yield site.instead("nothing", "None", value)


def _statements(site: Site) -> Iterator[Change]:
    node = site.node
    if isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Call):
            yield site.instead("dropped", "pass")
        elif isinstance(node.value, ast.Yield | ast.YieldFrom):
            yield site.instead("dropped", "yield from ()")
    elif (
        isinstance(node, ast.AugAssign | ast.Raise)
        or _is_update(site)
        or (isinstance(node, ast.Return) and node.value is None)
    ):
        yield site.instead("dropped", "pass")


def _is_update(site: Site) -> bool:
    """Whether a statement assigns to an element, or to an attribute of an object outside of its
    construction.
    """
    node, function = site.node, site.function
    if not isinstance(node, ast.Assign) or function is None:
        return False
    updates = function.name != "__init__"
    return any(
        isinstance(t, ast.Subscript) or (updates and isinstance(t, ast.Attribute)) for t in node.targets
    )


def _jumps(site: Site) -> Iterator[Change]:
    if isinstance(site.node, ast.Continue):
        yield site.instead("continue to break", "break")
        yield site.instead("dropped", "pass")
    elif isinstance(site.node, ast.Break):
        yield site.instead("break to continue", "continue")
        yield site.instead("dropped", "pass")


# ---------------------------------------------------------------------------------------- elements


def _elements(site: Site) -> Iterator[Change]:
    """Changes that remove one element of a set, a list or a dict; of a tuple, if it is a table or is
    searched.
    """
    node = site.node
    if isinstance(node, ast.Dict):
        for n, key in enumerate(node.keys):
            if key is not None and len(node.keys) > 1:
                rest = ast.Dict(_without(node.keys, n), _without(node.values, n))
                yield site.instead(f"without {ast.unparse(key)}", ast.unparse(rest))
    elif isinstance(node, ast.Set | ast.List) or _is_table(site):
        assert isinstance(node, ast.Set | ast.List | ast.Tuple)
        for n, element in enumerate(node.elts):
            if len(node.elts) > 1 and not isinstance(element, ast.Starred):
                left = _without(node.elts, n)
                rest_of: ast.expr = (
                    ast.Set(left) if isinstance(node, ast.Set) else type(node)(left, ast.Load())
                )
                yield site.instead(f"without {ast.unparse(element)}", ast.unparse(rest_of))


def _without(values: Sequence[_T], n: int) -> list[_T]:
    return [value for index, value in enumerate(values) if index != n]


def _is_table(site: Site) -> bool:
    node, parent = site.node, site.parent
    if not isinstance(node, ast.Tuple) or not isinstance(node.ctx, ast.Load):
        return False
    if isinstance(parent, ast.Compare):
        return isinstance(parent.ops[0], ast.In | ast.NotIn) and parent.comparators[0] is node
    if isinstance(parent, ast.Call):
        return ast.unparse(parent.func) in ("isinstance", "frozenset", "set")
    return site.function is None and isinstance(parent, ast.Assign | ast.AnnAssign)


# -------------------------------------------------------------------------------------- all of them


class _Operator(NamedTuple):
    meaning: str
    changes: Callable[[Site], Iterator[Change]]


_OPERATORS: Final[dict[str, _Operator]] = {
    "condition": _Operator("a condition is negated", _conditions),
    "guard": _Operator("what an `if` guards is done always, or never", _guards),
    "not": _Operator("a `not` is dropped", _nots),
    "operand": _Operator("an operand of `and` or `or` is dropped", _operands),
    "connective": _Operator("`and` is `or`, or the other way round", _connectives),
    "comparison": _Operator("a comparison takes in its limit, or not, or is turned", _comparisons),
    "arithmetic": _Operator("another operation of arithmetic", _arithmetic),
    "set": _Operator("an intersection is a union, or the other way round", _sets),
    "constant": _Operator("a small whole number is off by one", _constants),
    "flag": _Operator("True is False, or the other way round", _flags),
    "reduction": _Operator("any is all, min is max, or the other way round", _reductions),
    "return": _Operator("another answer: negated, or None", _returns),
    "statement": _Operator("a call, an update, a raise, a yield is dropped", _statements),
    "jump": _Operator("a continue or break is dropped or swapped", _jumps),
    "element": _Operator("a set, list, dict or table has one element less", _elements),
}
KINDS: Final[dict[str, str]] = {kind: o.meaning for kind, o in _OPERATORS.items()}


@functools.cache
def mutants(file: str) -> tuple[Mutant, ...]:
    """All mutants of a file, in the order of its syntax tree."""
    return tuple(mutants_of(source_of(file)))


def mutants_of(source: Source) -> Iterator[Mutant]:
    """All mutants of a source text."""
    seen = Counter[tuple[str, ...]]()
    for site, function, block in _sites(source):
        for kind, operator in _OPERATORS.items():
            for what, start, end, text in operator.changes(site):
                before, after = lines_of(source, start, end, text)
                mutant = Mutant(
                    source.file,
                    function,
                    kind,
                    what,
                    source.line_at(start),
                    before,
                    after,
                    block,
                    start,
                    end,
                    text,
                )
                yield replace(mutant, nth=seen[mutant.key])
                seen[mutant.key] += 1


_WORDS_ONLY: Final = ("__repr__", "__str__")
_NamedSite = tuple[Site, str, int]


def _sites(source: Source) -> Iterator[_NamedSite]:
    """Each node that may be changed, with the name of its function and its block."""
    for statement in source.tree.body:
        yield from _walk(Site(source, statement, source.tree, None), "", 0)


def _walk(site: Site, name: str, block: int) -> Iterator[_NamedSite]:
    node = site.node
    if _left_alone(site):
        return
    block = site.source.block_of.get(id(node), block)
    inner, function = name, site.function
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        if function is None:
            inner = f"{name}.{node.name}" if name else node.name
        if not isinstance(node, ast.ClassDef):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    yield from _walk(Site(site.source, default, node, function), name, block)
            function = node
    else:
        yield site, (name if function is not None else MODULE), block
    for child in _children(node):
        yield from _walk(Site(site.source, child, node, function), inner, block)


def _left_alone(site: Site) -> bool:
    node = site.node
    if isinstance(node, ast.FunctionDef):
        return node.name in _WORDS_ONLY
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id.startswith("__") for t in node.targets)
    return isinstance(node, ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom)


def _children(node: ast.AST) -> Iterable[ast.AST]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.body
    if isinstance(node, ast.Raise):  # error text
        return ()
    if isinstance(node, ast.AnnAssign):
        return () if node.value is None else (node.value,)
    return ast.iter_child_nodes(node)


# -------------------------------------------------------------------------------------- a sample


def sample(files: Sequence[str], count: int, seed: int, kinds: Sequence[str] = tuple(KINDS)) -> list[Mutant]:
    """`count` mutants, taken from all files and functions as evenly as possible, in the order of the source.

    A larger sample of the same seed has all those of a smaller one.
    """
    queues = [_shuffled(file, seed, kinds) for file in files]
    chosen: list[Mutant] = []
    while len(chosen) < count and any(queues):
        chosen += [queue.pop(0) for queue in queues if queue]
    order = {file: n for n, file in enumerate(files)}
    return sorted(chosen[:count], key=lambda m: (order[m.file], m.line, m.start, m.kind, m.what))


def _shuffled(file: str, seed: int, kinds: Sequence[str]) -> list[Mutant]:
    """The mutants of a file: one of each function, then a second one of each, and so on; other kinds come
    first.
    """
    choice = random.Random(f"{seed} {file}")
    functions: dict[str, list[Mutant]] = {}
    for mutant in mutants(file):
        if mutant.kind in kinds:
            functions.setdefault(mutant.function, []).append(mutant)
    rows = [_by_kind_in_rounds(of_function, choice) for of_function in functions.values()]
    choice.shuffle(rows)
    longest = max(map(len, rows), default=0)
    return [row[n] for n in range(longest) for row in rows if n < len(row)]


def _by_kind_in_rounds(of_function: Sequence[Mutant], choice: random.Random) -> list[Mutant]:
    kinds: dict[str, list[Mutant]] = {}
    for mutant in choice.sample(of_function, len(of_function)):
        kinds.setdefault(mutant.kind, []).append(mutant)
    longest = max(map(len, kinds.values()))
    return [row[n] for n in range(longest) for row in kinds.values() if n < len(row)]
