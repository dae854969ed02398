"""Proofs, sanitizers, orders of warps and registers of the kernels of gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gradient_launches import bits, interpret, steps
from gradient_runs import KINDS, SETTINGS, SWEEPS, Case, case, features_of, judge
from kernel_runs import mostly_nightly, nightly, with_place, without

from flash.calls.step import Step
from flash.contract.gradients import auxiliary_build, emit_gradient, gradient_build
from flash.families.precision import HALF
from flash.gradients.checks import WRITTEN
from flash.kernels.sum_terms import SumConfig
from flash.operands.dtypes import DTYPES
from flash.problem.config import AttentionConfig
from flash.problem.gradient_choice import gradient_config, has_one_sweep
from flash.problem.gradient_tiles import GRADIENT_TILES, Tiles
from flash.problem.gradients import ELEMENTS, KEYS, SCORES, GradientConfig, owners_of
from ptxgen import ir
from ptxgen.errors import TrapError
from ptxgen.interpreter import PCT
from ptxgen.parse import parse
from ptxgen.runtime.assembler import Assembler
from ptxgen.target import target
from ptxgen.text import render

Array = np.ndarray[Any, Any]


def kernels(
    config: AttentionConfig,
    on: str | None = None,
    alignment: int = 16,
    *,
    with_dlse: bool = True,
    one_sweep: bool = False,
) -> list[GradientConfig]:
    """The kernels of a call in which every gradient is wanted, for the config's target or `on`."""
    on = on or config.target or "sm_80"
    wanted = config.differentiable
    others = [SCORES] * ("bias" in wanted) + [ELEMENTS] * (not {*wanted}.isdisjoint(config.aux_operands))
    owners = [*owners_of(one_sweep=one_sweep), *others]
    how = {"with_dlse": with_dlse, "wanted": wanted, "one_sweep": one_sweep}
    return [gradient_config(config, owner, target(on), alignment, **how) for owner in owners]


def _assert_proved(config: AttentionConfig, on: str | None = None, alignment: int = 16, **how: Any) -> None:
    for kernel in kernels(config, on, alignment, **how):
        built = gradient_build(kernel)
        assert built.proof.complete, (kernel.name, built.proof.unknown)
        assert not built.global_proof.unknown, (kernel.name, built.global_proof.unknown)
        assert not built.is_faulty, kernel.name


# What may be run in two sweeps and in one: kinds that have both.
_IN_SWEEPS = [
    (kind, sweeps)
    for kind in KINDS
    for sweeps in SWEEPS
    if sweeps == "two" or has_one_sweep(AttentionConfig(64, **KINDS[kind]))
]


def _runs_on(kind: str, on: str) -> bool:
    """Whether a target is one of those by which a kind of kernels is judged."""
    return (on == "sm_75") == (KINDS[kind].get("target") == "sm_75")


def _has_room(kind: str, head_dim: int, on: str) -> bool:
    """Whether the shared memory of a target holds the tiles of a kind of kernels."""
    of_tensor_cores = kind in ("tf32", "f32_grade") and on in ("sm_86", "sm_89", "sm_120")
    most = {"sm_75": 192 if kind == "ieee sm_75" else 256}.get(on, 256 if of_tensor_cores else 576)
    return head_dim <= most


@pytest.mark.nightly
@pytest.mark.parametrize("head_dim", [5, 8, 40, 128, 160, 192, 256, 320, 512])
@pytest.mark.parametrize(
    ("kind", "sweeps", "on"),
    [(*of, on) for of in _IN_SWEEPS for on in ("sm_75", "sm_80", "sm_86", "sm_90") if _runs_on(of[0], on)],
)
def test_kernels_of_every_head_dim_are_proved(head_dim: int, kind: str, sweeps: str, on: str) -> None:
    config, is_one = AttentionConfig(head_dim, causal=True, **KINDS[kind]), sweeps == "one"
    if not _has_room(kind, head_dim, on):
        return
    aligned = min(16, head_dim * config.element.nbytes & -(head_dim * config.element.nbytes))
    if not is_one or has_one_sweep(config):
        _assert_proved(config, on, aligned, one_sweep=is_one)


