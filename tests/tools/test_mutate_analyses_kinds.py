from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tools.analyses.kinds import KINDS, mutants, mutants_of, sample
from tools.analyses.source import MODULE, ROOT, TABLE, Source, files

FLOW = "ptxgen/check/flow.py"
BUDGET = "ptxgen/check/verify/budget.py"
TWO = (FLOW, BUDGET)


def made(text: str, kind: str = "") -> list[tuple[str, str]]:
    """The kinds of a text's mutants, and the line that each has instead."""
    result = mutants_of(Source("a.py", text))
    return [(m.kind, m.after) for m in result if kind in ("", m.kind)]


# --------------------------------------------------------------------------------------- operators


@pytest.mark.parametrize(
    ("kind", "line", "after"),
    [
        ("condition", "x = 1 if a else 2", ["x = 1 if not (a) else 2"]),
        ("condition", "x = 1 if not a else 2", ["x = 1 if a else 2"]),
        ("condition", "x = [n for n in a if n]", ["x = [n for n in a if not (n)]"]),
        ("guard", "x = [n for n in a if n]", ["x = [n for n in a if True]"]),
        ("not", "x = not a", ["x = (a)"]),
        ("operand", "x = a and b", ["x = True and b", "x = a and True"]),
        ("operand", "x = a or b", ["x = False or b", "x = a or False"]),
        ("connective", "x = a and b", ["x = a or b"]),
        ("connective", "x = a or b or c", ["x = a and b or c", "x = a or b and c"]),
        ("comparison", "x = a < b", ["x = a <= b"]),
        ("comparison", "x = a <= b < c", ["x = a < b < c", "x = a <= b <= c"]),
        ("comparison", "x = a > b", ["x = a >= b"]),
        ("comparison", "x = a == b", ["x = a != b"]),
        ("comparison", "x = a in b", ["x = a not in b"]),
        ("comparison", "x = a not in b", ["x = a in b"]),
        ("comparison", "x = a is None", ["x = a is not None"]),
        ("comparison", "x = a is not None", ["x = a is None"]),
        ("arithmetic", "x = a + b - c", ["x = a + b + c", "x = a - b - c"]),
        ("arithmetic", "x = a * b", ["x = a + b"]),
        ("arithmetic", "x = a // b", ["x = a * b"]),
        ("arithmetic", "x = a << b", ["x = a >> b"]),
        ("arithmetic", "x += a", ["x -= a"]),
        ("set", "x = [a & b]", ["x = [a | b]"]),
        ("set", "x |= a", ["x &= a"]),
        ("constant", "x = 8", ["x = 9", "x = 7"]),
        ("constant", "x = 0", ["x = 1"]),
        ("constant", "x = 257", []),
        ("flag", "x = f(a, b=True)", ["x = f(a, b=False)"]),
        ("reduction", "x = any(a)", ["x = all(a)"]),
        ("reduction", "x = np.all(a)", ["x = np.any(a)"]),
        ("reduction", "x = a.min()", ["x = a.max()"]),
        ("reduction", "x = np.maximum(a, b)", ["x = np.minimum(a, b)"]),
        ("element", "x = {a, b}", ["x = {b}", "x = {a}"]),
        ("element", "x = {'a': b, 'c': d}", ["x = {'c': d}", "x = {'a': b}"]),
        ("element", "x = (a, b)", ["x = (b,)", "x = (a,)"]),
        ("element", "x = f(a in (b, c))", ["x = f(a in (c,))", "x = f(a in (b,))"]),
    ],
)
def test_an_operator_makes_these_lines(kind: str, line: str, after: list[str]) -> None:
    assert made(line, kind) == [(kind, text) for text in after]


@pytest.mark.parametrize(
    ("kind", "statement", "after"),
    [
        ("statement", "a.append(b)", ["pass"]),
        ("statement", "a[b] = c", ["pass"]),
        ("statement", "a.b = c", ["pass"]),
        ("statement", "a += b", ["pass"]),
        ("statement", "a = b", []),
        ("statement", "raise ValueError", ["pass"]),
        ("statement", "return", ["pass"]),
        ("statement", "yield a", ["yield from ()"]),
        ("return", "return True", ["return False"]),
        ("return", "return a", ["return not (a)"]),
        ("return", "return a == b", []),
    ],
)
def test_an_operator_makes_these_statements(kind: str, statement: str, after: list[str]) -> None:
    text = f"def f(a, b, c) -> bool:\n    {statement}\n"
    assert made(text, kind) == [(kind, line) for line in after]


