"""Mutants of a product in tensor memory: the verifier, the sanitizers, a trap or its result notices them."""

from __future__ import annotations

import re
from typing import Final

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

from ptxgen.check.verify import verify
from ptxgen.errors import TrapError
from ptxgen.interpreter import run
from ptxgen.mutation.operators import Mutant, mutants
from ptxgen.parse import parse

M, N, K = 128, 32, 64
PRODUCT: Final = "tcgen05.mma.cta_group::1.kind::f16"
# What nothing need notice: the leading offset of rows in a swizzle is not read; registers are right without a
# wait for their load, since whoever reads them waits, and an mbarrier orders what a fence orders, too.
UNNOTICED: Final = re.compile(r"descriptor: leading offset|copy-wait: deleted|fence: ")
KINDS: Final = ("copy-commit", "copy-wait", "fence", "product", "tensor-memory", "descriptor", "mbarrier")


def text() -> str:
    """D = A B^T of four steps along K."""
    body = [
        descriptor("%rd3", 0),
        descriptor("%rd4", 128 * M),
        f"mov.b32 %r9, {instruction(M, N, 'f16')};",
        "setp.ne.u32 %p2, %r9, %r9;",
        "setp.eq.u32 %p3, %r9, %r9;",
    ]
    for step in range(K // 16):
        if step:
            body += ["add.u64 %rd3, %rd3, 2;", "add.u64 %rd4, %rd4, 2;"]
        use = "%p3" if step else "%p2"
        body.append(f"{PRODUCT} [{TENSOR}], %rd3, %rd4, %r9, {use};")
    return kernel(
        f"{by_one_thread([*body, commit()])}\n{wait()}\n{moved(0, N, to='out')}",
        columns=64,
        nbytes=128 * (M + N),
    )


def noticed(mutant: Mutant, x: np.ndarray, right: np.ndarray) -> str:
    """What notices a mutant; empty if nothing does."""
    if verify(mutant.module):
        return "verifier"
    out = np.zeros((LANES, N), np.float32)
    try:
        run(
            mutant.module,
            grid=1,
            block=LANES,
            args=[x, out],
            sanitize="all",
            schedule="pct:1",
            max_instructions=20_000,
        )
    except TrapError as error:
        return "sanitizer" if "sanitizer" in str(error) else "trap"
    return "" if np.array_equal(out, right) else "value"


def test_mistakes_with_tensor_memory_are_noticed() -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal((rows, K)).astype(np.float16) for rows in (M, N))
    x = np.concatenate([rows_of_128_bytes(matrix) for matrix in (a, b)])
    right = np.zeros((LANES, N), np.float32)
    module = parse(text())
    run(module, grid=1, block=LANES, args=[x, right], sanitize="all")
    np.testing.assert_allclose(right, a.astype(np.float64) @ b.astype(np.float64).T, atol=1e-4)
    tried = [
        m for m in mutants(module, "k", KINDS) if m.kind != "descriptor" or m.before.startswith("or.b64")
    ]
    catchers = {m.name: noticed(m, x, right) for m in tried}
    assert {m.kind for m in tried} == {*KINDS}
    assert [n for n, catcher in catchers.items() if not catcher and not UNNOTICED.match(n)] == []
