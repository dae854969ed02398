from __future__ import annotations

import importlib
import importlib.util
import re
from dataclasses import FrozenInstanceError
from typing import Any, get_args

import ml_dtypes
import numpy as np
import pytest

from flash.cache.cache import KVCache
from flash.contract.catalogue import build
from flash.families.choice import offered_tiles
from flash.families.request import MAX_COLUMNS, MAX_HEAD_DIM, MAX_HEAD_DIM_V, natural_alignment
from flash.families.simt import DEFAULT_TILES, SIMT
from flash.operands.dtype_names import InputDTypeLike
from flash.operands.dtypes import DTYPES, INPUT_DTYPES, config_name
from flash.problem.config import AttentionConfig
from ptxgen.errors import ConfigError, UnsupportedTargetError
from ptxgen.target import TARGETS, target

KNOWN = ", ".join(map(repr, INPUT_DTYPES))
TOO_LARGE = (
    "head_dim must be an integer from 1 to 576, got {}; beyond 576 a CTA cannot keep its rows in shared "
    "memory"
)
TILE = "must be one of 16, 32, 64, 128, 'auto', got"
CAUSAL = "causal must be one of False, True, 'bottom_right', 'top_left', got"
SCALE = "softmax_scale must be a number of at most 1.70141e+38 either way, or None for 1/sqrt(head_dim), got"
LARGE = {"head_dim": 256, "tile": 128, "block_q": 128}
TOO_MUCH_MEMORY = (
    "head_dim=256, head_dim_v=256, tile=128, block_q=128 needs 462848 bytes of shared memory, but {} bytes "
    "per block; the largest tile that fits is 32, with block_q={}"
)
STAGED = {"head_dim": 256, "precision": "tf32", "stages": 4, "target": "sm_86"}


def refused(message: str, **how: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        AttentionConfig(**{"head_dim": 64, **how})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        *(
            ({"head_dim": value}, TOO_LARGE.format(repr(value)))
            for value in (0, -8, 3.5, 10**9, 577, True, "64", None, float("nan"), np.arange(2))
        ),
        *(
            (
                {"head_dim_v": value},
                f"head_dim_v must be an integer from 1 to 512, got {value!r}; beyond 512 split V by columns, "
                "and each call gives those of O",
            )
            for value in (0, 513, 3.5, True)
        ),
        *(
            (
                {name: value},
                f"{name} {TILE} {value!r}; the largest tile that fits head_dim=64, head_dim_v=64 on sm_80 is "
                "128",
            )
            for name in ("tile", "block_q")
            for value in (0, -16, 8, 48, 256, 16.0, "16")
        ),
        (LARGE, TOO_MUCH_MEMORY.format("sm_90 allows 232448", 128)),
        ({**LARGE, "target": "sm_86"}, TOO_MUCH_MEMORY.format("sm_86 allows 101376", 16)),
        (
            STAGED,
            "head_dim=256, head_dim_v=256, tile=16, block_q=32 needs 163840 bytes of shared memory, but "
            "sm_86 allows 101376 bytes per block; no tile fits with stages=4; use stages=2",
        ),
        ({**STAGED, "tile": 256}, f"tile {TILE} 256"),
        ({"dtype": "f8"}, f"dtype must be one of {KNOWN}, got 'f8'"),
        ({"stages": 2}, "stages must be one of 1, 'auto', got 2"),
        ({"dtype": "bf16", "stages": 5}, "stages must be one of 1, 2, 3, 4, 'auto', got 5"),
        ({"dtype": "bf16", "alignment": 1}, "alignment must be one of 16, 8, 4, 2, 'auto', got 1"),
        (
            {"dtype": "bf16", "target": "sm_75"},
            "dtype='bf16' needs sm_80 or later, before which tensor cores multiply f16 alone, got sm_75; use "
            "dtype='f16' or 'f32'",
        ),
        (
            {"dtype": "f16", "stages": 2, "target": "sm_75"},
            "stages=2 needs sm_80 or later, whose asynchronous copies fill them, got sm_75; use stages=1",
        ),
        *(
            ({"causal": value}, f"{CAUSAL} {got}")
            for value, got in (
                ("diagonal", "'diagonal'"),
                (1, "1"),
                (np.arange(2), "array([0, 1])"),
                ("BottomRight", "'BottomRight'; did you mean 'bottom_right'?"),
            )
        ),
        ({"stages": "two"}, "stages must be one of 1, 'auto', got 'two'"),
        ({"stages": float("inf")}, "stages must be one of 1, 'auto', got inf"),
        ({"stages": [2]}, "stages must be one of 1, 'auto', got [2]"),
        ({"dtype": "float64"}, f"dtype must be one of {KNOWN}, got 'float64'"),
        ({"dtype": float}, f"dtype must be one of {KNOWN}, got <class 'float'>"),
        ({"dtype": np.dtype(">f4")}, f"dtype must be one of {KNOWN}, got dtype('>f4')"),
        ({"dtype": np.zeros(1, np.float32)}, f"dtype must be one of {KNOWN}, got array([0.], dtype=float32)"),
        ({"alignment": 2}, "alignment must be one of 16, 8, 4, 'auto', got 2"),
        ({"return_lse": 1}, "return_lse must be True or False, got 1"),
        *(
            (
                {"window": window},
                "window must be (left, right), each a number of keys from 0 to 1073741568, or None "
                f"or -1 for no limit, got {window!r}",
            )
            for window in (5, (1,), (1, 2, 3), (-2, None), (None, 2**30), (1.0, 2), (True, 0), "12")
        ),
        *(
            (
                {"softcap": cap},
                "softcap must be a number from 9.53674e-07 to 1.04858e+06, or None or 0 for no "
                f"cap, got {cap!r}",
            )
            for cap in (-1.0, 2.0**21, float("nan"), "30", True)
        ),
        ({"bias": "bf16"}, "bias must be one of 'f32', None, got 'bf16'"),
        ({"bias": True, "dtype": "f16"}, "bias must be one of 'f32', 'f16', None, got True"),
        ({"alibi": 1}, "alibi must be True or False, got 1"),
        ({"mask": "no"}, "mask must be True or False, got 'no'"),
        ({"sink": None}, "sink must be True or False, got None"),
        *(({"softmax_scale": value}, f"{SCALE} {value!r}") for value in (float("inf"), "1", -1e39)),
    ],
)
def test_a_wrong_choice_is_refused_with_the_right_ones(how: dict[str, Any], message: str) -> None:
    refused(f"AttentionConfig: {message}", **how)


