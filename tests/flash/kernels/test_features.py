"""Window, softcap, ALiBi, bias, mask and sink in one kernel of each kind of products: their own PTX, run
on the interpreter with the sanitizers on.

What every kernel does with them is in `test_conformance.py`, and the same features of the reference, of
numpy, of configs and of launches are tested where those are.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from conformance import FEATURES, KINDS, Array, arrays_of, assert_same_bits, check, judge, operands_of, run
from grids import pairwise
from kernel_runs import assert_no_spill, nightly, run_forward

from flash.problem.config import AttentionConfig
from ptxgen.runtime.assembler import Assembler

pytestmark = [pytest.mark.grid, pytest.mark.judged]

ONE_OF_EACH_KERNEL = pytest.mark.parametrize("kind", ["simt", "mma f32_grade", "mma f16"])
EVERY_DTYPE = pytest.mark.parametrize("kind", ["simt", "mma f16", "mma bf16"])
EVERY_CAUSAL = pytest.mark.parametrize("causal", [False, "bottom_right", "top_left"])


def two_heads(first: float, second: float) -> Array:
    return np.array([first, second], np.float32)


NUMBERS: list[tuple[dict[str, Any], dict[str, Array]]] = [
    *(({"window": window}, {}) for window in ((0, None), (7, None), (40, 3), (None, 0), (2, 60))),
    *(
        ({"softcap": cap, "softmax_scale": scale}, {})
        for cap in (2.0**-20, 0.01, 50.0, 2.0**20)
        for scale in (0.25, -3.0, 0.0, 20.0)
    ),
    *(({"alibi": True}, {"alibi_slopes": two_heads(x, 0.5)}) for x in (0.0, 2.0**-8, 3.0, -0.1)),
    *(({"sink": True}, {"sink": two_heads(x, 1.0)}) for x in (-80.0, 0.0, 30.0, 1e4, -1e30)),
]


@pytest.mark.sample(12, gate=36)
@pytest.mark.parametrize("kind", ["simt", "mma f32_grade", "mma f16", "mma bf16"])
@EVERY_CAUSAL
@pytest.mark.parametrize(("settings", "operands"), NUMBERS, ids=str)
def test_any_number_of_a_window_softcap_slope_or_sink_is_right(
    settings: dict[str, Any], operands: dict[str, Array], causal: Any, kind: str
) -> None:
    config = KINDS[kind].config(causal=causal, **settings)
    for seq_q, seq_k in ((150, 150), (10, 200), (200, 50)) if "window" in settings else ((30, 70), (70, 30)):
        check(config, arrays_of(config, seq_q, seq_k, heads=2), operands)


# ------------------------------------------------------------------------------------------
# windows


@pytest.mark.sample(2)
@ONE_OF_EACH_KERNEL
@pytest.mark.parametrize("seq", [(50, 50), (30, 70), (70, 30)])
def test_a_right_window_of_zero_is_causality(kind: str, seq: tuple[int, int]) -> None:
    causal, windowed = KINDS[kind].config(causal=True), KINDS[kind].config(window=(None, 0))
    arrays = arrays_of(causal, *seq, heads=2)
    assert_same_bits(run(causal, arrays, {}), run(windowed, arrays, {}))


@pytest.mark.slow
@pytest.mark.sample(2)
@ONE_OF_EACH_KERNEL
@EVERY_CAUSAL
@pytest.mark.parametrize("width", [70, 2**30 - 256])
def test_a_window_wider_than_everything_is_none(kind: str, causal: Any, width: int) -> None:
    windowed = KINDS[kind].config(causal=causal, window=(width, width))
    plain = KINDS[kind].config(causal=causal)
    for seq_q, seq_k in ((50, 70), (70, 50)):
        arrays = arrays_of(plain, seq_q, seq_k)
        # A right window has a loop of its own in the tensor-core kernel, with the same sums.
        assert_same_bits(run(plain, arrays, {}), run(windowed, arrays, {}))


@pytest.mark.sample(2)
@ONE_OF_EACH_KERNEL
def test_rows_whose_window_holds_no_key_give_zero_and_minus_infinity(kind: str) -> None:
    # Row i is at the position of key i - 60, and sees from 3 before to 5 behind it.
    config = KINDS[kind].config(window=(3, 5))
    out, lse = check(config, arrays_of(config, 80, 20))
    np.testing.assert_array_equal(out[:, :, :55], 0)
    np.testing.assert_array_equal(lse[:, :, :55], -np.inf)
    assert np.isfinite(lse[:, :, 55:]).all()
    # The other end: row i is at key i, of 20.
    below = KINDS[kind].config(window=(3, None), causal="top_left")
    _, lse = check(below, arrays_of(below, 80, 20))
    assert np.isfinite(lse[:, :, :23]).all()
    np.testing.assert_array_equal(lse[:, :, 23:], -np.inf)


@pytest.mark.sample(2)
@ONE_OF_EACH_KERNEL
def test_tiles_outside_the_window_are_not_read(kind: str) -> None:
    def sectors(**how: Any) -> int:
        config = KINDS[kind].config(return_lse=False, **how)
        _, _, result = run_forward(config, arrays_of(config, 96, 96), profile=True)
        actual = result.counters.global_sectors_read
        assert actual is not None
        return actual

    size = KINDS[kind].config().tile_request.block_q
    assert isinstance(size, int)
    one_tile = 2 * 16 * 16 * KINDS[kind].config().element.nbytes // 32  # of K, and of V
    skipped = 0
    for first_row in range(0, 96, size):
        seen = range(max(first_row - 10, 0), min(first_row + size + 5, 96))
        skipped += 6 - (-(-seen.stop // 16) - seen.start // 16)
    assert skipped > 0
    assert sectors() - sectors(window=(10, 5)) == skipped * one_tile


# ------------------------------------------------------------------------------------------
# scores: softcap, ALiBi, bias


@pytest.mark.sample(1, gate=3)
@ONE_OF_EACH_KERNEL
def test_a_cap_far_above_the_scores_does_next_to_nothing(kind: str) -> None:
    config = KINDS[kind].config(softcap=1e6)
    arrays = arrays_of(config, 20, 37)
    out, lse = run(config, arrays, {})
    judge(KINDS[kind].config(), arrays, out, lse)


@pytest.mark.sample(1, gate=3)
@ONE_OF_EACH_KERNEL
def test_a_cap_makes_infinite_scores_finite(kind: str) -> None:
    config = KINDS[kind].config(softcap=3.0)
    q, k, v = arrays_of(config, 20, 37)
    k[:, :, 5, 2], k[:, :, 9, 3] = np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        out, lse = check(config, (q, k, v), {})
    assert np.isfinite(out.astype(np.float32)).all()
    assert np.isfinite(lse).all()


@pytest.mark.sample(1, gate=3)
@ONE_OF_EACH_KERNEL
def test_alibi_is_a_bias_of_distances(kind: str) -> None:
    alibi, bias = KINDS[kind].config(alibi=True), KINDS[kind].config(bias="f32")
    arrays = arrays_of(alibi, 30, 50, heads=2)
    slopes = np.array([0.25, 0.125], np.float32)
    distance = np.abs(np.arange(30)[:, None] + 20 - np.arange(50)).astype(np.float32)
    out, lse = run(alibi, arrays, {"alibi_slopes": slopes})
    judge(bias, arrays, out, lse, {"bias": -slopes[:, None, None] * distance})


# ------------------------------------------------------------------------------------------
# what is hidden


@pytest.mark.slow
@pytest.mark.sample(3, gate=8)
@ONE_OF_EACH_KERNEL
@pytest.mark.parametrize("by", ["mask", "bias"])
@EVERY_CAUSAL
def test_rows_that_a_plane_hides_all_keys_from_give_zero(kind: str, by: str, causal: Any) -> None:
    config = KINDS[kind].config(causal=causal, **FEATURES[by])
    arrays = arrays_of(config, 40, 40, heads=2)
    shown = np.random.default_rng(0).random((2, 40, 40)) < 0.8
    shown[:, [0, 7, 39]] = False
    shown[1] = False
    operands = {by: shown if by == "mask" else np.where(shown, 0, -np.inf).astype(np.float32)}
    out, lse = check(config, arrays, operands)
    for rows in (out[:, :, [0, 7, 39]], out[:, 1]):
        np.testing.assert_array_equal(rows, 0)
    for sums in (lse[:, :, [0, 7, 39]], lse[:, 1]):
        np.testing.assert_array_equal(sums, -np.inf)


@pytest.mark.sample(2, gate=6)
@ONE_OF_EACH_KERNEL
@pytest.mark.parametrize("byte", [1, 2, 0x80, 0xFF])
def test_any_byte_but_zero_shows_a_key(kind: str, byte: int) -> None:
    config = KINDS[kind].config(mask=True)
    arrays = arrays_of(config, 20, 37)
    operands = operands_of(config, arrays)
    odd = (operands["mask"] * np.uint8(byte)).view(bool)
    assert_same_bits(run(config, arrays, operands), run(config, arrays, {"mask": odd}))


# ------------------------------------------------------------------------------------------ sink


@pytest.mark.sample(2, gate=5)
@ONE_OF_EACH_KERNEL
@EVERY_CAUSAL
def test_a_sink_of_minus_infinity_is_none(kind: str, causal: Any) -> None:
    with_sink, plain = (KINDS[kind].config(causal=causal, sink=there) for there in (True, False))
    arrays = arrays_of(plain, 40, 30, heads=2)
    operands = {"sink": np.full(2, -np.inf, np.float32)}
    out, lse = run(with_sink, arrays, operands)
    judge(plain, arrays, out, lse)


@pytest.mark.sample(1, gate=3)
@ONE_OF_EACH_KERNEL
def test_a_row_without_a_key_gives_zero_and_the_sink(kind: str) -> None:
    config = KINDS[kind].config(sink=True, causal=True)
    operands = {"sink": np.array([1.5, -2.0], np.float32)}
    out, lse = check(config, arrays_of(config, 40, 7, heads=2), operands)
    np.testing.assert_array_equal(out[:, :, :33], 0)
    np.testing.assert_allclose(lse[0, :, :33], np.repeat([[1.5], [-2.0]], 33, axis=1), rtol=1e-6)
    assert (lse[0, :, 33:] > operands["sink"][:, None]).all()


@pytest.mark.sample(1, gate=3)
@ONE_OF_EACH_KERNEL
def test_a_sink_is_a_key_with_a_value_of_zero(kind: str) -> None:
    config = KINDS[kind].config(sink=True)
    q, k, v = arrays_of(config, 20, 37)
    q[..., 0] = 1
    k[..., 0] = 0
    out, lse = run(config, (q, k, v), {"sink": np.array([2.0], np.float32)})
    extra = np.zeros((1, 1, 1, 16), k.dtype)
    extra[..., 0] = 2.0 / config.scale
    longer = np.concatenate([k, extra], axis=2), np.concatenate([v, 0 * extra], axis=2)
    judge(KINDS[kind].config(), (q, *longer), out, lse)


# ------------------------------------------------------------------------------------------
# strides, order, repeatability


@pytest.mark.slow
@pytest.mark.sample(4, gate=12)
@ONE_OF_EACH_KERNEL
@pytest.mark.parametrize("of", ["bias", "mask"])
@pytest.mark.parametrize(
    "shape", [(2, 4, 30, 45), (1, 4, 30, 45), (4, 1, 45), (30, 1), (45,), (2, 1, 1, 45), (1, 1), ()], ids=str
)
def test_a_plane_of_any_shape_that_broadcasts_is_right(kind: str, of: str, shape: tuple[int, ...]) -> None:
    config = KINDS[kind].config(causal=True, **FEATURES[of])
    rng = np.random.default_rng(3)
    array = rng.random(shape) < 0.8 if of == "mask" else rng.standard_normal(shape)
    operands = {of: np.asarray(array, bool if of == "mask" else np.float32)}
    check(config, arrays_of(config, 30, 45, batch=2, heads=4), operands)


def _views(array: Array) -> dict[str, Array]:
    wide = np.repeat(array, 3, axis=-1)
    return {
        "transposed": np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2),
        "spaced": wide[..., ::3],
        "reversed": np.ascontiguousarray(array[..., ::-1, ::-1])[..., ::-1, ::-1],
        "heads last": np.ascontiguousarray(array.transpose(2, 3, 0, 1)).transpose(2, 3, 0, 1),
    }


@pytest.mark.sample(2, gate=6)
@EVERY_DTYPE
@pytest.mark.parametrize("how", ["transposed", "spaced", "reversed", "heads last"])
def test_planes_of_any_strides_give_the_same_bits(kind: str, how: str) -> None:
    config = KINDS[kind].config(bias=str(KINDS[kind].config().dtype), mask=True)
    arrays = arrays_of(config, 30, 45, batch=2, heads=4)
    operands = operands_of(config, arrays)
    odd = {name: _views(array)[how] for name, array in operands.items()}
    for name, array in odd.items():
        assert array.strides != operands[name].strides
        np.testing.assert_array_equal(array, operands[name])
    assert_same_bits(run(config, arrays, operands), run(config, arrays, odd))


@pytest.mark.sample(3, gate=8)
@ONE_OF_EACH_KERNEL
@pytest.mark.parametrize("of", ["alibi", "sink"])
@pytest.mark.parametrize("shape", [(2, 4), (1, 4), (2, 1), (4,), ()], ids=str)
def test_a_number_of_each_head_may_be_broadcast(kind: str, of: str, shape: tuple[int, ...]) -> None:
    config = KINDS[kind].config(**FEATURES[of])
    drawn = np.abs(np.random.default_rng(3).standard_normal(shape)).astype(np.float32)
    operands = {config.features.operands[0].name: np.asarray(drawn)}
    check(config, arrays_of(config, 20, 37, batch=2, heads=4), operands)
    if shape == (2, 4):
        backwards = {name: a[::-1, ::-1].copy()[::-1, ::-1] for name, a in operands.items()}
        check(config, arrays_of(config, 20, 37, batch=2, heads=4), backwards)


# ------------------------------------------------------------------------------------------
# text, proofs, registers


GENERATIONS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
# Of 16 bits, whose rows of an odd length, or at any address, are copied element by element.
ODD: list[dict[str, Any]] = [
    *({"head_dim": 59}, {"head_dim": 111}, {"head_dim": 127}, {"head_dim": 191}, {"head_dim": 193}),
    *({"head_dim": 255}, {"head_dim": 128, "head_dim_v": 255}, {"head_dim": 256, "head_dim_v": 191}),
    *({"head_dim": 256, "head_dim_v": 223}, {"head_dim": 256, "head_dim_v": 241}),
    *({"head_dim": 256, "head_dim_v": 255}, {"head_dim": 64, "head_dim_v": 511}),
    *({"head_dim": 256, "head_dim_v": 511}, {"head_dim": 64, "alignment": 2}),
    *({"head_dim": 128, "alignment": 2}, {"head_dim": 256, "alignment": 2}),
]


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("dtype", "dims", "target"), pairwise(itertools.product(("f16", "bf16"), ODD, GENERATIONS)), ids=str
)
def test_no_default_kernel_spills_whose_rows_are_odd(
    dtype: str, dims: dict[str, Any], target: str, assembler: Assembler
) -> None:
    for features in FEATURES.values():
        for causal in (False, True):
            how = {**dims, **features, "dtype": dtype, "target": target, "return_lse": True}
            assert_no_spill(AttentionConfig(causal=causal, **how), assembler)


@pytest.mark.nightly
@pytest.mark.ptxas
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("causal", [nightly(False), "bottom_right", nightly("top_left")])
def test_no_default_kernel_with_alibi_spills_on_the_target_with_the_fewest_registers_left(
    causal: Any, dtype: str, assembler: Assembler
) -> None:
    for window in (None, (20, None), (None, 4)):
        config = AttentionConfig(
            128, dtype=dtype, causal=causal, window=window, alibi=True, return_lse=True, target="sm_100"
        )
        assert_no_spill(config, assembler)
