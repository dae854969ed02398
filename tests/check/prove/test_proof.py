"""The one front door of both proofs: what it refuses, and what it takes apart for both alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from messages import message

from ptxgen.check.prove import Proofs, prove, prove_global, prove_shared
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract
from ptxgen.check.prove.verdicts import RACES
from ptxgen.errors import VerifyError
from ptxgen.ir import Shared
from ptxgen.parse import parse
from ptxgen.target import TARGETS

CONTRACT = GlobalContract((GlobalArray("X", (Axis("n", 4),), 4, 4),), (), {"n": (64, 1 << 20)}, (1, 1, 1))
FUNCTION = """
.func put(.reg .b32 %at, .reg .b64 %to)
{
    .reg .b32 %r<2>;
    ld.shared.u32 %r0, [%at];
    st.global.u32 [%to], %r0;
    ret;
}
"""
BODY = """
    mov.u32 %r1, %tid.x;
    ld.param.u64 %rd0, [X];
    mul.wide.u32 %rd1, %r1, 4;
    add.u64 %rd0, %rd0, %rd1;
    mov.u32 %r2, buf;
    mad.lo.u32 %r2, %r1, 4, %r2;
    call put, (%r2, %rd0);
"""


def text(body: str = BODY, variables: str = ".shared .align 16 .b8 buf[256];") -> str:
    return (
        f".version 8.0\n.target sm_80\n.address_size 64\n{FUNCTION}{variables}\n"
        ".visible .entry k(.param .u64 X, .param .u32 n)\n{\n    .reg .pred %p<3>;\n"
        f"    .reg .b32 %r<9>;\n    .reg .b64 %rd<9>;\n{body}\n    ret;\n}}\n"
    )


def both(ptx: Any, **how: Any) -> Any:
    return prove(ptx, contract=CONTRACT, **how)


def of_shared(ptx: Any, **how: Any) -> Any:
    return prove_shared(ptx, **how)


def of_global(ptx: Any, **how: Any) -> Any:
    return prove_global(ptx, contract=CONTRACT, **how)


@pytest.mark.parametrize("how", [both, of_shared, of_global])
@pytest.mark.parametrize("block", [0, -1, 5000, (4, 4, 4, 4), (), (1, 1, 65), (32, 0), 32.0, True, (True, 1)])
def test_a_block_that_no_launch_can_have_is_refused(how: Callable[..., Any], block: Any) -> None:
    assert message(lambda: how(text(), block=block)) == (
        "prove: block must be one to three positive numbers of threads, at most 1024 in all and 64 "
        f"along z, got {block!r}"
    )


@pytest.mark.parametrize("how", [both, of_shared, of_global])
def test_a_kernel_that_the_module_lacks_is_refused(how: Callable[..., Any]) -> None:
    assert (
        message(lambda: how(text(), entry="kk", block=32))
        == "prove: no kernel 'kk'; the module has k; did you mean 'k'?"
    )


def test_calls_are_followed_by_both_proofs() -> None:
    result = prove(text(), block=64, contract=CONTRACT)
    assert result.complete
    assert result.global_memory is not None
    (read,), (written,) = result.shared.accesses, result.global_memory.accesses
    assert (read.kernel, read.allocation) == ("put", "buf")
    assert (written.kernel, written.allocation) == ("put", "X")
    wrong = prove(text(), block=96, contract=CONTRACT)
    assert wrong.global_memory is not None
    (read,), (written,) = wrong.shared.accesses, wrong.global_memory.accesses
    assert (read.verdict, written.verdict) == ("violation", "violation")
    assert read.reason.endswith(", called from line 25 of the PTX text")
    assert written.reason.endswith(", called from line 25 of the PTX text")


def test_the_views_say_what_the_front_door_says() -> None:
    result = prove(text(), block=64, contract=CONTRACT)
    assert result.shared == prove_shared(text(), block=64)
    assert result.global_memory == prove_global(text(), block=64, contract=CONTRACT)
    alone = prove(text(), block=64)
    assert alone.global_memory is None
    assert alone.complete


@pytest.mark.parametrize(
    ("block", "bounds", "which"), [(96, (96, 200), "shared memory"), (64, (12, 200), "global memory")]
)
def test_what_either_proof_has_against_a_kernel_is_refused(
    block: int, bounds: tuple[int, int], which: str
) -> None:
    contract = replace(CONTRACT, bounds={"n": bounds})
    result = prove(text(), block=block, contract=contract)
    assert not result.complete
    assert message(result.require, VerifyError).startswith(f"{which}: 1 problem:\n* kernel put: violation: ")
    prove(text(), block=64).require()


DYNAMIC = ".extern .shared .align 16 .b8 buf[];"


def test_dynamic_memory_of_unknown_size_is_unknown_and_no_violation() -> None:
    (result,) = prove(text(variables=DYNAMIC), block=64).shared.accesses
    assert (result.verdict, result.reason) == (
        "unknown",
        "the size of buf is not given (dynamic_smem), called from line 25 of the PTX text",
    )
    for arguments, verdict in ((256, "proved"), (252, "violation"), (0, "violation")):
        (result,) = prove(text(variables=DYNAMIC), block=64, dynamic_smem=arguments).shared.accesses
        assert result.verdict == verdict


def test_an_access_before_dynamic_memory_of_unknown_size_is_a_violation() -> None:
    body = "    mov.u32 %r2, buf;\n    ld.shared.u32 %r1, [%r2-4];\n"
    (result,) = prove(text(body, DYNAMIC), block=64).shared.accesses
    assert result.verdict == "violation"


@pytest.mark.parametrize(
    ("variables", "block", "says", "state", "shared"),
    [
        (".shared .align 16 .b8 buf[256];", 64, "complete", "ok", ["1", "0", "0"]),
        (".shared .align 16 .b8 buf[256];", 96, "wrong", "wrong", ["0", "1", "0"]),
        (DYNAMIC, 64, "not complete", "unsure", ["0", "0", "1"]),
    ],
)
def test_a_notebook_shows_counts_and_what_is_not_proved(
    variables: str, block: int, says: str, state: str, shared: list[str]
) -> None:
    result = prove(text(variables=variables), block=block, contract=CONTRACT)
    assert result.global_memory is not None
    html = result._repr_html_()
    assert f'class="{state}">&#9679;</span> <strong>proof of k</strong>: {says}; {RACES}</div>' in html
    assert re.findall(r"<th[^>]*>([^<]*)<", html) == ["", "proved", "violation", "unknown"]
    everywhere = ["0", "1", "0"] if block > 64 else ["1", "0", "0"]
    assert re.findall(r"<td[^>]*>([^<]*)<", html) == [
        *("shared accesses", *shared, "barriers", "0", "0", "0", "global accesses", *everywhere)
    ]
    unproved = "\n".join(map(str, (*result.shared.unproved, *result.global_memory.unproved)))
    unfolded = re.findall("<details open><summary>not proved</summary><pre>(.*?)</pre>", html, re.DOTALL)
    assert list(map(unescape, unfolded)) == ([unproved] if unproved else [])
    assert (unproved == "") == result.complete


@pytest.mark.parametrize(("beyond", "wrong"), [(0, False), (1, True)])
def test_static_and_dynamic_memory_together_have_a_limit(beyond: int, wrong: bool) -> None:
    limit = TARGETS["sm_80"].shared_per_block_optin
    module = parse(text())
    (kernel,) = module.kernels
    module = replace(module, kernels=(replace(kernel, shared=(Shared("own", 256, 16),)),))
    dynamic = limit - 256 + beyond
    result = prove(module, block=64, dynamic_smem=dynamic).shared
    expected = (
        f"{limit + beyond} bytes of shared memory, {dynamic} of them dynamic, but a block has at "
        f"most {limit} on sm_80"
    )
    assert [p.message for p in result.problems] == [expected] * wrong
    assert ("<strong>proof of k</strong>: wrong;" in Proofs(result, None)._repr_html_()) == wrong


STRUCTURE = """
.func pick(.param .align 8 .b8 in[8])
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    {read}
    st.shared.u32 [%r1], %r0;
    ret;
}
"""
WHOLE = "ld.param.u64 %rd1, [in]; cvt.u32.u64 %r1, %rd1;"
LOW = "ld.param.u32 %r1, [in];"


@pytest.mark.parametrize(
    ("stores", "read", "is_proved"),
    [
        ("st.param.u32 [to], %r2; st.param.u32 [to+4], %r1;", LOW, True),
        ("st.param.u32 [to+4], %r1; st.param.u32 [to], %r2;", LOW, True),
        ("st.param.u32 [to], %r2; st.param.u64 [to], %rd0;", LOW, False),
        ("st.param.u64 [to], %rd2; st.param.u32 [to+4], %r1;", WHOLE, False),
        ("st.param.u64 [to], %rd2;", "ld.param.u32 %r0, [in];" + WHOLE, True),
    ],
)
def test_a_structure_is_known_by_the_parts_that_were_stored_last(
    stores: str, read: str, is_proved: bool
) -> None:
    body = (
        ".param .align 8 .b8 to[8];\nmov.u32 %r1, %tid.x; mov.u32 %r2, buf; mov.u64 %rd2, buf;"
        f"ld.param.u64 %rd0, [X];\n{stores}\ncall pick, (to);"
    )
    ptx = text(body).replace(FUNCTION, STRUCTURE.replace("{read}", read))
    assert prove_shared(ptx, block=64).complete == is_proved