@pytest.mark.nightly
@pytest.mark.parametrize("alignment", [8, 4, 2])
def test_kernels_with_narrow_accesses_are_proved(alignment: int) -> None:
    _assert_proved(AttentionConfig(64, head_dim_v=40, dtype="f16", causal=True), alignment=alignment)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_the_kernel_that_sums_terms_is_proved(dtype: str) -> None:
    built = auxiliary_build(SumConfig(target("sm_80"), DTYPES[dtype]))
    assert built.proof.complete
    assert not built.global_proof.unknown
    assert not built.is_faulty


# ------------------------------------------------------------------------------------------
# registers

_HEAD_DIMS = [64, 96, 128, 192, 256]
# With f32 on one target of each size of shared memory, because these kernels take long to assemble.
_WIDE_ON = {"f16": ["sm_80", "sm_86", "sm_90", "sm_120"], "ieee": ["sm_86"], "f32_grade": ["sm_80", "sm_90"]}
_TARGETS = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_120"]
_ON_SLOW = [("f16", "two", 128, "sm_90"), ("f16", "two", 128, "sm_90a"), ("f16", "one", 64, "sm_90a")]
_ON_SLOW += [("f16 sm_75", "two", 64, "sm_75")]


@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("kind", "sweeps", "head_dim", "on"),
    [
        pytest.param(*of, marks=pytest.mark.slow) if of in _ON_SLOW else nightly(*of)
        for of in [
            *((*of, d, on) for of, d, on in itertools.product(_IN_SWEEPS, _HEAD_DIMS, _TARGETS)),
            *((kind, "two", 512, on) for kind, targets in _WIDE_ON.items() for on in targets),
            *(("f16", "two", 320, on) for on in ("sm_80", "sm_86")),
        ]
        if not of[0].startswith("wgmma")  # the kinds f16 and bf16 on sm_90a
        if _runs_on(of[0], of[3]) and _has_room(of[0], of[2], of[3])
        if of[1] == "two" or has_one_sweep(AttentionConfig(of[2], **KINDS[of[0]]))
    ],
)
def test_no_kernel_with_default_tiles_spills(
    kind: str, sweeps: str, head_dim: int, on: str, assembler: Assembler
) -> None:
    spilled = {}
    for name, features in SETTINGS.items():
        config = AttentionConfig(head_dim, **KINDS[kind], **features)
        for kernel in kernels(config, on, one_sweep=sweeps == "one"):
            assembly = assembler.assemble(render(emit_gradient(kernel)), on)
            usage = assembly.kernel(kernel.name)
            if usage.spill_store_bytes + usage.spill_load_bytes + usage.stack_bytes:
                spilled[name, kernel.owner] = usage
            assert assembly.advisories == ()
    assert not spilled


_PAIRS = itertools.combinations(sorted({*SETTINGS} - {"several", "varlen"}), 2)


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.parametrize(
    "names", [pair for pair in _PAIRS if pair != ("bias", "key_bias")]
)  # refused together
@pytest.mark.parametrize("dims", [(64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)])
def test_no_kernel_with_wgmma_and_two_features_spills(
    names: tuple[str, str], dims: tuple[int, int], assembler: Assembler
) -> None:
    settings = {**SETTINGS[names[0]], **SETTINGS[names[1]]}
    config = AttentionConfig(dims[0], head_dim_v=dims[1], dtype="f16", target="sm_90a", **settings)
    for kernel in kernels(config):
        if kernel.has_wgmma:
            assembly = assembler.assemble(render(emit_gradient(kernel)), "sm_90a")
            usage = assembly.kernel(kernel.name)
            assert (usage.spill_store_bytes, usage.stack_bytes, assembly.advisories) == (0, 0, ())


# ------------------------------------------------------------------------------------------
# sanitizers and orders of the warps


