"""PTX by hand for the interpreter's tests, and what messages say of it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from ptxgen.errors import PtxGenError, TrapError
from ptxgen.interpreter import run


def ptx(
    body: str,
    params: str | None = None,
    *,
    before: str = "",
    shared: int = 0,
    dynamic: bool = False,
    version: str = "8.6",
    target: str = "sm_90a",
    directives: str = "",
    returns: bool = True,
) -> str:
    """A module with kernel `k`, behind functions or variables. Its parameters are those that the body loads,
    in this order, or `params` such as `u64 x, u32 n`; `shared` is the bytes of `buf`. It ends with `ret`.
    """
    named = ", ".join(_loaded(body)) if params is None else params
    declared = ",\n".join(f"\t.param .{p.strip()}" for p in named.split(",") if p)
    body = textwrap.dedent(body).strip("\n")
    lines = [
        f".version {version}",
        f".target {target}",
        ".address_size 64",
        *([".extern .shared .align 16 .b8 smem[];"] if dynamic else []),
        f"{before}.visible .entry k(",
        declared,
        f") {directives}".rstrip(),
        "{",
        "\t.reg .pred %p<10>;",
        "\t.reg .b16 %rs<10>;",
        "\t.reg .b32 %r<40>;",
        "\t.reg .b64 %rd<20>;",
        "\t.reg .f32 %f<40>;",
        *([f"\t.shared .align 16 .b8 buf[{shared}];"] if shared else []),
        body,
        *(["\tret;"] if returns and not body.endswith("ret;") else []),
        "}",
        "",
    ]
    return "\n".join(lines)


def _loaded(body: str) -> Iterator[str]:
    """The parameters that a kernel's body loads and does not declare for a call."""
    loads = dict(reversed(pair) for pair in re.findall(r"ld\.param\.(\w+) [%\w]+, \[(\w+)\]", body))
    for name, type in loads.items():
        if not re.search(rf"\.param [^;]*\b{name}\b", body):
            yield f"{type} {name}"


# %r0 = the thread's number in a grid of one dimension; %rd0 = the address of its 4-byte element of
# x.
ELEMENT = """
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r0, %r1, %r2, %r3;
    mul.wide.u32 %rd2, %r0, 4;
    add.u64 %rd0, %rd1, %rd2;
"""


def on_elements(body: str, **how: Any) -> str:
    """Kernel k(x) that begins with `ELEMENT`."""
    return ptx(ELEMENT + body, **how)


def program(body: str, before: str = "", **how: Any) -> str:
    """Kernel k(x) behind functions or variables; ends by writing %r4 to the thread's element of x."""
    return on_elements(body + "\n    st.global.u32 [%rd0], %r4;", before=before, **how)


def result_of(
    body: str, before: str = "", threads: int = 32, grid: int = 1, shared: int = 0, **how: Any
) -> list[int]:
    """What the threads of `program` write."""
    x = np.zeros(threads * grid, np.uint32)
    run(program(body, before, shared=shared), grid=grid, block=threads, args=[x], **how)
    return x.tolist()


def refused(text: Any, args: Any = (), error: type[PtxGenError] = TrapError, **how: Any) -> str:
    """The error that ends a run, of one warp if nothing else is said."""
    with pytest.raises(error) as caught:
        run(text, **{"grid": 1, "block": 32, "args": args, **how})
    return str(caught.value)


def line_of(text: str, instruction: str, nth: int = 0) -> int:
    """The line, from 1, of the nth line of a text that holds an instruction."""
    lines = [n for n, line in enumerate(text.splitlines(), 1) if instruction in line]
    return lines[nth]


def located(text: str, instruction: str, nth: int = 0) -> str:
    """How messages name the nth line of a text that holds a part of an instruction."""
    number = line_of(text, instruction, nth)
    return f"{text.splitlines()[number - 1].strip()} (line {number})"


def at(text: str, instruction: str, thread: int = 0, nth: int = 0) -> str:
    """How a message begins that is about an instruction of `text`, found by a part of it."""
    return f"kernel k: {located(text, instruction, nth)}: thread ({thread}, 0, 0) of CTA (0, 0, 0): "


def named(first: int, count: int) -> str:
    """How messages name threads of a CTA, from the first of them on."""
    shown = ", ".join(f"({n}, 0, 0)" for n in range(first, first + min(count, 4)))
    more = f" and {count - 4} more" if count > 4 else ""
    return f"{count} threads ({shown}{more})"


def deadlock(
    waits: Sequence[str], exited: int, threads: int, kind: str = "deadlock", *, cta: int = 0, others: int = 0
) -> str:
    """The message about threads of a CTA, and perhaps of others, that wait for ever."""
    where = f"CTA ({cta}, 0, 0)" + (f" and {others} others" if others else "")
    return f"kernel k: {kind} in {where}: {'; '.join(waits)}; {exited} of {threads} threads have exited"
