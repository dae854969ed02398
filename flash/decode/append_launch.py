"""The launch that appends rows to a KV cache and rotates new keys and queries (RoPE)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flash.calls.step import Step, launch_step
from flash.contract.cache_builds import append_build
from flash.kernels.append import COUNTS, WARPS, AppendConfig
from flash.operands.dtypes import OF_ARRAYS, DType
from flash.problem.features import LENGTHS, MAX_POSITIONS, Features
from ptxgen.arrays.views import ArrayView
from ptxgen.target import Target


class Rotation(NamedTuple):
    """Rotary embedding of an append: cos and sin [positions, rotary_dim / 2], f32 with dense rows;
    q [batch, heads, seq_q, head_dim], and `q_out`, to which rotated q is written.
    """

    cos: ArrayView
    sin: ArrayView
    interleaved: bool
    q: ArrayView
    q_out: ArrayView

    @property
    def arrays(self) -> dict[str, ArrayView]:
        """The arrays, by field."""
        return {"cos": self.cos, "sin": self.sin, "q": self.q, "q_out": self.q_out}


class NewRows(NamedTuple):
    """Checked arrays of an append: new k and v [batch, kv_heads, n, ...], n at least 1, and the
    cache, as in `flash.decode.plan.CacheCall`. `seqused_k` in `operands` includes the new rows. For
    a cache of a narrow type, `operands` has `k_scale` and `v_scale`, f32 [kv_heads], or of the cache's
    shape without its last dimension, which the launch writes. `counts`, int32 [batch]: how many of the
    first of the n rows of each item are new; None for all.
    """

    k: ArrayView
    v: ArrayView
    k_cache: ArrayView
    v_cache: ArrayView
    operands: Mapping[str, ArrayView]
    page_size: int
    counts: ArrayView | None = None

    @property
    def arrays(self) -> dict[str, ArrayView]:
        """The arrays but the operands, by field."""
        found = {"k": self.k, "v": self.v, "k_cache": self.k_cache, "v_cache": self.v_cache}
        return found if self.counts is None else {**found, "counts": self.counts}


def append_step(target: Target, dtype: DType, new: NewRows, turned: Rotation | None) -> Step:
    """The launch that writes the new rows of type `dtype`, and rotates if `turned` is given."""
    given: dict[str, Any] = {name: name in new.operands for name in LENGTHS}
    stored = OF_ARRAYS[new.k_cache.dtype] if "k_scale" in new.operands else None
    per_token = stored is not None and len(new.operands["k_scale"].shape) == len(new.k_cache.shape) - 1
    features = Features(page_size=new.page_size, kv_dtype=stored, per_token=per_token, **given)
    made = append_build(
        AppendConfig(
            target,
            new.k.shape[3],
            new.v.shape[3],
            dtype,
            features,
            0 if turned is None else 2 * turned.cos.shape[1],
            turned is not None and turned.interleaved,
            new.counts is not None,
        )
    )
    made.require_proved()
    arrays = {"K_NEW": new.k, "V_NEW": new.v, "K": new.k_cache, "V": new.v_cache, **new.operands}
    arrays |= {} if new.counts is None else {COUNTS.name: new.counts}
    batch, kv_heads, n, _ = new.k.shape
    rows = batch * kv_heads * n
    capacity, sequences = new.k_cache.shape[2], new.k_cache.shape[0]
    if new.page_size:
        sequences, columns = new.operands["block_table"].shape
        capacity = columns * new.page_size
    values: dict[str, int | float] = {
        "new_rows": rows,
        "n": n,
        "kv_heads": kv_heads,
        "seq_k": capacity,
        "kv_batch": sequences,
        "pages": new.k_cache.shape[0],
    }
    if turned is not None:
        arrays |= {"Q": turned.q, "Q_OUT": turned.q_out, "COS": turned.cos, "SIN": turned.sin}
        _, heads, seq_q, _ = turned.q.shape
        # The kernel takes no 0 for seq_q and heads, even if there is no query to divide by them.
        values |= {"q_rows": batch * heads * seq_q, "seq_q": max(seq_q, 1), "heads": max(heads, 1)}
        values["positions"] = min(turned.cos.shape[0], MAX_POSITIONS)
        rows += batch * heads * seq_q
    return launch_step(made, arrays, values, -(-rows // WARPS))
