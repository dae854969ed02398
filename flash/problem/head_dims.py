"""The dimensions that a head of Q and K, and of V, may have."""

from __future__ import annotations

from flash.problem.latent_tiling import MAX_LATENT_DIM
from flash.problem.simt_tiling import MAX_HEAD_DIM, MAX_HEAD_DIM_V
from flash.problem.wgmma_choice import WGMMA_TARGET
from ptxgen.arguments import integer
from ptxgen.errors import ConfigError, shown


def checked_head_dim(value: object, *, shared_kv: bool) -> int:
    """The head dimension as an int. Raises `ConfigError` for anything else than 1 to `MAX_HEAD_DIM`, or to
    `MAX_LATENT_DIM` where V is columns of K.
    """
    size = integer(value, 1, MAX_LATENT_DIM if shared_kv else MAX_HEAD_DIM)
    if size is not None:
        return size
    if shared_kv:
        raise ConfigError(
            f"AttentionConfig: head_dim must be an integer from 1 to {MAX_LATENT_DIM} with shared_kv, got "
            f"{shown(value)}"
        )
    latent = integer(value, MAX_HEAD_DIM + 1, MAX_LATENT_DIM) is not None
    cure = (
        f"; where V is columns of K, shared_kv=True takes up to {MAX_LATENT_DIM}, with 'f16' or 'bf16' and "
        f"target={WGMMA_TARGET!r}"
    )
    raise ConfigError(
        f"AttentionConfig: head_dim must be an integer from 1 to {MAX_HEAD_DIM}, got {shown(value)}; beyond "
        f"{MAX_HEAD_DIM} a CTA cannot keep its rows in registers and shared memory{cure if latent else ''}"
    )


def is_latent(head_dim: int, *, shared_kv: bool) -> bool:
    """Whether V is columns of K, and rows are so wide that the kernel of one target alone computes them."""
    return shared_kv and head_dim > MAX_HEAD_DIM


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
