"""Products of matrices are computed for the warps that execute them, whatever others hold in registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from isa import tensor_core_runs
from isa.tensor_core_runs import DIAGONAL, Shape, wgmma_products
from isa.test_matrix import LANES, Machine
from isa.test_matrix import run as run_row

from ptxgen.interpreter import run
from ptxgen.isa import products, table, wgmma
from ptxgen.isa.compiled_sums import multiplied

Array = np.ndarray[Any, Any]
WARP = 32
NAN_F16 = 0x7FFF7FFF
ONES_F16 = 0x3C003C00


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of sums of each product that tensor cores have computed."""
    counts: list[int] = []

    def counted(how: Any, of: Any, a: Any, b: Any, c: Array, **more: Any) -> Array:
        counts.append(c.size * of.c.per)
        return multiplied(how, of, a, b, c, **more)

    for module in (products, wgmma):
        monkeypatch.setattr(module, "multiplied", counted)
    return counts


@pytest.mark.parametrize(
    "opcode",
    [
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f16",
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32",
        "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32",
        "mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.xor.popc",
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64",
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f16",
        "wmma.mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32",
    ],
)
def test_a_warp_that_does_not_execute_a_product_neither_takes_part_nor_changes_it(opcode: str) -> None:
    op = table.recognise(opcode)[0]
    rng = np.random.default_rng(0)
    operands: dict[str, tuple[Array, ...]] = {}
    for operand in (o for o in op.operands if o.name in "abc"):
        assert operand.type is not None
        drawn = rng.integers(0, 1 << 8, (operand.count or 1, LANES * operand.type.nbytes), np.uint8)
        operands[operand.name] = tuple(drawn.view(operand.type.dtype))
    idle = Machine(idle=True)
    want = [d[:WARP].tobytes() for d in run_row(op, Machine(), **operands)]
    for bits in (0x00, 0xFF):  # zeros; NaN, or -1
        for register in (r for registers in operands.values() for r in registers):
            register[WARP:].view(np.uint8)[:] = bits
        d = run_row(op, idle, **operands)
        assert [x[:WARP].tobytes() for x in d] == want
        assert not any(x[WARP:].view(np.uint8).any() for x in d)


GUARDED = """.version 8.0
.target sm_80
.address_size 64
.visible .entry product(.param .u64 out)
{
    .reg .pred %p;
    .reg .b32 %a, %t, %w;
    .reg .f32 %c<4>;
    .reg .b64 %o, %n;
    mov.u32 %t, %tid.x; shr.u32 %w, %t, 5;
    setp.lt.u32 %p, %w, WARPS;
    selp.b32 %a, ONES, NAN, %p;
    mov.f32 %c0, 0f40000000; mov.f32 %c1, %c0; mov.f32 %c2, %c0; mov.f32 %c3, %c0;
    PRODUCT
    ld.param.u64 %o, [out]; mul.wide.u32 %n, %t, 4; add.u64 %o, %o, %n;
    st.global.f32 [%o], %c3;
    ret;
}
"""
MMA = (
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
    "{%c0, %c1, %c2, %c3}, {%a, %a, %a, %a}, {%a, %a}, {%c0, %c1, %c2, %c3};"
)


@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("warps", [1, 3, 7, 8])
@pytest.mark.parametrize("product", [f"@%p {MMA}", f"@!%p bra past; {MMA} past:"])
def test_the_products_of_a_launch_are_those_of_the_warps_that_execute_it(
    product: str, warps: int, stepwise: bool, computed: list[int]
) -> None:
    out = np.zeros((8, WARP), np.float32)
    text = GUARDED.replace("PRODUCT", product).replace("WARPS", str(warps))
    text = text.replace("ONES", hex(ONES_F16)).replace("NAN", hex(NAN_F16))
    run(text, "product", grid=1, block=8 * WARP, args=[out], stepwise=stepwise)
    assert sum(computed) == warps * 16 * 8
    assert (out[:warps] == 18).all()
    assert (out[warps:] == 2).all()


WAIT = "wgmma.wait_group.sync.aligned 0;"
# CTA 1 waits elsewhere than the others, with which it has started its products.
TWO_WAITS = f"""mov.u32 %w, %ctaid.x; setp.eq.u32 %s, %w, 1; @%s bra second;
    {WAIT} bra.uni stored;
second:
    {WAIT}
stored:"""


def test_a_late_product_is_computed_once_for_each_warp(
    computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    groups = 3
    a, b = (rng.normal(size=(groups * DIAGONAL, 16)).astype(np.float16) for _ in range(2))
    of, c = Shape("m64n8k16", "f16", "f32"), rng.normal(size=groups * DIAGONAL).astype(np.float32)
    bits = [x.view(np.uint16) for x in (a, b)]
    monkeypatch.setattr(tensor_core_runs, "_WGMMA", tensor_core_runs._WGMMA.replace(WAIT, TWO_WAITS))
    want = wgmma_products(of, *bits, c)
    assert sum(computed) == groups * 64 * 8
    for seed in range(4):
        computed.clear()
        assert wgmma_products(of, *bits, c, schedule=f"pct:{seed}").tolist() == want.tolist()
        assert sum(computed) == groups * 64 * 8