def _normal(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


WATCHED: dict[str, dict[str, Any]] = {
    "causal": {"causal": True, "heads": 2},
    "one stage": {"head_dim": 160, "head_dim_v": 136, "seq_q": 40, "seq_k": 70},
    "window": {"window": (20, 7), "with_dlse": True},
    "rows without keys": {"seq_q": 150, "seq_k": 20, "causal": True},
    "rows without keys, one stage": {"seq_q": 150, "seq_k": 20, "head_dim": 136, "causal": True},
    "keys without rows": {"seq_q": 20, "seq_k": 150, "causal": "top_left"},
    "keys without rows, one stage": {"seq_q": 20, "seq_k": 150, "head_dim": 136, "causal": "top_left"},
    "bias": {"bias": "f32", "heads": 2, "batch": 2, "arrays": {"bias": _normal(70, 90)}},
    "aux": {"heads": 2, **features_of()["aux"]},
    "no queries": {"seq_q": 0, "seq_k": 20},
    "no queries, one stage": {"seq_q": 0, "seq_k": 20, "head_dim": 136},
    "several": {
        "causal": True,
        "alibi": True,
        "sink": True,
        "key_bias": "f32",
        "softcap": 2.0,
        "dropout": 0.2,
        "arrays": {"alibi_slopes": np.abs(_normal(1)), "sink": _normal(1, 1), "key_bias": _normal(1, 90)},
    },
    "keys of several warps": {
        "head_dim": 72,
        "head_dim_v": 136,
        "heads": 2,
        "causal": True,
        "key_bias": "f32",
        "dropout": 0.2,
        "arrays": {"key_bias": _normal(1, 90)},
    },
    "columns of several warps": {
        "head_dim": 264,
        "head_dim_v": 8,
        "seq_q": 36,
        "seq_k": 40,
        "causal": True,
        "key_bias": "f32",
        "sink": True,
        "arrays": {"key_bias": _normal(1, 40), "sink": _normal(1, 1)},
    },
    "columns of several warps, bias": {
        "head_dim": 8,
        "head_dim_v": 512,
        "heads": 2,
        "seq_q": 20,
        "seq_k": 40,
        "bias": "f32",
        "arrays": {"bias": _normal(20, 40)},
    },
    "wgmma": {"target": "sm_90a", "head_dim": 64, "seq_q": 270, "seq_k": 300, "with_dlse": True},
    "wgmma, causal": {"target": "sm_90a", "causal": True, "heads": 2, "seq_q": 300, "seq_k": 200},
    "wgmma, window": {"target": "sm_90a", "window": (120, 7), "seq_q": 290, "seq_k": 400},
    "wgmma, rows without keys": {"target": "sm_90a", "seq_q": 270, "seq_k": 20, "causal": True},
    "wgmma, keys without rows": {"target": "sm_90a", "seq_q": 20, "seq_k": 270, "causal": "top_left"},
    "wgmma, several": {
        "target": "sm_90a",
        "head_dim": 72,
        "head_dim_v": 40,
        "seq_q": 140,
        "causal": True,
        "alibi": True,
        "sink": True,
        "key_bias": "f32",
        "softcap": 2.0,
        "dropout": 0.2,
        "arrays": {"alibi_slopes": np.abs(_normal(1)), "sink": _normal(1, 1), "key_bias": _normal(1, 90)},
    },
    "sm_75": {"target": "sm_75", "causal": True, "heads": 2},
    "sm_75, no tile in registers": {"target": "sm_75", "head_dim": 136, "heads": 2, "causal": True},
    "sm_75, rows without keys": {"target": "sm_75", "seq_q": 150, "seq_k": 20, "causal": True},
    "sm_75, keys without rows": {"target": "sm_75", "seq_q": 20, "seq_k": 150, "causal": "top_left"},
    "sm_75, narrow": {"target": "sm_75", "head_dim": 5, "head_dim_v": 7, "with_dlse": True},
    "sm_75, ieee": {"target": "sm_75", "dtype": "f32", "head_dim": 40, "causal": True, "heads": 2},
    "f32_grade": {"dtype": "f32", "precision": "f32_grade", "causal": True},
    "tf32": {"dtype": "f32", "precision": "tf32", "head_dim": 160, "seq_q": 20, "seq_k": 40},
    "f32_grade, many columns": {
        "dtype": "f32",
        "precision": "f32_grade",
        "head_dim": 136,
        "seq_q": 40,
        "seq_k": 70,
    },
    "ieee": {"dtype": "f32", "causal": True, "heads": 2, "seq_q": 150},
    "ieee, two slices": {"dtype": "f32", "head_dim": 136, "seq_q": 40, "seq_k": 70},
}


_QUICK = [("causal", "two"), ("sm_75", "two")]
_SLOW = [
    ("several", "two"),
    ("columns of several warps", "two"),
    ("sm_75", "one"),
    ("causal", "one"),
    ("wgmma, causal", "two"),
    ("wgmma, causal", "one"),
]


@pytest.mark.parametrize(
    ("name", "sweeps"),
    [
        *_QUICK,
        *(pytest.param(*of, marks=pytest.mark.slow) for of in _SLOW),
        *(nightly(*of) for of in itertools.product(WATCHED, SWEEPS) if of not in [*_QUICK, *_SLOW]),
    ],
)
def test_the_sanitizers_report_nothing(name: str, sweeps: str) -> None:
    of = case(**{**({} if sweeps == "two" else {"seq_k": 90}), **WATCHED[name]}, deterministic=SWEEPS[sweeps])
    watched = "all,determinism" if of.deterministic else "all"
    assert interpret(of, sanitize=watched) == interpret(of)


# The tiles of wide heads differ in how many warps own the same keys, and in stages.
_TILES_OF_WIDE = {
    (256, "sm_80"): (64, 64, 8, 1, 4),
    (256, "sm_90"): (64, 64, 8, 2, 4),
    (256, "sm_120"): (32, 32, 4, 1, 2),
    (384, "sm_80"): (32, 32, 6, 2, 3),
    (384, "sm_120"): (32, 16, 6, 1, 3),
    (512, "sm_80"): (32, 32, 8, 1, 4),
    (512, "sm_90"): (32, 32, 8, 2, 4),
    (512, "sm_120"): (16, 16, 4, 1, 4),
}


@pytest.mark.parametrize(("of", "tiles"), _TILES_OF_WIDE.items())
def test_the_tiles_of_wide_heads_are_those_that_fit(of: tuple[int, str], tiles: tuple[int, ...]) -> None:
    t = gradient_config(AttentionConfig(of[0], dtype="f16"), KEYS, target(of[1]), 16).mma
    assert (t.block, t.tile, t.warps, t.stages, t.warps_of_rows) == tiles


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["keys of several warps", "columns of several warps"])
@pytest.mark.parametrize("on", ["sm_80", "sm_90", "sm_120"])
def test_the_sanitizers_report_nothing_on_any_tiles_of_wide_heads(name: str, on: str) -> None:
    of = case(**WATCHED[name])
    result = interpret(of, on)
    assert interpret(of, on, sanitize="all") == result
    assert interpret(of, on, sanitize="all", schedule=PCT(1, apart=True)) == result


