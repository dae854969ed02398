"""Kernels that the tests of reports report on."""

from __future__ import annotations

import functools

import numpy as np

import ptxgen as px
from ptxgen import Pointer, f32, u32
from ptxgen.report import Launch, Report, Subject, collect, subject_of_function

HEAD = """\
.version 7.0
.target sm_80
.address_size 64

"""
# Each thread stores its number to shared memory, 128 bytes apart: all in one bank.
CONFLICTS = (
    HEAD
    + """\
.visible .entry conflicts(
	.param .u64 out
)
.maxntid 32, 1, 1
{
	.reg .b32 %r<6>;
	.reg .b64 %rd<4>;
	.shared .align 4 .b8 words[4096];
	ld.param.u64 %rd0, [out];
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, words;
	mad.lo.u32 %r2, %r0, 128, %r1;
	st.shared.u32 [%r2], %r0;
	bar.sync 0;
	xor.b32 %r3, %r0, 1;
	mad.lo.u32 %r3, %r3, 128, %r1;
	ld.shared.u32 %r4, [%r3];
	mul.wide.u32 %rd1, %r0, 4;
	add.u64 %rd2, %rd0, %rd1;
	st.global.u32 [%rd2], %r4;
	ret;
}
"""
)
# The line of the barrier.
BARRIER = CONFLICTS.splitlines().index("\tbar.sync 0;") + 1
# Two warps, each of which reads what the other one has stored, without a barrier.
RACE = CONFLICTS.replace("\tbar.sync 0;\n", "")
for before, after in (
    (".maxntid 32", ".maxntid 64"),
    ("[4096]", "[8192]"),
    ("%r3, %r0, 1;", "%r3, %r0, 32;"),
):
    RACE = RACE.replace(before, after)


# A user's kernel; the tests look for its lines by their text.
@px.kernel(threads=64)
def softmax(k, X: Pointer[f32], Y: Pointer[f32], columns: u32):
    x, y = (P.row(k.block_id(), columns) for P in (X, Y))
    total = k.var(f32, 0)
    with k.strided(columns) as i:
        total.set(total + k.exp(x[i]))
    weight = 1 / k.block.sum(total)
    with k.strided(columns) as i:
        y[i] = k.exp(x[i]) * weight


def softmax_subject() -> Subject:
    x = np.random.default_rng(0).standard_normal((3, 128), np.float32)
    return subject_of_function(softmax, (3,), (x, np.empty_like(x), 128))


@functools.cache
def softmax_report() -> Report:
    return collect(softmax_subject())


@functools.cache
def report_on(text: str, nbytes: int = 256) -> Report:
    """The report on a kernel of one array in PTX text, run by one CTA."""
    return collect(Subject(text, launch=Launch((1,), [np.zeros(nbytes, np.uint8)]), assemble=False))
