"""`SUITES`: public tests that ask for a GPU, and the explained failures of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tools.public.drawn import LONG, PASSED, REFUSED, SKIPPED

RIGHT: Final = "right"
OURS: Final = "ours wrong"
THEIRS: Final = "theirs wrong"
VERSION: Final = "other version"
NOT_SUPPORTED: Final = "not supported"
UNEXPLAINED: Final = "unexplained"
COUNTED: Final = {
    RIGHT: "the test passes, and nothing is found",
    OURS: "a fault of the interpreter, or of the PyTorch that says it has a GPU",
    THEIRS: "a fault of the project or of its compiler, which was read in the source",
    VERSION: "the tests are of another version than the installed package, which behaves as it documents",
    NOT_SUPPORTED: "refused by name, or more than the interpreter can run in the time",
    UNEXPLAINED: "fails, and nobody has said why",
}


@dataclass(frozen=True)
class Explained:
    """Failures of one kind: patterns of the test's name and of the error, what it counts as, and why."""

    test: str
    error: str
    kind: str
    reason: str


@dataclass(frozen=True)
class Suite:
    """Tests of a project: the folder `root` of its checkout `checkout`, in which pytest runs `files`, the
    commit with which they were tried, and what further folders of the checkout Python must see.
    """

    name: str
    checkout: str
    root: str
    files: tuple[str, ...]
    version: str
    path: tuple[str, ...] = ()
    explained: tuple[Explained, ...] = ()

    def kind(self, test: str, verdict: str, why: str) -> str:
        """What a test counts as, one of `COUNTED`; "" if it skipped itself."""
        if verdict in (PASSED, SKIPPED):
            return RIGHT if verdict == PASSED else ""
        for known in self.explained:
            if re.search(known.test, test) and re.search(known.error, why):
                return known.kind
        return NOT_SUPPORTED if verdict in (REFUSED, LONG) else UNEXPLAINED


_CAT: Final = (
    "Triton 3.9's tl.cat(can_reorder=True) may reorder, as it says; the tests are of the commit after"
)
TRITON: Final = Suite(
    "Triton, test_core.py",
    "triton",
    "python",
    ("test/unit/language/test_core.py",),
    "f4fca2c, 2026-08-22",
    explained=(
        Explained(r"test_cat\[True-", "not equal", VERSION, _CAT),
        Explained(
            r"test_scan2d\[cum(sum|prod)-bfloat16",
            "Not equal",
            VERSION,
            "Triton 3.9 sums bf16 in bf16 (`_pick_sum_dtype`), the tests are of a commit that sums it in f32",
        ),
        Explained(
            r"test_atomic_poll\[",
            r"assert 2 == 1",
            VERSION,
            "the test counts instructions in the text; Triton 3.9 prints a second loop for 16 bits",
        ),
        Explained(
            r"test_(tensor_atomic_add_access_patterns|atomic_rmw)\[.*bfloat16",
            r"wants to read 4 bytes",
            THEIRS,
            "an atomic sum of bf16 on sm_80 is a loop of compare-and-swap on 4 bytes, of which 2 are past an "
            "array with an uneven number of elements",
        ),
        Explained(
            r"test_atomic_cas\[",
            "TooLong",
            NOT_SUPPORTED,
            "2,000 CTAs spin on one lock, longer than the limit",
        ),
    ),
)

GLUON: Final = Suite(
    "Triton, Gluon's tests",
    "triton",
    "python",
    ("test/gluon/test_core.py", "test/gluon/test_lowerings.py"),
    "f4fca2c, 2026-08-22",
)

SUITES: Final = {"triton": TRITON, "gluon": GLUON}
