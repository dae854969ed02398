"""The forward kernel for Hopper: its own PTX, run on the interpreter with the sanitizers on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conformance import KINDS, arrays_of, check
from kernel_runs import run_forward

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


# ------------------------------------------------------------------------------------------
# synchronisation, proofs


@pytest.mark.slow
def test_outputs_wait_for_queries_whose_memory_they_take() -> None:
    # 96 columns have another swizzle than 128, so that the rows of O lie elsewhere in the tile of Q.
    config = config_of(128, 96, block_q=128)
    check(config, arrays_of(config, 128, 40), schedule=PCT(1))


@pytest.mark.parametrize("how", [{"window": (76, 31)}, {"causal": True}, {"window": (20, None)}])
def test_warpgroups_leave_out_the_tiles_that_their_rows_do_not_see(how: dict[str, Any]) -> None:
    # The second warpgroup of the last block has no rows: it walks as the last row does.
    config = config_of(block_q=128, tile=64 if "window" in how else 16, **how)
    check(config, arrays_of(config, 129, 205))
