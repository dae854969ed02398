"""What reading a text finds of missing proxy fences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ptxgen.check.prove import prove_shared
from ptxgen.commands import check
from ptxgen.dsl import KernelBuilder
from ptxgen.ir import Instr
from ptxgen.parse import parse
from ptxgen.types import f16, f32, u32
from tools.campaign.kernels import subjects

BUG = Path(__file__).parents[2] / "ptx" / "bugs" / "missing_proxy_fence.ptx"
STORE = "st.shared.u32 [%r2], %r0;"
FENCE = "fence.proxy.async.shared::cta;"
BARRIER = "bar.sync 0;"
COPY = "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 512;"
FILL = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd0], 512, [%r3];"
WAIT = "again: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3], 0; @!%p1 bra again;"
HEAD = """.version 8.3
.target sm_90
.address_size 64
.extern .func far();
.func fenced() { fence.proxy.async; ret; }
.visible .entry k(.param .u64 y)
{
    .reg .pred %p<3>; .reg .b32 %r<6>; .reg .b64 %rd<2>;
    .shared .align 16 .b8 tile[512];
    .shared .align 16 .b8 other[512];
    .shared .align 8 .b64 full;
    ld.param.u64 %rd0, [y];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, tile;
    mov.u32 %r3, full;
    mov.u32 %r4, other;
    mad.lo.u32 %r2, %r0, 4, %r1;
    setp.ne.u32 %p0, %r0, 0;
    setp.lt.u32 %p2, %r0, 64;
"""
ROLES = ("@%p2 bra second;", STORE, "{fence}", "bar.sync 1, 128; ret;", "second:", "bar.sync 1, 128;", COPY)


def unfenced(*body: str) -> list[str]:
    text = HEAD + "\n".join(body) + "\nret;\n}\n"
    return [problem.message for problem in prove_shared(text, "k", block=128).unfenced]


def test_a_copy_that_does_not_see_a_store_is_found_in_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([str(BUG), "--block", "128", "--no-assemble"]) == 0
    assert (
        "lint: proxy: send_tile: no fence.proxy.async is between st.shared.u32 [%r2], %r0; (line 17 of the "
        "PTX text) and this asynchronous read of what it stores; each thread that stores needs one, before "
        "the barrier\n"
        "    in cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 512;\n"
        "    from line 23 of the PTX text\n"
        "\n"
        "0 errors, 0 unproved, 1 lints\n"
    ) in capsys.readouterr().out
    proof = prove_shared(BUG.read_text(), block=128)
    assert proof.complete
    assert str(proof.unfenced[0]) in proof.report()
    assert proof.to_dict()["unfenced"] == [str(proof.unfenced[0])]
    assert prove_shared(BUG.read_text().replace(BARRIER, f"{FENCE} {BARRIER}"), block=128).unfenced == ()


@pytest.mark.parametrize(
    "body",
    [
        (STORE, BARRIER, COPY),
        (STORE, "fence.proxy.async.global;", BARRIER, COPY),
        (FENCE, STORE, BARRIER, COPY),
        (STORE, BARRIER, COPY, STORE, FENCE, BARRIER, COPY),
        (STORE, FENCE, BARRIER, COPY, "cp.async.bulk.wait_group.read 0;", BARRIER, STORE, BARRIER, COPY),
        ("again:", COPY, STORE, BARRIER, "@%p0 bra again;"),
        (STORE, "@%p0 bra skip;", FENCE, "skip:", BARRIER, COPY),
        # The last store is behind all copies that fill the tile.
        (f"@%p0 bra skip; {FILL} skip:", WAIT, STORE, BARRIER, COPY),
        # Nobody has a fence, where one role stores and another one reads.
        tuple(line.format(fence="") for line in ROLES),
    ],
)
def test_a_way_without_a_fence_is_found(body: tuple[str, ...]) -> None:
    (said,) = unfenced(*body)
    assert said.startswith(f"no fence.proxy.async is between {STORE} (line ")


@pytest.mark.parametrize(
    "body",
    [
        (STORE, FENCE, BARRIER, COPY),
        (STORE, "fence.proxy.async;", BARRIER, COPY),
        (STORE, BARRIER, FENCE, COPY),
        ("again:", STORE, FENCE, BARRIER, COPY, BARRIER, "@%p0 bra again;"),
        (STORE, BARRIER, COPY.replace("%r1", "%r4")),  # of another variable
        (STORE, "call.uni fenced;", BARRIER, COPY),
        (STORE, "call.uni far;", BARRIER, COPY),  # which may have a fence
        # The fence is before the read, too, and may be for what others store.
        (FENCE, *(line.format(fence="") for line in ROLES)),
        # A copy may have filled the tile since.
        (STORE, BARRIER, FILL, WAIT, COPY),
        (STORE, BARRIER, f"@%p0 bra skip; {FILL} {WAIT} skip:", BARRIER, COPY),
        tuple(line.format(fence=FENCE) for line in ROLES),
    ],
)
def test_nothing_is_said_where_a_fence_or_a_copy_may_be_between(body: tuple[str, ...]) -> None:
    assert not unfenced(*body)


def written(*, fenced: bool) -> KernelBuilder:
    """A product of what threads store, whose result leaves by a tensor copy from a tile of its own."""
    k = KernelBuilder("written", target="sm_90a", threads=128)
    A, B, C = k.pointer("A", f16), k.pointer("B", f16), k.tma.tensor_map("C", f32)
    a, b, out = (
        k.tma.tile("a", (64, 32), f16),
        k.tma.tile("b", (32, 16), f16),
        k.tma.tile("out", (64, 16), f32),
    )
    acc, t = k.wgmma.accumulator(64, 16, zero=False), k.thread_id()
    with k.loop(t, 64 * 32, 128, type=u32) as i:
        a[i >> 5, i & 31] = A[i]
    with k.loop(t, 32 * 16, 128, type=u32) as i:
        b[i >> 4, i & 15] = B[i]
    if fenced:
        k.fence_proxy_async(space="shared::cta")
    k.barrier()
    acc.set(a @ b)
    k.wgmma.wait()
    acc.write(out)
    k.tma.store(out, C[0, 0])
    return k


def test_both_tiles_of_a_product_without_a_fence_are_told_with_their_lines() -> None:
    result = [prove_shared(written(fenced=f).build(), block=128).unfenced for f in (True, False)]
    assert result[0] == ()
    assert [problem.kernel for problem in result[1]] == ["written"] * 2
    assert all(__file__ in problem.where and __file__ in problem.message for problem in result[1])
    assert all(problem.instr.startswith("wgmma.mma_async") for problem in result[1])


def without(kernel: Any, which: int) -> Any:
    """A module without its fence number `which`."""
    (of,) = kernel.kernels
    fences = [n for n, s in enumerate(of.body) if isinstance(s, Instr) and s.opcode.startswith("fence.proxy")]
    body = of.body[: fences[which]] + of.body[fences[which] + 1 :]
    return replace(kernel, kernels=(replace(of, body=body),))


@pytest.mark.sample(1, gate=2)
@pytest.mark.parametrize(
    ("name", "noticed"),
    [  # the first fence of each is behind `mbarrier.init`
        ("f16-sm_90a", [0, 1]),
        ("f16-sm_90a-causal-latent", [0, 2, 1, 1, 1, 1, 2]),
        ("e4m3-sm_90a-causal", [0, 0, 0, 1]),
        ("f16-sm_90a-turns-causal", [0, 0, 0, 0, 1]),
        ("bf16-sm_90a-static", [0, 1]),
        pytest.param("f32_grade-sm_90a", [0, 0, 0, 0, 0, 1], marks=pytest.mark.slow),
    ],
)
def test_shipped_kernels_have_their_fences(name: str, noticed: list[int]) -> None:
    subject = subjects()[name]

    def found(module: Any) -> int:
        return len(prove_shared(module, block=subject.block, params=subject.params).unfenced)

    assert found(subject.module) == 0
    assert [found(without(subject.module, n)) for n in range(len(noticed))] == noticed


@pytest.mark.nightly
@pytest.mark.parametrize("path", sorted(BUG.parents[1].glob("*/*.sm_90a.ptx")), ids=lambda path: path.stem)
def test_nothing_is_said_of_compilers_texts(path: Path) -> None:
    module = parse(path.read_text())
    for kernel in module.kernels:
        assert prove_shared(module, kernel.name, block=kernel.reqntid or 128).unfenced == ()
