"""The plain transpose by tiles of 32 x 32 in shared memory, both edges guarded, is proved; its wrong twins
are not.
"""

from __future__ import annotations

import numpy as np
import pytest

import ptxgen as px
from ptxgen import Pointer, f32, u32
from ptxgen.check.prove import prove
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract

GRID = ("(columns + 31) // 32", "(rows + 31) // 32")
BOUNDS = {"rows": (1, 30000), "columns": (1, 30000)}


def transpose(
    k, X: Pointer[f32], Y: Pointer[f32], rows: u32, columns: u32, *, pitch: int, more: int, swap: bool
):
    tile = k.shared("tile", (32, 32), f32, pitch=pitch)
    thread = k.thread_id()
    tx, ty = thread % 32, thread // 32
    x, y = k.block_id() * 32 + tx, k.block_id("y") * 32 + ty
    with k.when((x < columns) & (y < rows)):
        tile[ty, tx] = X[y * columns + x]
    k.barrier()
    x, y = k.block_id("y") * 32 + tx, k.block_id() * 32 + ty
    with k.when((x < rows + more) & (y < columns)):
        Y[y * (columns if swap else rows) + x] = tile[tx, ty]


def proofs(dims=None, grid=GRID, bounds=None, pitch=33, more=0, swap=False):
    x, y = dims or (("rows", "columns"), ("columns", "rows"))
    kernel = px.kernel(threads=1024)(transpose)
    return kernel.prove(X=x, Y=y, grid=grid, bounds=bounds or BOUNDS, pitch=pitch, more=more, swap=swap)


@pytest.mark.parametrize("pitch", [32, 33])
@pytest.mark.parametrize("dims", [None, (("rows * columns",), ("rows * columns",))])
def test_the_transpose_by_tiles_is_proved(dims, pitch):
    result = proofs(dims, pitch=pitch)
    assert result.complete, result.report()


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"swap": True},
        {"dims": (("rows - 1", "columns"), ("columns", "rows"))},
        {"dims": (("rows * columns",), ("rows * columns - 1",))},
        # The index wraps around.
        pytest.param({"bounds": {"rows": (1, 1 << 20), "columns": (1, 1 << 20)}}, marks=pytest.mark.slow),
    ],
)
def test_a_transpose_that_goes_wrong_is_not_proved(change):
    assert not proofs(**change).complete


def test_the_transpose_transposes():
    x, y = np.arange(70 * 50, dtype=np.float32).reshape(70, 50), np.zeros((50, 70), np.float32)
    kernel = px.kernel(threads=1024)(transpose)
    kernel[2, 3](x, y, 70, 50, pitch=33, more=0, swap=False, backend="interpreter")
    assert (y == x.T).all()


# What nvcc makes of the same kernel, with numbers of s32 and blocks of 32 x 32 threads.
NVCC = """.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 X, .param .u64 Y, .param .u32 rows, .param .u32 columns)
{
.reg .pred %p<7>; .reg .f32 %f<3>; .reg .b32 %r<23>; .reg .b64 %rd<9>;
.shared .align 4 .b8 tile[4224];
ld.param.u64 %rd1, [X]; ld.param.u64 %rd2, [Y]; ld.param.u32 %r9, [rows]; ld.param.u32 %r10, [columns];
mov.u32 %r11, %ctaid.x; shl.b32 %r1, %r11, 5; mov.u32 %r2, %tid.x; add.s32 %r3, %r1, %r2;
mov.u32 %r12, %ctaid.y; shl.b32 %r4, %r12, 5; mov.u32 %r5, %tid.y; add.s32 %r6, %r4, %r5;
setp.ge.s32 %p1, %r3, %r10; setp.ge.s32 %p2, %r6, %r9; or.pred %p3, %p2, %p1; @%p3 bra A;
cvta.to.global.u64 %rd3, %rd1; mad.lo.s32 %r13, %r6, %r10, %r3; mul.wide.s32 %rd4, %r13, 4;
add.s64 %rd5, %rd3, %rd4; ld.global.f32 %f1, [%rd5];
mov.u32 %r14, tile; mad.lo.s32 %r15, %r5, 132, %r14; shl.b32 %r16, %r2, 2; add.s32 %r17, %r15, %r16;
st.shared.f32 [%r17], %f1;
A:
bar.sync 0;
add.s32 %r7, %r4, %r2; setp.ge.s32 %p4, %r7, %r9; add.s32 %r8, %r1, %r5; setp.ge.s32 %p5, %r8, %r10;
or.pred %p6, %p4, %p5; @%p6 bra B;
mov.u32 %r18, tile; mad.lo.s32 %r19, %r2, 132, %r18; shl.b32 %r20, %r5, 2; add.s32 %r21, %r19, %r20;
ld.shared.f32 %f2, [%r21];
mad.lo.s32 %r22, %r8, %r9, %r7; cvta.to.global.u64 %rd6, %rd2; mul.wide.s32 %rd7, %r22, 4;
add.s64 %rd8, %rd6, %rd7; st.global.f32 [%rd8], %f2;
B:
ret;
}
"""
ARRAYS = (
    GlobalArray("X", (Axis("rows", "4 * columns"),), "4 * columns", 4),
    GlobalArray("Y", (Axis("columns", "4 * rows"),), "4 * rows", 4),
)


@pytest.mark.parametrize(
    ("old", "new", "is_proved"),
    [
        ("", "", True),
        ("setp.ge.s32 %p2, %r6, %r9", "setp.gt.s32 %p2, %r6, %r9", False),
        ("or.pred %p6, %p4, %p5", "and.pred %p6, %p4, %p5", False),
        ("%r2, 132, %r18", "%r2, 136, %r18", False),
    ],
)
def test_what_nvcc_makes_of_it_is_proved(old, new, is_proved):
    contract = GlobalContract(ARRAYS, (), BOUNDS, (*GRID, 1))
    assert prove(NVCC.replace(old, new), block=(32, 32), contract=contract).complete is is_proved