@pytest.mark.slow
def test_warps_that_pass_weights_on_give_the_bits_of_those_that_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of, by_columns = case(40, 70, 136, 72), GRADIENT_TILES[KEYS, HALF.name]
    tiles = [Tiles(64, 32, 4, 1), *by_columns[256][1:]]
    assert [each.across for each in tiles] == [1, 4, 2]
    result = []
    for each in tiles:
        monkeypatch.setitem(by_columns, 256, (each,))
        result.append(interpret(of))
    assert result[1:] == result[:-1]


_MANY_ORDERS = ["aux", "sm_75", "causal", "several", "bias", "wgmma, causal", "wgmma, several"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name in WATCHED for seed in range(20 if name in _MANY_ORDERS else 3)]
)
def test_every_order_of_the_warps_gives_the_same_bits(name: str, seed: int) -> None:
    of = case(**WATCHED[name])
    schedule = PCT(seed, apart=seed % 2 == 1)
    assert interpret(of, sanitize="all", schedule=schedule) == interpret(of)


def _in_turns(of: Case, seed: int) -> dict[str, bytes]:
    """What the launches of a case write if their CTAs run one after another in an order drawn at random,
    on a machine of its own each.
    """
    launches, written = steps(of)
    for step in launches:
        ctas = step.plan.grid[0]
        for number in np.random.default_rng(seed).permutation(ctas):
            step.interpret(with_place(step.build.module, int(number), ctas), grid=(1, 1, 1))
    return bits(written)


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_nightly(WATCHED, ["causal", "aux"]))
def test_every_order_of_the_ctas_gives_the_same_bits(name: str) -> None:
    of = case(**WATCHED[name])
    assert _in_turns(of, 1) == interpret(of)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("features", ["bottom_right", "window", "softcap", "score_mod"])
