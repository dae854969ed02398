"""The calls of flash-attn 3 and 4 that docs/migration.md has, by their documentation, in plain PyTorch and
float64: neither runs without a GPU.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from flash_attn_oracle import rotated


def attend(torch: ModuleType, q: Any, k: Any, v: Any, **how: Any) -> tuple[Any, Any]:
    """out [seq_q, heads, dim] and lse [heads, seq_q] of one sequence, float64; each mask is a function of
    the positions of queries [seq_q, 1] and keys [1, seq_k].
    """
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    group = len(q) // len(k)
    k, v = (x.repeat_interleave(group, 0) for x in (k, v))
    query, key = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])[None]
    here = query + k.shape[1] - q.shape[1]
    scale, cap = how.get("softmax_scale"), how.get("softcap", 0.0)
    score = q @ k.transpose(1, 2) * (q.shape[2] ** -0.5 if scale is None else scale)
    score = cap * torch.tanh(score / cap) if cap else score
    if how.get("score_mod"):
        head = torch.arange(len(q))[:, None, None]
        score = how["score_mod"](score, 0, head, query, key, None, how.get("aux_tensors"))
    left, right = (-1 if side is None else side for side in how.get("window_size", (-1, -1)))
    right = 0 if how.get("causal") else right
    visible = key >= (here - left if left >= 0 else 0 * here)
    if right >= 0:
        visible = visible & (key <= here + right)
    if chunk := how.get("attention_chunk"):
        visible = visible & (torch.div(here, chunk, rounding_mode="floor") == key // chunk)
    if how.get("mask_mod"):
        visible = visible & how["mask_mod"](0, 0, query, key, None, None)
    if how.get("seen") is not None:
        visible = visible & how["seen"]
    score = score.masked_fill(~visible, -torch.inf)
    sink = how.get("learnable_sink")
    logits = score if sink is None else torch.cat((score, sink[:, None, None].expand(-1, q.shape[1], 1)), 2)
    lse = logits.logsumexp(2)
    out = (score - lse[:, :, None]).exp().nan_to_num(0.0) @ v
    return out.transpose(0, 1), lse


class NewerFlashAttn:
    """The modules of both; `version` is 3 or 4."""

    def __init__(self, torch: ModuleType, version: int) -> None:
        self.torch, self.version = torch, version

    def flash_attn_func(
        self, q: Any, k: Any, v: Any, softmax_scale: Any = None, causal: bool = False, **how: Any
    ) -> Any:
        dtype = self.torch.bfloat16 if q.dtype.itemsize == 1 else q.dtype
        q, k, v = (x.double() for x in (q, k, v))
        for name in ("q", "k", "v"):
            scales = how.pop(f"{name}_descale", None)
            if scales is not None:
                x = {"q": q, "k": k, "v": v}[name]
                x *= scales.repeat_interleave(x.shape[2] // scales.shape[1], 1)[:, None, :, None]
        if how.get("qv") is not None:  # the default scale is of both products
            q, k = self.torch.cat((q, how["qv"]), -1), self.torch.cat((k, v), -1)
        picked = how.pop("gather_kv_indices", None)
        result = []
        for b in range(len(q)):
            seen = None
            if picked is not None:
                seen = (picked[b][:, :, None] == self.torch.arange(k.shape[1])).any(1)
            arguments = {**how, "softmax_scale": softmax_scale, "causal": causal, "seen": seen}
            result.append(attend(self.torch, q[b], k[b], v[b], **arguments))
        out, lse = (self.torch.stack(x) for x in zip(*result, strict=True))
        both = out.to(dtype), lse.float()
        wants = how.get("return_attn_probs") or how.get("return_lse")
        return both if self.version > 3 or wants else both[0]

    def flash_attn_varlen_func(
        self, q: Any, k: Any, v: Any, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, *_: int, **how: Any
    ) -> Any:
        used, table, causal = how["seqused_k"].tolist(), how.get("page_table"), how["causal"]
        outs = []
        for b, keys in enumerate(used):
            rows = q[b] if cu_seqlens_q is None else q[cu_seqlens_q[b] : cu_seqlens_q[b + 1]]
            if table is not None:
                of_b = [x[table[b].long()].flatten(0, 1) for x in (k, v)]
            else:
                of_b = [x[b] if cu_seqlens_k is None else x[cu_seqlens_k[b] :] for x in (k, v)]
            outs.append(attend(self.torch, rows, *(x[:keys] for x in of_b), causal=causal)[0].to(q.dtype))
        out = self.torch.stack(outs) if cu_seqlens_q is None else self.torch.cat(outs)
        return (out, None) if self.version > 3 else out

    def flash_attn_with_kvcache(
        self, q: Any, k_cache: Any, v_cache: Any, k: Any = None, v: Any = None, **how: Any
    ) -> Any:
        if how.get("page_table") is not None:
            return self.flash_attn_varlen_func(q, k_cache, v_cache, seqused_k=how["cache_seqlens"], **how)
        outs, starts = [], how.get("cu_seqlens_k_new")
        for b, before in enumerate(how["cache_seqlens"].tolist()):
            queries, new = q[b], [] if k is None else [k[b], v[b]]
            if starts is not None:
                new = [x[starts[b] : starts[b + 1]] for x in (k, v)]
            if how.get("rotary_cos") is not None:
                first, tables = int(how["rotary_seqlens"][b]), (how["rotary_cos"], how["rotary_sin"])
                queries, new[0] = (self._rotated(x, first, tables) for x in (queries, new[0]))
            for cache, rows in zip((k_cache, v_cache), new, strict=False):
                cache[b, before : before + len(rows)] = rows
            count = before + (len(new[0]) if new else 0)
            keys, values = (x[b, :count].double() for x in (k_cache, v_cache))
            if how.get("k_descale") is not None:
                keys, values = (
                    x * how[n][b][:, None] for x, n in ((keys, "k_descale"), (values, "v_descale"))
                )
            outs.append(attend(self.torch, queries, keys, values, causal=how["causal"])[0].to(q.dtype))
        return self.torch.stack(outs)

    def _rotated(self, rows: Any, first: int, tables: Any) -> Any:
        cos, sin = (table.numpy() for table in tables)
        turned = [rotated(row.numpy(), cos[first + i], sin[first + i], True) for i, row in enumerate(rows)]
        return self.torch.stack([self.torch.from_numpy(row) for row in turned]).to(rows.dtype)

    def get_scheduler_metadata(self, *_: Any) -> None:
        return None

    def flash_attn_combine(self, out_partial: Any, lse_partial: Any) -> tuple[Any, Any]:
        lse = lse_partial.double().logsumexp(0)
        out = ((lse_partial.double() - lse).exp()[..., None] * out_partial.double()).sum(0)
        return out.to(out_partial.dtype), lse.float()