def _types_of_libraries() -> dict[str, list[Any]]:
    """By the name in a config, the objects that array libraries have for a type."""
    result: dict[str, list[Any]] = {
        "f32": [np.float32, np.dtype(np.float32)],
        "f16": [np.float16, np.dtype(np.float16)],
        "bf16": [ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)],
    }
    for name, library in (("torch", "torch"), ("jax", "jax.numpy")):
        if importlib.util.find_spec(name) is not None:
            module = importlib.import_module(library)
            for types, said in zip(result.values(), ("float32", "float16", "bfloat16"), strict=True):
                types.append(getattr(module, said))
    return result


def test_types_are_known_by_what_libraries_call_them() -> None:
    words = {
        "f32": ["float32", "fp32", "single", "torch.float32"],
        "f16": ["float16", "fp16", "half"],
        "bf16": ["bfloat16", "torch.bfloat16"],
    }
    for name, objects in _types_of_libraries().items():
        for said in (*words[name], *objects):
            assert AttentionConfig(64, dtype=said) == AttentionConfig(64, dtype=name)
            assert AttentionConfig(64, dtype=said).dtype == name
    assert AttentionConfig(64, bias="float32") == AttentionConfig(64, bias="f32")
    cache = KVCache(1, 1, 1, 8, 8, dtype=np.float16)
    assert cache.dtype == "f16"
    assert KVCache(1, 1, 1, 8, 8, dtype=ml_dtypes.float8_e4m3fn).dtype == "e4m3"


def test_the_words_that_type_checkers_take_name_every_type() -> None:
    words = {word for hint in get_args(InputDTypeLike) for word in get_args(hint) if isinstance(word, str)}
    assert {config_name(word) for word in words} == {*INPUT_DTYPES}


def test_no_limit_and_no_cap_may_be_written_as_flash_attn_does() -> None:
    for said, canonical in (
        ({"window": (-1, 0)}, {"window": (None, 0)}),
        ({"window": (5, -1)}, {"window": (5, None)}),
        ({"window": (-1, -1)}, {"window": None}),
        ({"window": (-1, 0), "causal": True}, {"causal": True}),
        ({"softcap": 0.0}, {}),
        ({"softcap": 0}, {}),
    ):
        built, wanted = AttentionConfig(64, **said), AttentionConfig(64, **canonical)
        assert built == wanted
        assert build(built.kernel()).text == build(wanted.kernel()).text


def test_the_kernel_of_a_config_is_for_what_there_is() -> None:
    config = AttentionConfig(64)
    assert config.kernel("sm_90") == AttentionConfig(64, target="sm_90").kernel()
    with pytest.raises(ConfigError) as caught:
        config.kernel(alignment="two")  # type: ignore[arg-type]
    assert str(caught.value) == ("AttentionConfig: alignment must be one of 16, 8, 4, None, got 'two'")


def test_an_unknown_target_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnsupportedTargetError, match=r"did you mean 'sm_90'"):
        AttentionConfig(64, target="sm90")


def test_a_config_is_a_value() -> None:
    config = AttentionConfig(64, causal=True)
    assert config == AttentionConfig(64, 64, causal="bottom_right")
    assert hash(config) == hash(AttentionConfig(64, 64, causal="bottom_right"))
    with pytest.raises(FrozenInstanceError):
        config.head_dim = 32  # type: ignore[misc]