def test_a_value_that_may_be_none_is_none() -> None:
    text = "def f(a) -> int | None:\n    return a\n"
    assert made(text, "return") == [("return", "return None")]


def test_what_an_if_guards_is_done_never_or_always() -> None:
    assert made("if a:\n    f()\n", "guard") == [("guard", "if False:"), ("guard", "if True:")]


def test_a_choice_is_no_guard() -> None:
    assert made("if a:\n    f()\nelse:\n    g()\n", "guard") == []


def test_jumps_are_swapped_and_dropped() -> None:
    text = "for a in b:\n    if a:\n        continue\n    break\n"
    assert made(text, "jump") == [("jump", "break"), ("jump", "pass"), ("jump", "continue"), ("jump", "pass")]


@pytest.mark.parametrize(
    "text",
    [
        *('"""1 < 2"""', "assert a < 1, f(2)", "x = f'{a + 1}'", "x: Literal[1] = a", "Some = A | B | C"),
        *("x = isinstance(a, A | B)", "def f(a: Literal[1]) -> Literal[2]:\n    return a"),
        *("@f(1)\nclass A:\n    x: int", "class A:\n    def __repr__(self):\n        return str(1 + 2)"),
        *("if TYPE_CHECKING:\n    x = 1", "__slots__ = ('a', 'b')", "x = 'a' if b else 'c'", "import a"),
    ],
)
def test_words_types_and_assertions_are_left_alone(text: str) -> None:
    assert made(text) == []


def test_the_text_of_an_error_is_left_alone() -> None:
    assert made("raise ValueError(1 + 2)") == [("statement", "pass")]


def test_defaults_belong_to_what_runs_at_import() -> None:
    (one, _) = mutants_of(Source("a.py", "def f(a=1):\n    pass\n"))
    assert (one.function, one.block) == (MODULE, 0)


def test_offsets_are_bytes() -> None:
    assert made("x = {'²': a < b}", "comparison") == [("comparison", "x = {'²': a <= b}")]


def test_mutants_of_the_same_line_are_numbered() -> None:
    result = mutants_of(Source("a.py", "def f():\n    g()\n    g()\n"))
    assert [(m.after, m.nth) for m in result] == [("pass", 0), ("pass", 1)]


@pytest.mark.slow
def test_every_kind_occurs() -> None:
    assert set(Counter(m.kind for m in sample(files()[:30], 3000, 0))) == set(KINDS)


# ------------------------------------------------------------------------------------------ sample


def test_a_larger_sample_has_the_smaller_one() -> None:
    assert set(sample(TWO, 10, 1)) <= set(sample(TWO, 20, 1))


def test_the_seed_alone_decides() -> None:
    assert sample(TWO, 10, 1) == sample(TWO, 10, 1) != sample(TWO, 10, 2)


def test_a_sample_takes_as_many_of_each_file() -> None:
    assert Counter(m.file for m in sample(TWO, 10, 1)) == {FLOW: 5, BUDGET: 5}


def test_a_sample_takes_one_of_each_function_first() -> None:
    functions = {m.function for m in mutants(FLOW)}
    assert {m.function for m in sample([FLOW], len(functions), 1)} == functions


def test_a_sample_has_the_kinds_that_are_asked_for() -> None:
    assert {m.kind for m in sample(files()[:9], 20, 1, ["jump"])} == {"jump"}


def test_the_instruction_table_is_changed_where_it_says_what_tensor_memory_holds() -> None:
    imports = re.compile(r"from ptxgen\.isa\.(tcgen05\w*|tensor_agent|tensor_memory|mma_descriptor) import")
    used = {name for file in files() for name in imports.findall((ROOT / file).read_text())}
    assert used == {Path(file).stem for file in TABLE} - {"narrow_matrix", "tcgen05"}  # which have rows
    assert set(TABLE) <= set(files())


@pytest.mark.parametrize("file", TWO)
def test_mutants_can_be_compiled(file: str) -> None:
    for mutant in mutants(file):
        compile(mutant.source, file, "exec")
