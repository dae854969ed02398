"""A recorded walk: the registers, memory, barriers and reports of a warp at each of its steps."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from report.kernels import BARRIER, CONFLICTS, RACE, report_on, softmax_subject

from ptxgen.debugger import walk as walks
from ptxgen.debugger.walk import packed, recorded_walk
from ptxgen.errors import LaunchError
from ptxgen.report import Launch, Subject
from ptxgen.report.data import Walk
from ptxgen.report.page import page


def walk_on(text: str, thread: int = 0, nbytes: int = 256) -> Walk:
    return recorded_walk(Subject(text, launch=Launch((1,), [np.zeros(nbytes, np.uint8)])), (thread,))


def values(walk: Walk, name: str, at: int) -> list[int]:
    """The values of a register before step `at`, read as `packed` says."""
    register = next(one for one in walk.registers if one.name == name)
    text = [t for step in walk.steps[: at + 1] for n, t in step.registers if n == register.number][-1]
    held = np.frombuffer(base64.b64decode(text.lstrip("=+")), register.dtype)
    if text[0] == "+":
        return [int(held[0]) + n * int(held[1]) for n in range(32)]
    return held.tolist() * (32 if text[0] == "=" else 1)


def test_registers_and_shared_memory_are_those_before_each_instruction() -> None:
    walk = walk_on(RACE, 40)
    lines = [line.strip() for line in RACE.splitlines()]
    assert (walk.cta, walk.warp, walk.lane, walk.ended) == ((0, 0, 0), 1, 8, "the warp has ended")
    code = [lines[step.line - 1] for step in walk.steps]
    first = next(n for n, line in enumerate(lines) if line.startswith("ld.param"))
    assert code == lines[first:-1]
    store = next(n for n, line in enumerate(code) if line.startswith("st.shared"))
    load = next(n for n, line in enumerate(code) if line.startswith("ld.shared"))
    assert values(walk, "%r0", store) == list(range(32, 64))
    assert values(walk, "%r2", store) == [128 * n for n in range(32, 64)]
    assert values(walk, "%r3", load) == [128 * n for n in range(32)]
    assert walk.steps[store].shared == ()
    # Both warps store at once: a word of each 128 bytes, but the 0 of thread 0.
    stored = walk.steps[store + 1].shared
    words = {at: int.from_bytes(base64.b64decode(text), "little") for at, text in stored}
    assert words.items() >= {128 * n: n for n in range(1, 64)}.items()
    reported = {n: step.reports for n, step in enumerate(walk.steps) if step.reports}
    assert list(reported) == [load + 1]
    assert "race: shared address" in reported[load + 1][0]


def test_lanes_that_do_not_take_part_are_told_apart() -> None:
    more = "\tsetp.lt.u32 %p0, %r0, 5;\n\t@%p0 add.u32 %r5, %r0, 7;\n\tbar.sync 0;"
    text = CONFLICTS.replace("\tbar.sync 0;", more).replace(".reg .b32", ".reg .pred %p<1>;\n\t.reg .b32")
    walk = walk_on(text)
    guarded = next(step for step in walk.steps if step.active == 31)
    assert text.splitlines()[guarded.line - 1].strip().startswith("@%p0")
    assert {step.active for step in walk.steps if step is not guarded} == {(1 << 32) - 1}


@pytest.mark.parametrize(
    ("lanes", "start", "count"),
    [
        (np.full(32, 7, np.uint32), "=", 1),
        (np.arange(32, dtype=np.uint64) * 4 + 3, "+", 2),
        (np.arange(32, dtype=np.int32)[::-1].copy(), "+", 2),
        (np.arange(32, dtype=np.float32), "", 32),
    ],
)
def test_values_of_lanes_are_packed(lanes: np.ndarray, start: str, count: int) -> None:
    text = packed(lanes)
    assert text.startswith(start or base64.b64encode(lanes.tobytes()).decode())
    assert len(base64.b64decode(text.lstrip("=+"))) == count * lanes.itemsize
    mask = packed(np.arange(32) < 3)
    assert base64.b64decode(mask[1:]) == (7).to_bytes(4, "little")


def test_a_walk_ends_with_a_failure_of_the_kernel() -> None:
    walk = walk_on(CONFLICTS.replace("[%rd2]", "[%rd2+4096]"))
    assert walk.ended == "the kernel fails"
    assert walk.steps[-1].line == 0
    assert "3840 bytes after the end of out" in walk.steps[-1].reports[-1]


def test_a_walk_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "MOST_STEPS", 5)
    walk = recorded_walk(softmax_subject(), (40,), (2,))
    assert (walk.cta, walk.warp, walk.ended) == ((2, 0, 0), 1, "the first 5 steps are recorded")
    assert len(walk.steps) == 5


@pytest.mark.parametrize(
    ("subject", "thread", "words"),
    [
        (Subject(CONFLICTS), 0, "a walk needs a launch: pass the grid and the arguments, or an example"),
        (
            Subject(CONFLICTS, launch=Launch((1,), [np.zeros(256, np.uint8)])),
            32,
            "there is no thread (32, 0, 0) to record; the launch has (32, 1, 1)",
        ),
    ],
)
def test_what_cannot_be_walked_through_is_refused(subject: Subject, thread: int, words: str) -> None:
    with pytest.raises(LaunchError, match=f"^{re.escape(words)}$"):
        recorded_walk(subject, (thread,))


def test_the_page_has_the_walk_as_data_that_ends_no_script() -> None:
    walk = walk_on(CONFLICTS)
    walk = replace(walk, barriers=("</script><!--", *walk.barriers[1:]))
    shown = page(replace(report_on(CONFLICTS), walk=walk))
    (held,) = re.findall(r'<script type="application/json" id="walk-data">(.*?)</script>', shown, re.DOTALL)
    read = json.loads(held)
    assert read["barriers"][0] == "</script><!--"
    assert [step[0] for step in read["steps"]] == [step.line for step in walk.steps]
    assert BARRIER in [step[0] for step in read["steps"]]
    assert 'id="walk"' not in page(report_on(CONFLICTS))
