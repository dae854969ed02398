"""PTX by hand for the interpreter's tests."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np

from ptxgen.interpreter import run


def ptx(
    body: str,
    params: str = "",
    *,
    shared: int = 0,
    dynamic: bool = False,
    version: str = "7.0",
    target: str = "sm_80",
) -> str:
    """A module with kernel `k`; `params` is like `u64 x, u32 n`, `shared` the bytes of `buf`."""
    declared = ",\n".join(f"\t.param .{p.strip()}" for p in params.split(",") if p)
    lines = [
        f".version {version}",
        f".target {target}",
        ".address_size 64",
        *([".extern .shared .align 16 .b8 smem[];"] if dynamic else []),
        ".visible .entry k(",
        declared,
        ")",
        "{",
        "\t.reg .pred %p<10>;",
        "\t.reg .b16 %rs<10>;",
        "\t.reg .b32 %r<40>;",
        "\t.reg .b64 %rd<20>;",
        "\t.reg .f32 %f<40>;",
        *([f"\t.shared .align 16 .b8 buf[{shared}];"] if shared else []),
        textwrap.dedent(body).strip("\n"),
        "}",
        "",
    ]
    return "\n".join(lines)


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


STORE = "\n    st.global.u32 [%rd0], %r4;\n    ret;\n"


def program(body: str, before: str = "") -> str:
    """Kernel k(x) behind functions or variables; ends by writing %r4 to the thread's element of x."""
    text = ptx(ELEMENT + body + STORE, "u64 x")
    return text.replace(".visible .entry", before + ".visible .entry")


def result_of(body: str, before: str = "", threads: int = 32, **more: Any) -> list[int]:
    """What the threads of one block of `program` write."""
    x = np.zeros(threads, np.uint32)
    run(program(body, before), grid=1, block=threads, args=[x], **more)
    return x.tolist()


def line_of(text: str, instruction: str, nth: int = 0) -> int:
    """The line, from 1, of the nth line of a text that holds an instruction."""
    lines = [n for n, line in enumerate(text.splitlines(), 1) if instruction in line]
    return lines[nth]
