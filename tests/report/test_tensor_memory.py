"""The report of a kernel that multiplies in tensor memory."""

from __future__ import annotations

import numpy as np
from interpreter.tensor_texts import (
    LANES,
    TENSOR,
    by_one_thread,
    commit,
    descriptor,
    instruction,
    kernel,
    moved,
    rows_of_128_bytes,
    wait,
)

from ptxgen.report import Launch, Subject, collect
from ptxgen.report.page import page

M, N, K = 128, 32, 16
TEXT = kernel(
    by_one_thread(
        [
            descriptor("%rd3", 0),
            descriptor("%rd4", 128 * M),
            f"mov.b32 %r9, {instruction(M, N, 'f16')};",
            "setp.ne.u32 %p2, %r9, %r9;",
            f"tcgen05.mma.cta_group::1.kind::f16 [{TENSOR}], %rd3, %rd4, %r9, %p2;",
            commit(),
        ]
    )
    + f"\n{wait()}\n{moved(0, N, to='out')}",
    columns=64,
    nbytes=128 * (M + N),
)


def test_products_and_columns_are_on_the_page() -> None:
    x = rows_of_128_bytes(np.ones((M + N, 64), np.float16))
    out = np.zeros((LANES, N), np.float32)
    report = collect(Subject(TEXT, block=(LANES, 1, 1), launch=Launch((1,), [x, out]), assemble=False))
    assert report.run is not None
    assert report.run.clean
    assert dict(report.run.counters)["tensor memory columns"] == 64
    assert dict(report.run.mix)["tensor cores"] == 1
    assert report.run.not_counted == ("tcgen05.mma.cta_group::1.kind::f16",)
    assert report.limits is not None
    assert report.limits.ctas_per_sm == 8
    assert report.limits.limited_by == "tensor memory"
    bounds = {bound.unit: bound.cycles for bound in report.limits.bounds}
    assert bounds["tensor cores"] == M * N * K / 4096
    assert "64 of 512" in page(report)
