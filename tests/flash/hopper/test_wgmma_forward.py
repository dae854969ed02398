"""The forward kernel for Hopper: its own PTX, run on the interpreter with the sanitizers on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance import KINDS, arrays_of, check
from kernel_runs import run_forward

from flash.contract.catalogue import emit
from flash.problem.tensor_maps import map_name, maps_of
from ptxgen.check.verify import verify
from ptxgen.interpreter import PCT

pytestmark = [pytest.mark.grid, pytest.mark.judged]

config_of = KINDS["wgmma f16"].config

Arrays = tuple[np.ndarray[Any, Any], ...]


# ------------------------------------------------------------------------------------------
# semantics


def test_infinity_in_the_last_tile_reaches_rows_that_see_all_of_it() -> None:
    # Rows from 64 on see every key: no tile of theirs is cut, but the last one is always masked.
    config = config_of(causal="top_left")
    q, k, v = arrays_of(config, 100, 64)
    v[..., -3, 2] = np.inf
    out, _, _ = run_forward(config, (q, k, v), sanitize=True)
    assert np.isposinf(out[..., 61:, 2]).all()
    assert np.isfinite(out[..., :61, 2]).all()


@pytest.mark.slow
def test_views_of_a_larger_buffer_are_read_in_place() -> None:
    rng = np.random.default_rng(3)
    buffer = rng.standard_normal((2, 40, 3, 2, 24)).astype(np.float16)  # batch, seq, qkv, head, dim
    q, k, v = (buffer[:, :, n].transpose(0, 2, 1, 3) for n in range(3))
    check(config_of(24), (q, k, v))


# ------------------------------------------------------------------------------------------
# synchronisation, proofs


@pytest.mark.slow
def test_outputs_wait_for_queries_whose_memory_they_take() -> None:
    # 96 columns have another swizzle than 128, so that the rows of O lie elsewhere in the tile of Q.
    config = config_of(128, 96, block_q=128)
    check(config, arrays_of(config, 128, 40), schedule=PCT(1))


def test_the_tiling_says_what_the_kernel_has() -> None:
    for config in (config_of(), config_of(64, block_q=128, causal=True), config_of(96, 64, stages=3)):
        kernel = config.kernel()
        made = emit(kernel)
        (found,) = made.kernels
        assert not verify(made)
        assert found.threads == kernel.tiling.threads
        assert kernel.tiling.shared_bytes - 3072 < found.dynamic_shared_bytes <= kernel.tiling.shared_bytes
        assert [p.name for p in found.params[-4:]] == [map_name(array) for array in maps_of(kernel)]
