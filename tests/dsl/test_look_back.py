"""`k.look_back`: scans over the threads of the grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dsl.kernels import builder
from error_texts import refused

import ptxgen as px
from ptxgen import Pointer, f32, s32, u32, u64
from ptxgen.errors import ConfigError, TrapError, TypeMismatchError
from ptxgen.runtime.assembler import Assembler

THREADS = 64
TYPES = {"s32": s32, "u32": u32, "f32": f32}


@px.kernel(threads=THREADS)
def scan(k: Any, X: Pointer[u32], Y: Pointer[u32], STATE: Pointer[u64], *, of: str = "u32") -> None:
    cta = k.look_back(STATE)
    i = cta.index * THREADS + k.thread_index()
    Y[i] = cta.scan(X[i].as_(TYPES[of])).as_(u32)


@pytest.mark.parametrize("ctas", [1, 2, 33, 70])
@pytest.mark.parametrize("of", TYPES)
def test_the_values_of_all_threads_of_ctas_with_lower_numbers_are_added(of: str, ctas: int) -> None:
    x = np.random.default_rng(ctas).integers(0, 100, ctas * THREADS).astype(TYPES[of].dtype)
    y, state = np.zeros_like(x), np.zeros(ctas + 1, np.uint64)
    bits = x.view(np.uint32), y.view(np.uint32), state
    assert scan.check(ctas, *bits, of=of).clean
    scan[ctas](*bits, of=of, backend="interpreter")
    assert (y == np.cumsum(x, dtype=x.dtype)).all()
    assert state[0] == ctas
    assert (state[1:] >> 32 == 2).all()


def test_an_operator_that_does_not_commute_keeps_the_order() -> None:
    @px.kernel(threads=THREADS)
    def latest(k: Any, X: Pointer[u32], Y: Pointer[u32], STATE: Pointer[u64]) -> None:
        cta = k.look_back(STATE)
        i = cta.index * THREADS + k.thread_index()
        Y[i] = cta.scan(X[i], lambda a, b: k.selp(b, a, b != 0))

    x = np.zeros(40 * THREADS, np.uint32)
    x[[5, 700, 2000]] = 1, 2, 3
    y, state = np.zeros_like(x), np.zeros(41, np.uint64)
    latest[40](x, y, state, backend="interpreter")
    assert (y == np.maximum.accumulate(x)).all()


def test_every_access_is_proved_and_the_kernel_assembles(assembler: Assembler) -> None:
    n = (f"{THREADS} * grid",)
    assert scan.prove(X=n, Y=n, STATE=("grid + 1",), bounds={"grid": (1, 2**20)}).complete
    assert assembler.assemble(scan.build().text, "sm_80").cubin


def test_a_state_that_says_that_nobody_comes_is_waited_for_in_vain() -> None:
    x, state = np.ones(2 * THREADS, np.uint32), np.zeros(3, np.uint64)
    state[0] = 1  # as if another CTA had begun, which is not in the grid
    with pytest.raises(TrapError, match="deadlock"):
        scan[2](x, np.zeros_like(x), state, backend="interpreter", max_instructions=20_000)


def test_what_cannot_be_scanned_is_refused() -> None:
    k = builder(threads=64)
    at = k.pointer("P", u32)
    with refused(
        TypeMismatchError, f"look_back: the state must be a pointer to u64 in global memory, got {at!r}"
    ):
        k.look_back(at)
    cta = k.look_back(k.pointer("STATE", u64))
    wide = k.cvt(cta.index, dtype=u64)
    with refused(TypeMismatchError, f"look_back: scan takes an f32, u32 or s32 value, got {wide!r}"):
        cta.scan(wide)
    cta.scan(cta.index)
    message = "look_back: a state serves one scan; make another k.look_back with another state"
    with refused(ConfigError, message):
        cta.scan(cta.index)
    with refused(ConfigError, "look_back: threads must be a multiple of 32, got 48"):
        builder(threads=48).look_back(builder().pointer("STATE", u64))
