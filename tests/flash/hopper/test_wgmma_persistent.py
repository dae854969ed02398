"""The forward kernel for Hopper with CTAs that take several parts of the problem, one after another: its
own PTX, run with the sanitizers on, beside the kernel with a CTA for each part.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from device_arrays import without_assembler
from fake_driver import FakeDevice
from fake_gpu import Machine
from judge import assert_attention_is_accurate
from kernel_runs import Problem, nightly, random_operands, run_forward, without

from flash import AttentionConfig, AttentionKernel
from flash.contract.catalogue import build
from flash.error_bound import arithmetic_of_config
from flash.families.wgmma import WgmmaTiling
from flash.launch.checks import check
from flash.launch.kernel_choice import kernel_of
from flash.launch.key_splits import OVERHEAD
from flash.launch.scheduler_choice import (
    _CLEARLY,
    _OF_BLOCK,
    _OVERLAPPED,
    HIDDEN,
    Device,
    _mirrored_ends_first,
    width_of_sections,
)
from flash.problem.kernel_config import KernelConfig
from ptxgen import ir
from ptxgen.arrays.views import view
from ptxgen.errors import ConfigError, TrapError
from ptxgen.interpreter import PCT
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend

pytestmark = [pytest.mark.grid, pytest.mark.judged]

SMALL: dict[str, Any] = {"dtype": "f16", "target": "sm_90a", "tile": 16, "block_q": 64, "return_lse": True}


def config_of(head_dim: int = 16, head_dim_v: int | None = None, **how: Any) -> AttentionConfig:
    return AttentionConfig(head_dim, head_dim_v, **{**SMALL, "scheduler": "static", **how})


def kernel(config: AttentionConfig, *, apart: bool = True) -> KernelConfig:
    """The kernel, of which O leaves through a tile of its own (`apart`), besides two of Q, or through the one
    of Q.
    """
    built = config.kernel()
    assert isinstance(built.tiling, WgmmaTiling)
    assert built.scheduler == config.scheduler
    tiling = replace(built.tiling, separate_output=apart, query_stages=1 + apart)
    return replace(built, tiling=tiling)


def arrays_of(config: AttentionConfig, seq_q: int, seq_k: int, **sizes: int) -> Any:
    many = {"batch": 2, "heads": 2, "kv_heads": 1, **sizes}
    return Problem(seq_q, seq_k, config.head_dim, config.value_dim, **many).arrays(dtype=np.float16)


def bits(found: Any) -> tuple[Any, Any]:
    """The bits of O and LSE."""
    return found[0].view(np.uint16), found[1].view(np.uint32)


def assert_same_as_grid(config: AttentionConfig, of: KernelConfig, arrays: Any, ctas: int, **how: Any) -> Any:
    """The results of a run with the bits of the kernel with a CTA for each part."""
    shared = {name: how.pop(name) for name in ("operands", "dropout_seed") if name in how}
    result = run_forward(config, arrays, kernel=of, ctas=ctas, sanitize=True, **shared, **how)
    grid = replace(config, scheduler="grid").kernel()
    wanted = run_forward(config, arrays, kernel=replace(grid, packed=of.packed), **shared)
    for one, other in zip(bits(result), bits(wanted), strict=True):
        np.testing.assert_array_equal(one, other)
    return result


# ------------------------------------------------------------------------------------------
# results


@pytest.mark.slow
@pytest.mark.sample(2, gate=6)
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("ctas", [1, 2, 3, 12, 14])
@pytest.mark.parametrize("block_q", [64, 128])
@pytest.mark.parametrize("scheduler", ["static", "mirrored", "ticket"])
@pytest.mark.parametrize("causal", [False, "bottom_right", "top_left"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(150, 90), (150, 40), (65, 100)])
def test_any_number_of_ctas_computes_all_parts(
    seq_q: int, seq_k: int, causal: Any, scheduler: str, block_q: int, ctas: int, apart: bool
) -> None:
    config = config_of(causal=causal, block_q=block_q, scheduler=scheduler)
    arrays = arrays_of(config, seq_q, seq_k)
    out, lse, _ = assert_same_as_grid(config, kernel(config, apart=apart), arrays, ctas)
    arithmetic = arithmetic_of_config(config)
    assert_attention_is_accurate(
        out, lse, *arrays, arithmetic=arithmetic, softmax_scale=config.scale, causal=causal
    )


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "dims", [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (64, 128), (40, 72)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_every_width_is_right_with_its_default_tiles(dims: tuple[int, int], causal: bool) -> None:
    config = config_of(*dims, tile="auto", block_q="auto", causal=causal)
    arrays = arrays_of(config, 145, 2 * config.kernel().tiling.tile + 5, batch=1)
    assert_same_as_grid(config, config.kernel(), arrays, 3)


FEATURES: dict[str, dict[str, Any]] = {
    "window": {"window": (30, 25)},
    "left": {"window": (20, None), "softcap": 1.5},
    "mask": {"mask": True, "sink": True},
    "alibi": {"alibi": True, "bias": "f32"},
    "dropout": {"dropout": 0.3, "causal": True},
    "scale": {"softmax_scale": -0.7, "causal": True},
    "packed": {"pack_gqa": True, "causal": True},
    "stages": {"stages": 3, "block_q": 192},
}


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("scheduler", ["static", "ticket"])
@pytest.mark.parametrize("apart", [True, False])
def test_every_feature_is_that_of_the_grid(name: str, scheduler: str, apart: bool) -> None:
    config = config_of(**FEATURES[name], scheduler=scheduler)
    problem = Problem(70, 71, 16, 16, batch=2, heads=2, kv_heads=1)
    operands = random_operands(config, problem)
    more = {"dropout_seed": 5} if "dropout" in FEATURES[name] else {}
    arrays = problem.arrays(dtype=np.float16)
    assert_same_as_grid(config, kernel(config, apart=apart), arrays, 3, operands=operands, **more)


@pytest.mark.parametrize("scheduler", ["static", pytest.param("ticket", marks=pytest.mark.slow)])
def test_nan_of_one_part_does_not_reach_the_next(scheduler: str) -> None:
    config = config_of(causal=True, scheduler=scheduler)
    q, k, v = arrays_of(config, 70, 70, heads=1)
    v[0, ..., -20, 3], v[1, ..., 4, 5], v[1, ..., -1, 2] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        out, _, _ = assert_same_as_grid(config, kernel(config), (q, k, v), 1, schedule=PCT(0))
    assert np.isnan(out[0, 0, 50:, 3]).all()
    assert np.isfinite(np.delete(out[0], 3, -1)).all()


@pytest.mark.slow
@pytest.mark.sample(1, gate=1)
@pytest.mark.parametrize("how", [{}, {"causal": True}, {"pack_gqa": True}], ids=str)
@pytest.mark.parametrize("scheduler", ["static", "ticket"])
def test_packed_sequences_are_dealt_too(
    how: dict[str, Any], scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths_q, lengths_k = (0, 64, 1, 63, 130), (5, 40, 0, 17, 33)
    arguments = {
        f"cu_seqlens_{n}": np.cumsum([3, *of]).astype(np.int32)
        for n, of in (("q", lengths_q), ("k", lengths_k))
    }
    config = config_of(varlen=True, **how)
    rng = np.random.default_rng(0)
    shapes = ((270, 2, 16), (100, 1, 16), (100, 1, 16))
    q, k, v = (rng.standard_normal(s).astype(np.float16) for s in shapes)
    with monkeypatch.context() as patched:
        patched.setattr("flash.launch.calls.ctas_at_once", lambda *_: 2)
        result, wanted = (
            AttentionKernel(replace(config, scheduler=name)).launch(
                q, k, v, out=np.full_like(q, 7), backend="interpreter", **arguments
            )
            for name in (scheduler, "grid")
        )
    for one, other in zip(bits(result), bits(wanted), strict=True):
        rows = slice(3, 261) if one.ndim == 2 else slice(None)  # LSE is not written elsewhere
        np.testing.assert_array_equal(one[..., rows], other[..., rows])


# ------------------------------------------------------------------------------------------
# synchronisation, proofs


@pytest.mark.parametrize(
    ("seed", "block_q", "apart"),
    [
        *(pytest.param(seed, 128, False, marks=pytest.mark.slow) for seed in (0, 2)),
        *(nightly(seed, *how) for seed in range(1, 20) for how in ((64, True), (128, True), (128, False))),
    ],
)
def test_every_order_of_the_warps_gives_the_same_bits(seed: int, block_q: int, apart: bool) -> None:
    scheduler = ("static", "mirrored", "ticket")[seed % 3]
    config = config_of(causal=True, block_q=block_q, scheduler=scheduler)
    arrays = arrays_of(config, 150, 70, batch=1)
    assert_same_as_grid(config, kernel(config, apart=apart), arrays, 1 + seed % 3, schedule=PCT(seed))


def waits(module: ir.Module) -> list[int]:
    """The branches back that wait for a barrier in shared memory, as numbers of statements."""
    body = module.kernels[0].body
    return [
        at
        for at, one in enumerate(body)
        if isinstance(one, ir.Instr) and one.opcode == "bra" and "$wait" in str(one.operands[-1])
    ]


@pytest.mark.nightly
@pytest.mark.interpreter
@pytest.mark.parametrize("apart", [True, False])
def test_a_wait_that_is_left_out_is_noticed(apart: bool) -> None:
    config = config_of(causal=True)
    of = kernel(config, apart=apart)
    arrays, module = arrays_of(config, 100, 50, batch=1, heads=1), build(of).module
    result = waits(module)
    assert len(result) == 18
    for at in result:
        arguments = {"kernel": of, "ctas": 1, "sanitize": True, "schedule": PCT(0)}
        with pytest.raises(TrapError):
            run_forward(config, arrays, module=without(module, at), **arguments)


# ------------------------------------------------------------------------------------------
# launches


def test_a_gpu_gets_as_many_ctas_as_it_runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    without_assembler(monkeypatch)
    machine = Machine(FakeDevice(multiprocessors=3))
    config = AttentionConfig(16, dtype="f16", target="sm_90a", tile=64, block_q=128)
    q, k, v = arrays_of(config, 200, 50, heads=4, kv_heads=4)
    launched = AttentionKernel(config, cuda=CudaBackend(machine), cache=ModuleCache(None))
    said = launched.explain(q, k, v, backend="cuda")
    assert "grid:     3 CTAs, to which 16 blocks of queries are dealt (static)\n" in said
    result, wanted = (launched.launch(q, k, v, backend=backend) for backend in ("cuda", "cpu"))
    np.testing.assert_allclose(result.astype(np.float32), wanted.astype(np.float32), atol=4e-3)


@pytest.mark.slow
def test_a_gpu_gets_a_counter_that_is_cleared_before_each_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    without_assembler(monkeypatch)
    machine = Machine(FakeDevice(multiprocessors=3))
    config = AttentionConfig(
        16, dtype="f16", target="sm_90a", tile=64, block_q=128, causal=True, scheduler="ticket"
    )
    q, k, v = arrays_of(config, 200, 200, heads=4, kv_heads=4)
    launched = AttentionKernel(config, cuda=CudaBackend(machine), cache=ModuleCache(None))
    said = launched.explain(q, k, v, backend="cuda")
    assert "grid:     3 CTAs, to which 16 blocks of queries are dealt (ticket)\n" in said
    wanted = launched.launch(q, k, v, backend="cpu")
    for _ in range(2):
        result = launched.launch(q, k, v, backend="cuda")
        np.testing.assert_allclose(result.astype(np.float32), wanted.astype(np.float32), atol=4e-3)
    cleared = [call.arguments for call in machine.calls if call.name == "cuMemsetD8Async"]
    assert [call[1:3] for call in cleared] == [(0, 4)] * 2
    assert [one.values["tickets"] for one in machine.launches] == [call[0] for call in cleared]


@pytest.mark.slow
def test_where_each_part_has_a_cta_explain_says_why() -> None:
    def said(**how: Any) -> str:
        config = AttentionConfig(16, **{"dtype": "f16", "target": "sm_90a", **how})
        arrays = [x.astype(config.element.numpy) for x in arrays_of(config, 40, 50)]
        text = AttentionKernel(config).explain(*arrays, backend="interpreter")
        return (
            next(line for line in text.splitlines() if line.startswith("grid:")).removeprefix("grid:").strip()
        )

    assert (
        said(scheduler="static", pack_gqa=False) == "4 CTAs, to which 4 blocks of queries are dealt (static)"
    )
    assert said(pack_gqa=False) == said(scheduler="grid", pack_gqa=False) == "4 CTAs"
    of_wgmma = ", not static: CTAs take several blocks only with wgmma of f16 and bf16 and head_dim up to 256"
    assert said(scheduler="static", dtype="f32").endswith(of_wgmma)
    assert said(scheduler="static", target="sm_80").endswith(of_wgmma)
    of_splits = "8 CTAs, not mirrored: splits of the keys have CTAs of their own"
    assert said(scheduler="mirrored", pack_gqa=False, splits=2) == of_splits
    assert said(scheduler="grid", pack_gqa=False, splits=2) == "8 CTAs"


def test_the_rule_for_launches() -> None:
    narrow = {"dtype": "f16", "target": "sm_90a", "pack_gqa": False, "block_q": 128}

    def scheduler(seq_q: int, cache_bytes: int = 1 << 20, multiprocessors: int = 4, **how: Any) -> str:
        config = AttentionConfig(64, **{**narrow, **how})
        q, k, v = (view(np.zeros((1, 2, n, 64), np.float16), "array") for n in (seq_q, 512, 512))
        device = Device(multiprocessors, cache_bytes)
        return kernel_of(config, check(config, q, k, v, None), device=device).scheduler

    # 2, 4 and 6 blocks, of which 4 run at once.
    assert [scheduler(n) for n in (128, 256, 384)] == ["grid", "grid", "static"]
    assert [scheduler(n, causal="top_left") for n in (256, 384)] == ["grid", "mirrored"]
    # K and V of a head are 128 KiB. Of 8 blocks, with 1 to 4 tiles each, five run at once: in rounds of
    # 4, 4, 3, 3, 2 and 2, 1, 1 tiles they end even, and with one head after the other, 4, 3, 2, 1, 4, they do
    # not.
    assert [scheduler(512, n << 10, 5, causal="top_left") for n in (341, 342)] == ["grid", "mirrored"]
    assert scheduler(9999, window=(9, 9)) == "grid"
    assert [scheduler(9999, scheduler="grid"), scheduler(9999, target="sm_90")] == ["grid", "grid"]
    assert [scheduler(9, scheduler="static"), scheduler(9, scheduler="static", causal=True)] == ["static"] * 2
    with pytest.raises(ConfigError, match="'static', 'mirrored', 'ticket', got 'queue'"):
        AttentionConfig(64, scheduler="queue")  # type: ignore[arg-type]


@pytest.mark.parametrize("multiprocessors", [7, 132])
@pytest.mark.parametrize("width", [1, 3, 40])
def test_the_rule_chooses_what_ends_first_when_every_part_is_dealt(multiprocessors: int, width: int) -> None:
    kernel, heads, misses = config_of(causal=True, block_q=128, tile=128).kernel(), 40, []
    for seq in range(128, 8192, 384):
        parts = [(seq + 127) // 128 - n for n in range((seq + 127) // 128)]

        def gain(of_block: float, hidden: float, widths: range, parts: list[int] = parts) -> float:
            """The time of a grid divided by that of mirrored rounds, with the best of these widths."""

            def in_order(width: int) -> list[float]:
                return [
                    of_block + n
                    for at in range(0, heads, width)
                    for n in parts
                    for _ in range(min(width, heads - at))
                ]

            ends: list[float] = []  # of a grid: who is done takes the next part
            for cost in in_order(width):
                now = heapq.heappop(ends) if len(ends) == multiprocessors else 0
                heapq.heappush(ends, now + cost)
            mirrored = []
            for one in widths:
                dealt = [0.0] * multiprocessors
                for n, cost in enumerate(in_order(one)):
                    wave, slot = divmod(n, multiprocessors)
                    dealt[-1 - slot if wave % 2 else slot] += cost - (hidden if wave else 0)
                mirrored.append(max(dealt))
            return max(ends) / min(mirrored)

        timed = gain(OVERHEAD, HIDDEN * OVERHEAD, range(width, width + 1))
        modelled = _CLEARLY * gain(_OF_BLOCK, _OVERLAPPED, range(1, width + 1))
        best = max(timed, modelled)
        if _mirrored_ends_first(kernel, (seq, seq, 1), heads, width, multiprocessors) != (best >= 1):
            misses.append(best)
    assert all(0.95 < gain < 1.05 for gain in misses), misses


def test_the_contract_says_how_many_parts_there_are() -> None:
    contract = build(AttentionConfig(64, dtype="f16", target="sm_90a", scheduler="static").kernel()).contract
    assert contract["grid"]["x"] == "ctas"
    parts = {"times": [{"ceil_div": ["seq_q", 192]}, "heads", "batch"]}
    assert contract["sizes"]["parts"] == {"least": 1, "most": 2**31 - 1, "equal": parts}
    assert [p["kind"] for p in contract["parameters"] if p["name"] == "parts"] == ["size"]
    assert any(
        line.startswith("block is exactly as given, and the batch is known")
        for line in contract["constraints"]
    )


def test_the_contract_of_tickets_has_a_counter() -> None:
    contract = build(AttentionConfig(64, dtype="f16", target="sm_90a", scheduler="ticket").kernel()).contract
    (counter,) = [p for p in contract["parameters"] if p["name"] == "tickets"]
    assert counter["meaning"] == (
        "device address of a counter, 0 before a launch and again behind it, read and written: i32 [1], dense"
    )
    assert contract["constraints"].count(
        "tickets is 0 before a launch; launches with one counter follow each other, and nothing else writes "
        "it meanwhile"
    )


@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_output_has_a_tile_of_its_own_where_shared_memory_has_room(head_dim: int) -> None:
    config = AttentionConfig(head_dim, dtype="bf16", target="sm_90a", scheduler="static")
    tiling = config.kernel().tiling
    assert tiling.separate_output == (head_dim <= 128)
    assert tiling.query_stages == 1 + (head_dim <= 128)


def test_sections_of_mirrored_rounds_are_as_wide_as_they_end_first() -> None:
    def width(scheduler: Any, cache_mib: int, **how: Any) -> int:
        config = AttentionConfig(
            128, dtype="f16", target="sm_90a", pack_gqa=False, causal=True, scheduler=scheduler, **how
        )
        zeros = np.broadcast_to(np.zeros((1, 1, 1, 1), np.float16), (16, 16, 1024, 128))
        x = view(zeros.copy(), "array")
        return width_of_sections(config.kernel(), check(config, x, x, x, None), Device(132, cache_mib << 20))

    # Three quarters of 60 MiB hold K and V of 90 heads, half a MiB each; with 88, all 256 end earlier.
    assert [width(name, 60) for name in ("grid", "static", "mirrored")] == [90, 90, 88]
    assert [width(name, 44) for name in ("grid", "mirrored")] == [66, 66]
    assert width("mirrored", 60, window=(500, None)) == 90


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_accesses_and_barriers_of_warpgroups_that_store_by_themselves_are_proved(
    head_dim: int, causal: bool
) -> None:
    config = AttentionConfig(head_dim, dtype="f16", target="sm_90a", causal=causal, scheduler="mirrored")
    built = build(config.kernel())
    assert built.proof.complete
    assert built.global_proof.complete
