"""The gradients of the engine "compiled" against the float64 reference, and in the bits that it promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cpu_gradient_runs import NUMBERS, check, features_for, problem, run
from cpu_runs import CAUSAL, DTYPES, assert_same

from flash.cpu.engine_choice import engine_of
from flash.reference import attention_reference_gradients
from ptxgen.runtime.settings import COMPILED

pytestmark = [pytest.mark.grid, pytest.mark.judged, pytest.mark.usefixtures("compiled")]

FEATURES = [*NUMBERS, "alibi_slopes", "bias", "key_bias", "sink", "mask", "all"]


@pytest.mark.sample(40, gate=40)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 70), (70, 1), (40, 71), (71, 40), (5, 0)])
@pytest.mark.usefixtures("small_blocks")
def test_every_feature_is_as_accurate_as_dense_arithmetic(
    seq_q: int, seq_k: int, name: str, causal: Any, dtype: Any
) -> None:
    arguments = problem(seq_q, seq_k, d_v=8, heads=4, kv_heads=2, batch=2, dtype=dtype)
    arrays, how = features_for(name, (2, 4, seq_q, seq_k))
    check(*arguments, arrays, causal=causal, engine=engine_of(COMPILED), **how)


@pytest.mark.usefixtures("small_blocks")
def test_double_precision_is_left_to_numpy() -> None:
    arguments = problem(40, 56, heads=4, kv_heads=2, dtype=np.float64)
    assert_same(run(*arguments, engine=engine_of(COMPILED))[0], run(*arguments)[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["q", "k", "v", "dout"])
@pytest.mark.parametrize("name", ["nothing", "mask"])
@pytest.mark.usefixtures("small_blocks")
def test_a_bad_number_reaches_what_it_reaches_in_the_reference(name: str, where: str, bad: float) -> None:
    dout, dlse, q, k, v = problem(40, 40, heads=4, kv_heads=2)
    arrays, how = features_for(name, (1, 4, 40, 40))
    how["causal"] = True
    {"q": q, "k": k, "v": v, "dout": dout}[where][:, 1, 17] = bad
    result, _, _ = run(dout, dlse, q, k, v, arrays, engine=engine_of(COMPILED), **how)
    wanted = attention_reference_gradients(dout, q, k, v, dlse=dlse, **arrays, **how)
    for which, exact in zip("qkv", (wanted.dq, wanted.dk, wanted.dv), strict=True):
        np.testing.assert_array_equal(np.isfinite(result[which]), np.isfinite(exact), err_msg=which)


@pytest.mark.usefixtures("small_blocks")
def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flash.cpu.threads.WORTH_A_THREAD", 1)
    arguments = problem(40, 50, heads=6, kv_heads=2, batch=2)
    arrays, how = features_for("all", (2, 6, 40, 50))
    how["engine"] = engine_of(COMPILED)
    wanted, _, _ = run(*arguments, arrays, causal=True, threads=1, **how)
    for threads in (2, 5):
        assert_same(run(*arguments, arrays, causal=True, threads=threads, **how)[0], wanted)
