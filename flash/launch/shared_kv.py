"""V that is the first columns of K: the array of a call whose config has `shared_kv`, and its checks."""

from __future__ import annotations

from typing import Final

from flash.operands.dtypes import OF_ARRAYS
from flash.problem.config import AttentionConfig
from ptxgen.arrays.views import HOST, ArrayView, host_array
from ptxgen.errors import LaunchError

_CURE: Final = "leave it out, or use AttentionConfig(shared_kv=False, ...)"


def columns_of(config: AttentionConfig, k: ArrayView) -> ArrayView:
    """The array V of a call: a view of the first head_dim_v columns of K."""
    if not k.shape:
        return k  # which is refused for its shape
    columns = min(config.value_dim, k.shape[-1])
    values = k._replace(shape=(*k.shape[:-1], columns))
    if k.device != HOST or k.dtype not in OF_ARRAYS:
        return values
    return values._replace(owner=host_array(k)[..., :columns], keep=k.owner)


def require_shared(config: AttentionConfig, caller: str, **values: object) -> None:
    """Raise `LaunchError` for arrays of values, by name, that are given although they are columns of K."""
    names = [name for name, array in values.items() if array is not None]
    if config.shared_kv and names:
        raise LaunchError(
            f"{caller}: {' and '.join(names)} must not be given, because the config says shared_kv: V is the "
            f"first {config.value_dim} columns of K; {_CURE}"
        )