def test_a_numpy_integer_is_a_head_dim() -> None:
    config = AttentionConfig(np.int64(64))  # type: ignore[arg-type]
    assert config == AttentionConfig(64)
    assert type(config.head_dim) is int


def test_the_default_scale_is_one_over_the_root_of_head_dim() -> None:
    assert AttentionConfig(64).scale == 0.125
    assert AttentionConfig(64, softmax_scale=-2).scale == -2.0


@pytest.mark.parametrize(("dims", "alignment"), [((64, 64), 16), ((6, 4), 8), ((3, 4), 4), ((64, 2), 8)])
def test_the_natural_alignment_is_what_dense_arrays_have(dims: tuple[int, int], alignment: int) -> None:
    assert natural_alignment(*dims, DTYPES["f32"]) == alignment
    assert natural_alignment(*dims, DTYPES["bf16"]) == alignment // 2 or alignment == 16
    assert AttentionConfig(*dims).kernel().alignment == alignment


@pytest.mark.slow
def test_every_head_dim_of_the_table_has_its_default_on_every_target() -> None:
    for name, limits in TARGETS.items():
        for head_dim in range(1, (MAX_HEAD_DIM if limits.sm >= 80 else 400) + 1):
            config = AttentionConfig(head_dim, min(head_dim, MAX_HEAD_DIM_V), target=name)
            tiling = config.kernel().tiling
            assert (tiling.tile, tiling.block_q) == SIMT.default_sizes(config.tile_request, limits)
            assert tiling.shared_bytes <= limits.shared_per_block_optin


def test_the_table_is_sorted_so_that_the_first_match_is_meant() -> None:
    assert list(DEFAULT_TILES) == sorted(DEFAULT_TILES, reverse=True)
    for row in DEFAULT_TILES.values():
        assert list(row) == sorted(row)
        assert max(row) == MAX_HEAD_DIM


def test_a_given_tile_takes_the_largest_block_q_that_goes_with_it() -> None:
    # 128 keys of 64 values leave no room for 128 queries in 99 KiB.
    assert AttentionConfig(64, tile=128, target="sm_86").kernel().tiling.block_q == 32
    assert AttentionConfig(64, block_q=16, target="sm_86").kernel().tiling.block_q == 16


def test_micro_tiles_are_four_by_four_at_least() -> None:
    for name in TARGETS:
        for head_dim in (1, 64, 111, 256):
            for tile, block_q in offered_tiles(head_dim, head_dim, target(name)):
                config = AttentionConfig(head_dim, tile=tile, block_q=block_q, target=name)
                tiling = config.kernel().tiling
                assert tiling.rows >= 4
                assert tiling.keys >= 4
                assert tiling.chunks >= 1  # of four outputs each


def test_the_name_says_the_configuration() -> None:
    config = AttentionConfig(64, 32, causal=True, return_lse=True, tile=32, block_q=64, alignment=8)
    name = config.kernel().name
    assert name == "attention_forward_f32_d64v32_m64_n32_bottom_right_lse_align8"


def test_the_name_says_the_features() -> None:
    config = AttentionConfig(
        64, dtype="f16", window=(5, 6), softcap=30.0, alibi=True, bias="f32", mask=True, sink=True
    )
    assert config.kernel().name == (
        "attention_forward_f16_d64_m128_n64_left_right_softcap_alibi_mask_sink_bias_f32"
    )


def test_a_window_is_kept_without_what_says_nothing() -> None:
    assert AttentionConfig(64, window=(None, None)).window is None
    assert AttentionConfig(64, window=(None, 5), causal=True).window is None
    assert AttentionConfig(64, window=[3, 5], causal=True).window == (3, None)  # type: ignore[arg-type]
    assert AttentionConfig(64, window=(np.int64(3), 5)) == AttentionConfig(64, window=(3, 5))  # type: ignore[arg-type]


def test_the_values_of_window_and_cap_are_not_part_of_the_kernel() -> None:
    one = AttentionConfig(64, window=(3, 5), softcap=30.0)
    other = AttentionConfig(64, window=(7, 0), softcap=50)
    assert one.kernel() == other.kernel()
    assert one.numbers == {"window_left": 3, "window_right": 5, "softcap": 30.0}


@pytest.mark.sample(12)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name, result in TARGETS.items() if result.sm >= 80])
def test_every_head_dim_has_tiles_with_every_feature(dtype: str, name: str) -> None:
    for head_dim in (*range(1, MAX_COLUMNS), *range(MAX_COLUMNS, MAX_HEAD_DIM + 1, 8)):
        AttentionConfig(
            head_dim,
            min(head_dim, MAX_HEAD_DIM_V),
            dtype=dtype,
            target=name,
            window=(5, 6),
            softcap=30.0,
            alibi=True,
            bias=dtype,
            mask=True,
            sink=True,
            dropout=0.1,
        ).kernel()