def test_a_batch_item_has_the_same_bits_alone(kind: str, features: str) -> None:
    settings = {"heads": 4, "kv_heads": 2, "with_dlse": True, **KINDS[kind], **SETTINGS[features]}
    of = case(70, 90, 16, batch=3, **settings)
    every = of.run()
    for b in range(3):
        own = {name: getattr(of, name)[b : b + 1] for name in ("dout", "q", "k", "v", "dlse")}
        for part, whole in zip(replace(of, **own).run()[:3], every[:3], strict=True):
            np.testing.assert_array_equal(part, whole[b : b + 1])


_OF_FOUR_BLOCKS: dict[str, Any] = {"seq_q": 10, "seq_k": 200, "head_dim": 8, "deterministic": False}


def _largest_partial_sums() -> Array:
    """The sums of the magnitudes of what keys add to dQ before its scale."""
    of = case(**_OF_FOUR_BLOCKS)
    (out, lse), scale = of.forward(), of.config.scale
    q, k, v, dout = (x.astype(np.float64) for x in (of.q, of.k, of.v, of.dout))
    weights = np.exp(scale * q @ k.swapaxes(2, 3) - lse[..., None])
    gradients = weights * (dout @ v.swapaxes(2, 3) - (dout * out).sum(axis=3)[..., None])
    result: Array = np.abs(gradients) @ np.abs(k)
    return result


def _of_one_sweep(**how: Any) -> tuple[dict[str, Array], dict[str, Array]]:
    """What one sweep writes for four blocks of keys that add to the same rows of dQ: the numbers that
    atomics sum, and all others.
    """
    of = case(**_OF_FOUR_BLOCKS)
    launches, written = steps(of)
    for step in launches:
        step.interpret(**how)
    judge(of, {n: written[f"d{n}"] for n in "qkv"}, *of.forward())
    of_atomics = {name: written.pop(name) for name in ("dq", "dQ_sums")}
    return of_atomics, written


@pytest.mark.nightly
def test_every_order_of_ctas_gives_the_same_gradients_but_for_the_rounding_of_dq() -> None:
    sums, others = _of_one_sweep()
    orders = [_of_one_sweep(sanitize="all", schedule=PCT(seed, apart=True)) for seed in range(3)]
    assert any(result["dQ_sums"].tobytes() != sums["dQ_sums"].tobytes() for result, _ in orders)
    for result, same in orders:
        assert bits(same) == bits(others)
        # Three sums of four terms, each rounded, in both orders.
        error = np.abs(result["dQ_sums"] - sums["dQ_sums"])
        assert (error <= 6 * 2.0**-24 * 1.01 * _largest_partial_sums()).all()


@pytest.mark.interpreter
def test_sums_of_dq_race_unless_they_are_atomic() -> None:
    of = case(20, 90, 8, deterministic=False)
    for step in steps(of)[0]:
        text = step.build.text
        if "red.global" not in text:
            step.interpret()
            continue
        plain = parse(text.replace("red.global.add.f32", "st.global.f32"))
        with pytest.raises(TrapError, match="race"):
            step.interpret(plain, sanitize="all")
        return
    raise AssertionError("no launch adds")


@pytest.mark.parametrize(
    ("kind", "head_dim", "on", "added"),
    [
        pytest.param("f16", 16, "sm_90", "red.global.add.v2.f32", marks=pytest.mark.slow),
        pytest.param("f16", 16, "sm_80", "red.global.add.f32", marks=pytest.mark.nightly),
        pytest.param("f16", 5, "sm_90", "red.global.add.f32", marks=pytest.mark.nightly),
        pytest.param("tf32", 8, "sm_90", "red.global.add.v4.f32", marks=pytest.mark.nightly),
        pytest.param("tf32", 6, "sm_120", "red.global.add.v2.f32", marks=pytest.mark.nightly),
        pytest.param("f32_grade", 40, "sm_100", "red.global.add.v4.f32", marks=pytest.mark.nightly),
    ],
)
def test_neighbouring_columns_are_added_at_once_where_the_target_can(
    kind: str, head_dim: int, on: str, added: str
) -> None:
    of = case(20, 90, head_dim, deterministic=False, **KINDS[kind], target=on)
    launches, written = steps(of, on)
    for step in launches:
        step.interpret(sanitize="all")
        if step.build.kernel.name.startswith("attention_gradient_keys"):
            opcodes = {s.opcode for s in step.build.kernel.body if isinstance(s, ir.Instr)}
            assert [o for o in opcodes if o.startswith("red")] == [added]
    judge(of, {n: written[f"d{n}"] for n in "qkv"}, *of.forward())


