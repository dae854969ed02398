"""The judges of the shipped kernels, and the reasons why some of their mutants are equivalent.

A reason is stored next to the code that it is about, in the `equivalent.toml` of its folder
(`ptxgen/mutation/reasons.py`), or next to the family whose code alone it is about (`flash/families/`).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

import flash
from ptxgen.mutation.argument import Reason
from ptxgen.mutation.judge import Judge, Verdict
from ptxgen.mutation.operators import Mutant
from ptxgen.mutation.reasons import load
from tools.campaign.kernels import subjects

FILES: Final = tuple(sorted(Path(flash.__file__).parent.glob("*/equivalent.toml")))


@functools.cache
def reasons() -> tuple[Reason, ...]:
    """The reasons why mutants of all kernels are equivalent, file by file."""
    return tuple(r for file in FILES for r in load(file.read_text(encoding="utf-8")))


@functools.lru_cache(maxsize=2)
def judge_of(kernel: str) -> Judge:
    """The judge of a kernel of the campaign, by the kernel's name."""
    return Judge(subjects()[kernel], reasons())


def mutants_of(kernel: str) -> list[Mutant]:
    """All mutants of a kernel of the campaign."""
    return judge_of(kernel).mutants


def judge(kernel: str, number: int) -> Verdict:
    """The verdict on the mutant of a kernel with index `number`."""
    return judge_of(kernel).verdict(number)
