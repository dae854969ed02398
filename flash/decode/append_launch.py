"""The launch that appends rows to a KV cache and rotates new keys and queries (RoPE)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flash.calls.step import Step, launch_step
from flash.contract.cache_builds import append_build
from flash.kernels.append import COUNTS, WARPS, AppendConfig
from flash.operands.dtypes import OF_ARRAYS
from flash.problem.features import LENGTHS, MAX_POSITIONS, Features
from ptxgen.arrays.views import ArrayView
from ptxgen.target import Target


class AppendCall(NamedTuple):
    """Rows to append to a cache, and how they and queries are rotated. The arrays have the kernel's names for
    them: new rows K_NEW and V_NEW [batch, kv_heads, n, ...], n at least 1, the cache, K and V as in
    `flash.decode.plan.CacheCall`, and operands. `seqused_k` includes the new rows, and rows of padding get
    position 0 only if `leftpad_k` is there. For a cache of a narrow type, `k_scale` and `v_scale` are f32
    [kv_heads], or of the cache's shape without its last dimension, which the launch writes. `counts`, int32
    [batch], is how many of the first of the n rows of each item are new. With COS and SIN [positions,
    rotary_dim / 2], f32 with dense rows, K_NEW and Q [batch, heads, seq_q, head_dim] are rotated, Q to Q_OUT.
    """

    arrays: Mapping[str, ArrayView]
    page_size: int
    interleaved: bool = False


def append_step(target: Target, call: AppendCall) -> Step:
    """The launch that writes the new rows, and rotates if there are tables."""
    arrays, (batch, kv_heads, n, _) = call.arrays, call.arrays["K_NEW"].shape
    k, turns = arrays["K"], "COS" in arrays
    given: dict[str, Any] = {name: name in arrays for name in LENGTHS}
    stored = OF_ARRAYS[k.dtype] if "k_scale" in arrays else None
    per_token = stored is not None and len(arrays["k_scale"].shape) == len(k.shape) - 1
    made = append_build(
        AppendConfig(
            target,
            k.shape[3],
            arrays["V"].shape[3],
            OF_ARRAYS[arrays["K_NEW"].dtype],
            Features(page_size=call.page_size, kv_dtype=stored, per_token=per_token, **given),
            2 * arrays["COS"].shape[1] if turns else 0,
            turns and call.interleaved,
            COUNTS.name in arrays,
        )
    )
    made.require_proved()
    rows = batch * kv_heads * n
    capacity, sequences = k.shape[2], k.shape[0]
    if call.page_size:
        sequences, columns = arrays["block_table"].shape
        capacity = columns * call.page_size
    values: dict[str, int | float] = {
        "new_rows": rows,
        "n": n,
        "kv_heads": kv_heads,
        "seq_k": capacity,
        "kv_batch": sequences,
        "pages": k.shape[0],
    }
    if turns:
        _, heads, seq_q, _ = arrays["Q"].shape
        # The kernel takes no 0 for seq_q and heads, even if there is no query to divide by them.
        values |= {"q_rows": batch * heads * seq_q, "seq_q": max(seq_q, 1), "heads": max(heads, 1)}
        values["positions"] = min(arrays["COS"].shape[0], MAX_POSITIONS)
        rows += batch * heads * seq_q
    return launch_step(made, arrays, values, -(-rows // WARPS))