# ------------------------------------------------------------------------------------------
# memory


@pytest.mark.parametrize(
    "name", [pytest.param("several", marks=pytest.mark.slow), *map(nightly, ("nothing", "alibi", "key_bias"))]
)
def test_memory_beside_the_arrays_grows_as_the_sequences_do(name: str) -> None:
    def elements(seq: int) -> int:
        arrays = {"alibi_slopes": _normal(1), "sink": _normal(1), "key_bias": _normal(1, seq)}
        settings = SETTINGS[name]
        arguments = {n: a for n, a in arrays.items() if settings.get(n.removesuffix("_slopes"))}
        of = case(seq, seq, arrays=arguments, **settings)
        _, written = steps(of)
        return sum(array.size for n, array in written.items() if n not in (*WRITTEN, *of.wanted))

    assert 0 < elements(40) * 2 == elements(80)


# ------------------------------------------------------------------------------------------
# faults

_SYNCHRONISING = (
    "bar.sync",
    "bar.warp.sync",
    "cp.async.wait_group",
    "cp.async.commit_group",
    "cp.async.wait_all",
)
# Problems of one config each: at least two tiles on both sides, heads that share keys, hidden keys, rows
# without keys and keys without rows, whose sums pass through memory that copies of keys may still fill.
FAULTY: dict[str, list[dict[str, Any]]] = {
    "one stage": [
        {"seq_q": seq_q, "seq_k": seq_k, "head_dim": 136, "heads": 2, "causal": True}
        for seq_q, seq_k in ((70, 70), (150, 20), (0, 20))
    ],
    "two stages": [
        {"seq_q": seq_q, "seq_k": seq_k, "heads": 2, "causal": True}
        for seq_q, seq_k in ((200, 200), (150, 20))
    ],
    **{
        f"sm_75, head_dim {head_dim}": [
            {"target": "sm_75", "seq_q": seq_q, "seq_k": seq_k, "head_dim": head_dim, "causal": True}
            for seq_q, seq_k in ((70, 70), (150, 20), (0, 20))
        ]
        for head_dim in (16, 136)  # whose next tiles wait in registers, and do not
    },
    "no mask": [
        {"seq_q": seq_q, "seq_k": seq_k, "heads": 2} for seq_q, seq_k in ((130, 150), (70, 0), (0, 70))
    ],
    "bias": [
        {"seq_q": seq_q, "seq_k": seq_k, "heads": 2, "bias": "f32", "arrays": {"bias": _normal(seq_q, seq_k)}}
        for seq_q, seq_k in ((130, 70), (70, 0))
    ],
}


def _synchronising(step: Step) -> Iterator[int]:
    """The barriers, waits and commits of a launch."""
    for at, s in enumerate(step.build.kernel.body):
        if isinstance(s, ir.Instr) and s.opcode in _SYNCHRONISING:
            yield at


def _is_noticed(of: Case, entry: str, at: int) -> bool:
    """Whether the sanitizers notice that a kernel has no statement `at`."""
    for step in steps(of)[0]:
        if step.build.kernel.name != entry:
            step.interpret()
            continue
        try:
            step.interpret(without(step.build.module, at), sanitize="all")
        except TrapError as error:
            return any(word in str(error) for word in ("race", "pending", "uninitialised"))
    return False


def faults(name: str, *, deterministic: bool = True) -> Iterator[str]:
    """The statements without which the sanitizers notice nothing in any problem of a config."""
    problems = [case(**how, deterministic=deterministic) for how in FAULTY[name]]
    launches = {step.build.kernel.name: step for of in problems for step in steps(of)[0]}
    for entry, step in launches.items():
        for at in _synchronising(step):
            if not any(_is_noticed(of, entry, at) for of in problems):
                yield f"{entry}: {step.build.kernel.body[at]}"


@pytest.mark.interpreter
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "sweeps"), [of for of in itertools.product(FAULTY, SWEEPS) if of != ("bias", "one")]
)
def test_no_barrier_wait_or_commit_can_be_left_out(name: str, sweeps: str) -> None:
    assert not list(faults(name, deterministic=SWEEPS[sweeps]))
