"""Settings of problems with Q, K and V of fp8: the type of O, blocks of rows that share a scale, and settings
that no such kernel supports. For a cache of a narrow type: whether heads or tokens have scales.
"""

from __future__ import annotations

from typing import Final

from flash.families.wgmma import BOX_ROWS, WGMMA_ROWS
from flash.operands.blocks import SCALED_NAMES
from flash.operands.dtypes import (
    BF16,
    BLOCK_FORMATS,
    BLOCK_WORDS,
    F16,
    FP8_DTYPES,
    FP8_NAMES,
    MX_BLOCK,
    NV,
    BlockFormat,
    DType,
    config_name,
)
from flash.scores.options import require_one_of
from ptxgen.arguments import integer, is_one_of
from ptxgen.errors import ConfigError, did_you_mean, shown

HEAD: Final = "head"
TOKEN: Final = "token"
_OUTPUTS: Final = (BF16.name, F16.name)
# Rows of Q, K and V that share a scale: those of a warpgroup, of whose tiles of keys they are multiples.
LEAST_SCALE_BLOCK: Final = WGMMA_ROWS
MAX_SCALE_BLOCK: Final = 1 << 15


def is_per_token(caller: str, stored: DType, scale_per: object) -> bool:
    """Whether each token of a cache of `stored` has scales of its own. Raises `ConfigError` in the name of
    `caller` for another `scale_per` than "head" and "token", and for "token" with a type that has no scales.
    """
    if not is_one_of(scale_per, (HEAD, TOKEN)):
        raise ConfigError(
            f"{caller}: scale_per must be one of {HEAD}, {TOKEN}, got {shown(scale_per)}"
            f"{did_you_mean(scale_per, (HEAD, TOKEN))}"
        )
    if scale_per == TOKEN and not stored.has_scales:
        raise ConfigError(
            f"{caller}: scale_per={TOKEN!r} is for a cache of {SCALED_NAMES}, whose numbers have scales; "
            "leave it out"
        )
    return scale_per == TOKEN


def resolved_out_dtype(dtype: object, out_dtype: object) -> object:
    """The type of O as a config keeps it: with Q, K and V of fp8 it is `out_dtype`, by default bf16; with
    other types it is None, and O has the type of Q. Raises `ConfigError` for any other `out_dtype`.
    """
    name = config_name(out_dtype)
    if dtype in FP8_DTYPES:
        resolved = _OUTPUTS[0] if name is None else name
        require_one_of("out_dtype", resolved, _OUTPUTS)
        return resolved
    if not is_one_of(name, (None, dtype)):
        raise ConfigError(
            f"AttentionConfig: out_dtype is for Q, K and V of {FP8_NAMES}; those of "
            f"{dtype!r} give O of their own type, got {shown(out_dtype)}; leave it out"
        )
    return None


def resolved_scale_block(dtype: object, scale_block: object, head_dim: int) -> int | str | None:
    """The rows that share a scale as a config keeps them, or "mx" or "nv"; None if all rows of a head do.
    Raises `ConfigError`.
    """
    if scale_block is None:
        return None
    if dtype not in FP8_DTYPES:
        if is_one_of(scale_block, (NV,)):
            raise ConfigError(
                f"AttentionConfig: scale_block={NV!r} is for V of {FP8_NAMES}, got {dtype!r}; convert with "
                "flash.quantize_mx(v, axis=-2)"
            )
        raise ConfigError(
            f"AttentionConfig: scale_block is for Q, K and V of {FP8_NAMES}, which have scales; "
            f"those of {dtype!r} have none, got {shown(scale_block)}; leave it out"
        )
    if is_one_of(scale_block, tuple(BLOCK_FORMATS)):
        of = BLOCK_FORMATS[scale_block]
        if head_dim % MX_BLOCK:
            many = "two blocks of" if of.size < MX_BLOCK else "the"
            raise ConfigError(
                f"AttentionConfig: scale_block={of.word!r} needs a head_dim of multiples of {MX_BLOCK}, "
                f"{many} elements of Q and K that share a scale, got {head_dim}; pad Q and K with zeros"
            )
        return of.word
    rows = integer(scale_block, LEAST_SCALE_BLOCK, MAX_SCALE_BLOCK)
    if rows is None or rows % LEAST_SCALE_BLOCK:
        raise ConfigError(
            f"AttentionConfig: scale_block must be a multiple of {LEAST_SCALE_BLOCK} rows from "
            f"{LEAST_SCALE_BLOCK} to {MAX_SCALE_BLOCK}, {BLOCK_WORDS} for scales of elements, or None "
            f"for a scale of all rows of a head, got {shown(scale_block)}; repeat the scales "
            "of blocks that are such multiples together"
        )
    return rows


def block_format(scale_block: object) -> BlockFormat | None:
    """The format of Q and K by the `scale_block` of a config; None if no blocks of elements have scales."""
    return BLOCK_FORMATS.get(scale_block) if isinstance(scale_block, str) else None


def not_for_fp8(
    page_size: int | None, pack_gqa: object, dropout: float, varlen: bool, scale_block: int | str | None
) -> str:
    """The first of these settings that the kernel of fp8 does not support; the empty string if it supports
    all.
    """
    of_rows = scale_block is not None and block_format(scale_block) is None
    if varlen and of_rows:
        return f"scale_block={scale_block!r} with varlen"
    together = BOX_ROWS if scale_block is None else MX_BLOCK  # rows of a box, or of V that share a scale
    if page_size is not None and page_size % together:
        return f"page_size={page_size}, which is no multiple of {together}"
    if pack_gqa is True and of_rows:
        return f"scale_block={scale_block!r} with pack_gqa=True"
    return f"dropout={dropout}" if dropout else ""
