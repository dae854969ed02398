"""Checks of head_dim and head_dim_v: the columns that heads of Q and K, and of V, may have."""

from __future__ import annotations

from flash.families.request import MAX_HEAD_DIM, MAX_HEAD_DIM_V
from ptxgen.arguments import integer
from ptxgen.errors import ConfigError, shown


def checked_head_dim(value: object) -> int:
    """The head dimension as an int. Raises `ConfigError` for anything else than 1 to `MAX_HEAD_DIM`."""
    size = integer(value, 1, MAX_HEAD_DIM)
    if size is not None:
        return size
    raise ConfigError(
        f"AttentionConfig: head_dim must be an integer from 1 to {MAX_HEAD_DIM}, got {shown(value)}; beyond "
        f"{MAX_HEAD_DIM} a CTA cannot keep its rows in shared memory"
    )


def checked_head_dim_v(value: object) -> int:
    """The checked head_dim_v. Raises `ConfigError` for anything else than 1 to `MAX_HEAD_DIM_V`."""
    size = integer(value, 1, MAX_HEAD_DIM_V)
    if size is not None:
        return size
    raise ConfigError(
        f"AttentionConfig: head_dim_v must be an integer from 1 to {MAX_HEAD_DIM_V}, got "
        f"{shown(value)}; beyond {MAX_HEAD_DIM_V} split V by columns, and each call gives "
        "those of O"
    )
