"""The f32 forward kernel: its own PTX, run on the interpreter with the sanitizers on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from kernel_runs import Problem, mostly_nightly, nightly, run_forward

from flash.contract.catalogue import emit
from flash.families.choice import offered_tiles
from flash.problem.config import AttentionConfig
from ptxgen.interpreter.machine.lane_machine import LaneMachine
from ptxgen.target import TARGETS, target

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Arrays = tuple[np.ndarray[Any, Any], ...]
HEAD_DIMS = (1, 3, 16, 40, 64, 72, 80, 96, 111, 128, 160, 192, 256)


# ------------------------------------------------------------------------------------------
# semantics


def test_the_log_sum_exp_is_a_natural_logarithm() -> None:
    config = AttentionConfig(8, tile=16, block_q=16, return_lse=True)
    q, k, v = Problem(4, 10, 8, 8).arrays()
    _, lse, _ = run_forward(config, (np.zeros_like(q), k, v))
    np.testing.assert_allclose(lse, np.log(10.0), rtol=1e-6)


# ------------------------------------------------------------------------------------------ memory
# traffic


class Traffic:
    """Records what the machine is asked to move, by patching its memory methods."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shared_loads: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        self.bytes: Counter[str] = Counter()
        self.copying = False  # the machine may read by its own `load` what it copies
        load, store, copy = LaneMachine.load, LaneMachine.store, LaneMachine.copy_async

        def recorded_load(machine: Any, space: str, address: Any, type: Any, count: int) -> Any:
            active = np.asarray(machine.active())
            if space == "shared" and count == 4:
                self.shared_loads.append((np.asarray(address).copy(), active.copy()))
            if not self.copying:
                self.bytes[f"{space} read"] += int(active.sum()) * count * type.nbytes
            return load(machine, space, address, type, count)

        def recorded_store(machine: Any, space: str, address: Any, type: Any, values: Any) -> Any:
            active = np.asarray(machine.active())
            self.bytes[f"{space} written"] += int(active.sum()) * len(values) * type.nbytes
            return store(machine, space, address, type, values)

        def recorded_copy(machine: Any, dst: Any, src: Any, nbytes: int, src_nbytes: Any) -> Any:
            active = np.asarray(machine.active())
            size = np.broadcast_to(np.asarray(src_nbytes), active.shape)
            self.bytes["global read"] += int(size[active].sum())
            self.copying = True
            copy(machine, dst, src, nbytes, src_nbytes)
            self.copying = False

        monkeypatch.setattr(LaneMachine, "load", recorded_load)
        monkeypatch.setattr(LaneMachine, "store", recorded_store)
        monkeypatch.setattr(LaneMachine, "copy_async", recorded_copy)


@pytest.mark.interpreter
@pytest.mark.parametrize("name", ["sm_75", "sm_80"])
def test_each_input_is_read_once_for_each_query_block_and_each_output_written_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic = Traffic(monkeypatch)
    arrays = Problem(100, 70, 40, 24).arrays()
    config = AttentionConfig(40, 24, tile=32, block_q=32, return_lse=True, target=name)
    out, lse, _ = run_forward(config, arrays)
    q, k, v = arrays
    query_blocks = 4
    assert traffic.bytes["global read"] == q.nbytes + query_blocks * (k.nbytes + v.nbytes)
    assert traffic.bytes["global written"] == out.nbytes + lse.nbytes


@pytest.mark.interpreter
def test_tiles_that_the_causal_mask_hides_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(monkeypatch)
    arrays = Problem(128, 128, 16, 16).arrays()
    run_forward(AttentionConfig(16, causal=True, tile=32, block_q=32, return_lse=True), arrays)
    q, k, v = arrays
    visited = (1 + 2 + 3 + 4) / 4  # tiles of the four query blocks, of four tiles each
    assert traffic.bytes["global read"] == q.nbytes + visited * (k.nbytes + v.nbytes)


@pytest.mark.interpreter
@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "head_dim", mostly_nightly([16, 40, 64, 80, 96, 111, 128, 192, 256], [16, 40, 128, 256])
)
def test_wide_shared_loads_have_no_bank_conflicts(head_dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Eight lanes are served at a time (16 bytes each, 32 banks of 4 bytes): two of them conflict
    # when they want different addresses in the same group of four banks.
    traffic = Traffic(monkeypatch)
    for tile, block_q in offered_tiles(head_dim, head_dim, target("sm_80"))[::3]:
        config = AttentionConfig(head_dim, tile=tile, block_q=block_q, return_lse=True)
        run_forward(config, Problem(block_q, tile, head_dim, head_dim).arrays())
    assert traffic.shared_loads
    for address, active in traffic.shared_loads:
        for quarter, on in zip(address.reshape(-1, 8), active.reshape(-1, 8), strict=True):
            distinct = np.unique(quarter[on])
            assert len(np.unique(distinct // 16 % 8)) == len(distinct), distinct


@pytest.mark.interpreter
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["sm_75", nightly("sm_80"), nightly("sm_86"), "sm_90"])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_wide_shared_loads_of_the_default_tiles_take_two_requests(
    head_dim: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Four requests, of eight lanes each, become two where lanes n and n ^ 1, or n and n ^ 2, of the
    # whole warp want the same address; then sixteen lanes must not conflict
    # (flash/families/simt.py).
    traffic = Traffic(monkeypatch)
    config = AttentionConfig(head_dim, return_lse=True, target=name)
    tiling = config.kernel().tiling
    run_forward(config, Problem(tiling.block_q, tiling.tile, head_dim, head_dim).arrays())
    lane = np.arange(32)
    assert traffic.shared_loads
    for address, active in traffic.shared_loads:
        assert active.all()
        for warp in address.reshape(-1, 32):
            assert any((warp == warp[lane ^ other]).all() for other in (1, 2)), warp
            for half in warp.reshape(2, 16):
                distinct = np.unique(half)
                assert len(np.unique(distinct // 16 % 8)) == len(distinct), distinct


# ------------------------------------------------------------------------------------------ text


def test_the_version_is_the_lowest_that_has_everything_used() -> None:
    versions = {name: emit(AttentionConfig(64, target=name).kernel()).version for name in TARGETS}
    assert versions == {name: TARGETS[name].ptx for name in TARGETS}


def test_every_head_dim_has_tiles_on_every_target() -> None:
    for name in TARGETS:
        for head_dim in HEAD_DIMS:
            assert offered_tiles(head_dim, head_dim, target(name)), (name, head_dim)
