"""The reasons why mutants are equivalent, which stand beside the code that they are about."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ptxgen.mutation.operators import Mutant, mutants
from ptxgen.mutation.reasons import load, reason
from ptxgen.parse import parse
from tools.campaign.judging import FILES, mutants_of, reasons
from tools.campaign.kernels import subjects

TENSOR_CORES = "f16-sm_80"
FOUR_WARPS = "bf16-sm_80-causal-stages"
FEATURES = "f16-sm_80-features"
HOPPER = "f16-sm_90a"

REASON = """
[[reason]]
why = "so"
marks = ["a", "b"]
steps = ["first", "last"]
changes = [["mask", "dropped", "@%p"], ["bound", "+1", ""]]
loop = 2
"""


def mutant_of(original: Mutant, **changes: object) -> Mutant:
    fields = {n: getattr(original, n) for n in original.__slots__} | changes
    return Mutant(**fields)


@pytest.mark.slow
def test_every_reason_is_about_a_mutant_of_a_shipped_kernel() -> None:
    by_mark: dict[str, list[Mutant]] = {}
    for kernel in subjects():
        for mutant in mutants_of(kernel):
            by_mark.setdefault(mutant.mark, []).append(mutant)
    stale = [r for r in reasons() if not any(map(r.fits, by_mark.get(r.mark, ())))]
    assert stale == []


def marks(file: Path) -> set[str]:
    """The marks of the reasons in a file."""
    return {r.mark for r in load(file.read_text(encoding="utf-8"))}


def marks_of_code(folder: Path) -> Counter[str]:
    """The marks of the code in a folder, and how many of its files have functions with each."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))]
    return Counter(mark for source in sources for mark in set(re.findall(r'@marked\("(.+)"\)', source)))


def test_reasons_are_about_the_marks_of_their_folder_or_of_one_family() -> None:
    of_code = {file.parent: marks_of_code(file.parent) for file in FILES}
    every = sum(of_code.values(), Counter[str]())
    assert set(every.values()) == {1}  # a mark is of functions in one file
    # A mark without reasons keeps those of the function around it away.
    assert set(every) >= set().union(*map(marks, FILES))
    beside = [
        file for file in FILES if file.parent.name != "families"
    ]  # these are of kernels by their entries
    assert {file.parent.name: marks(file) - set(of_code[file.parent]) for file in beside} == {
        file.parent.name: set() for file in beside
    }


def test_a_table_is_a_reason_for_each_mark_step_and_change() -> None:
    result = [(r.mark, r.step, r.kind, r.change, r.before) for r in load(REASON)]
    assert result == [
        (mark, step, *change)
        for mark in "ab"
        for step in ("first", "last")
        for change in (("mask", "dropped", "@%p"), ("bound", "+1", ""))
    ]
    assert {(r.why, r.loop, r.entry, r.rounds) for r in load(REASON)} == {("so", 2, "", False)}
    (anywhere, _) = load(REASON.replace("steps", "#").replace('"a", ', ""))
    assert anywhere.step == ""


KEYS = (
    "reason 1: needs a sentence `why`, a list `changes` and either a list `lines` or a list `marks`, and may "
    "have a list `steps`, patterns `entry` and `behind`, a number `loop` and `rounds = true`; "
)
CHANGE = "reason 1: a change is a kind of mistake, what it changes and a pattern of the instruction, got "


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('why = "so"', "", f"{KEYS}'why' is None"),
        ('["a", "b"]', '"a"', f"{KEYS}'marks' is 'a'"),
        ('marks = ["a", "b"]', "", f"{KEYS}'lines' is None"),
        ('marks = ["a", "b"]', 'lines = "x"', f"{KEYS}'lines' is 'x'"),
        ("loop = 2", 'lines = ["x"]', f"{KEYS}'lines' is ['x']"),
        ("loop = 2", 'loop = "2"', f"{KEYS}'loop' is '2'"),
        ("loop = 2", "behind = 2", f"{KEYS}'behind' is 2"),
        ("loop", "lop", f"{KEYS}'lop' is 2"),
        ('["bound", "+1", ""]', '["bound", "+1"]', f"{CHANGE}['bound', '+1']"),
        ('["bound", "+1", ""]', '["bound", 1, ""]', f"{CHANGE}['bound', 1, '']"),
        ("bound", "bond", f"{CHANGE}['bond', '+1', '']"),
    ],
)
def test_what_is_no_reason_is_refused(old: str, new: str, problem: str) -> None:
    assert old in REASON
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the whole text is compared
        list(load(REASON.replace(old, new)))
    assert str(refused.value) == problem


