"""The dimensions that a head of Q and K, and of V, may have."""

from __future__ import annotations

from typing import Final

from flash.families.choice import FAMILIES
from flash.families.request import MAX_HEAD_DIM, MAX_HEAD_DIM_V
from ptxgen.arguments import integer
from ptxgen.errors import ConfigError, shown

WIDEST: Final = max(family.widest for family in FAMILIES)  # columns of K, of which V is columns


def checked_head_dim(value: object, *, shared_kv: bool) -> int:
    """The head dimension as an int. Raises `ConfigError` for anything else than 1 to `MAX_HEAD_DIM`, or
    where V is columns of K to the most that a family takes.
    """
    most = WIDEST if shared_kv else MAX_HEAD_DIM
    size = integer(value, 1, most)
    if size is not None:
        return size
    if shared_kv:
        raise ConfigError(
            f"AttentionConfig: head_dim must be an integer from 1 to {most} with shared_kv, got "
            f"{shown(value)}"
        )
    cures = [
        f"; where V is columns of K, shared_kv=True takes up to {family.widest}, with "
        f"{' or '.join(repr(dtype.name) for dtype in family.dtypes)} and target={family.target!r} or a "
        "target with tcgen05, such as 'sm_100a'"
        for family in FAMILIES
        if family.target is not None and integer(value, MAX_HEAD_DIM + 1, family.widest) is not None
    ]
    raise ConfigError(
        f"AttentionConfig: head_dim must be an integer from 1 to {MAX_HEAD_DIM}, got {shown(value)}; beyond "
        f"{MAX_HEAD_DIM} a CTA cannot keep its rows in registers and shared memory{''.join(cures)}"
    )


def checked_head_dim_v(value: object) -> int:
    """head_dim_v as an int. Raises `ConfigError` for anything else than 1 to `MAX_HEAD_DIM_V`."""
    size = integer(value, 1, MAX_HEAD_DIM_V)
    if size is not None:
        return size
    raise ConfigError(
        f"AttentionConfig: head_dim_v must be an integer from 1 to {MAX_HEAD_DIM_V}, got "
        f"{shown(value)}; beyond {MAX_HEAD_DIM_V} split V by columns, and each call gives "
        "those of O"
    )