def test_a_reason_holds_for_its_own_code_alone() -> None:
    known = next(r for r in reasons() if r.mark == "lazy softmax: take" and r.kind == "mask")
    fitting = next(m for m in mutants_of(FEATURES) if known.fits(m))
    assert known.fits(mutant_of(fitting, where="renamed.py:1, in renamed"))
    assert not known.fits(mutant_of(fitting, mark="another"))
    assert not known.fits(mutant_of(fitting, step="another"))
    assert not known.fits(mutant_of(fitting, before="mov.u32 %r0, 1;"))
    assert not known.fits(mutant_of(fitting, kind="bound"))
    assert not known.fits(mutant_of(fitting, name="mask: inverted @3"))


def test_a_reason_about_one_loop_is_about_no_other() -> None:
    known = next(r for r in reasons() if r.kind == "loop-bound" and r.loop == 1)
    branches = [
        m
        for kernel in (TENSOR_CORES, FOUR_WARPS)
        for m in mutants_of(kernel)
        if m.name.startswith("loop-bound: never taken") and m.mark == known.mark and "bra $loop" in m.before
    ]
    assert [known.fits(m) for m in branches] == [True, False, False, False]


def test_a_reason_may_be_about_what_is_behind_an_instruction() -> None:
    known = next(r for r in reasons() if r.kind == "fence" and r.behind and r.mark == "wgmma: next tile")
    fences = [m for m in mutants_of(HOPPER) if replace(known, behind="").fits(m)]
    assert [known.fits(m) for m in fences] == [False, True]  # of the scores, and of the values
    assert not known.fits(mutant_of(fences[1], index=0))  # behind nothing


@pytest.mark.parametrize(
    ("reading", "why"),
    [
        ("mov.u32 %r2, %r1;", "proved: no instruction that does more than compute depends on the value"),
        ("@%p1 st.shared.u32 [%r3], %r1;", None),
        ("setp.ne.u32 %p1, %r1, 0;", None),  # of the store before it, in a loop
    ],
)
def test_a_value_that_nothing_reads_may_be_any(reading: str, why: str | None) -> None:
    module = parse(
        ".version 8.0\n.target sm_80\n.address_size 64\n.shared .b8 s[4];\n.visible .entry k()\n{\n"
        ".reg .pred %p<3>;\n.reg .b32 %r<4>;\nmov.u32 %r0, %clock;\nmov.u32 %r1, 0;\nmov.u32 %r2, 0;\n"
        "mov.u32 %r3, s;\nsetp.eq.u32 %p1, %r0, 0;\n$again:\n@%p1 st.shared.u32 [%r3], %r0;\n"
        f"setp.eq.u32 %p0, %r0, 3;\nselp.u32 %r1, 1, %r1, %p0;\n{reading}\n@%p1 bra $again;\nret;\n}}\n"
    )
    mutant = next(m for m in mutants(module, "k") if m.name.startswith("bound: +1") and ", 3;" in m.before)
    assert reason(mutant, 32, []) == why


def test_a_reason_about_rounding_is_for_other_bits_too() -> None:
    block = subjects()[FEATURES].block
    rounds = next(r for r in reasons() if r.rounds and any(map(r.fits, mutants_of(FEATURES))))
    mutant = next(m for m in mutants_of(FEATURES) if rounds.fits(m))
    assert reason(mutant, block, reasons(), same=False) == rounds.why
    same = next(r for r in reasons() if not r.rounds and any(map(r.fits, mutants_of(FEATURES))))
    mutant = next(m for m in mutants_of(FEATURES) if same.fits(m))
    assert reason(mutant, block, reasons(), same=True) == same.why
    assert reason(mutant, block, reasons(), same=False) is None
