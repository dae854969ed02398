"""The calls of xformers 0.0.30 and FlashInfer that docs/migration.md has, by their documentation, in
plain PyTorch and float64: neither library runs without a GPU.
"""

from __future__ import annotations

import math
from types import ModuleType, SimpleNamespace
from typing import Any


def _attend(
    torch: ModuleType, q: Any, k: Any, v: Any, visible: Any = None, bias: Any = 0.0, **how: Any
) -> tuple[Any, Any]:
    """out [seq_q, heads, dim] and lse [seq_q, heads], natural logarithm, of q [seq_q, heads, dim] and
    k, v [seq_k, kv_heads, dim]; `visible` [seq_q, seq_k] and `bias` [heads, seq_q, seq_k].
    """
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 0) for x in (k, v))
    scale = how.get("scale")
    score = q @ k.transpose(1, 2) * (q.shape[2] ** -0.5 if scale is None else scale)
    cap = how.get("softcap") or 0.0
    if cap > 0:
        score = cap * torch.tanh(score / cap)
    score = score + bias
    if visible is not None:
        score = score.masked_fill(~visible, -torch.inf)
    lse = score.logsumexp(2)
    out = (score - lse[:, :, None]).exp().nan_to_num(0.0) @ v
    return out.transpose(0, 1).float(), lse.T.float()


class Xformers:
    """`xformers.ops`, and its `fmha.attn_bias` as `bias`."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch
        self.fmha = SimpleNamespace(
            memory_efficient_attention_forward_requires_grad=lambda *of: self._both(*of)
        )
        band = self._band
        self.bias = SimpleNamespace(
            LowerTriangularMask=lambda: band("top_left", None, 0),
            LowerTriangularFromBottomRightMask=lambda: band("bottom_right", None, 0),
            LowerTriangularFromBottomRightLocalAttentionMask=lambda n: band("bottom_right", n - 1, 0),
            LocalAttentionFromBottomRightMask=lambda left, right: band("bottom_right", left, right),
            LowerTriangularMaskWithTensorBias=lambda bias: (band("top_left", None, 0), bias),
            BlockDiagonalMask=SimpleNamespace(from_seqlens=lambda q, k: _Blocks(self, q, k, k)),
            PagedBlockDiagonalCausalWithOffsetPaddedKeysMask=SimpleNamespace(
                from_seqlens=lambda q, table, k, page_size: _Blocks(
                    self, q, [], k, band("bottom_right", None, 0), (table, page_size)
                )
            ),
            BlockDiagonalCausalWithOffsetPaddedKeysMask=SimpleNamespace(
                from_seqlens=lambda q, room, k: _Blocks(
                    self, q, [room] * len(k), k, band("bottom_right", None, 0)
                )
            ),
        )

    def _band(self, corner: str, left: int | None, right: int) -> Any:
        """A function of seq_q and seq_k: which keys each query sees."""

        def visible(seq_q: int, seq_k: int) -> Any:
            shift = seq_k - seq_q if corner == "bottom_right" else 0
            result = self.torch.ones(seq_q, seq_k, dtype=self.torch.bool).tril(shift + right)
            return result if left is None else result.triu(shift - left)

        return visible

    def _both(
        self, q: Any, k: Any, v: Any, attn_bias: Any = None, p: float = 0.0, scale: Any = None
    ) -> tuple[Any, Any]:
        assert p == 0
        if isinstance(attn_bias, _Blocks):
            assert q.shape[0] == 1
            return attn_bias.attend(q[0], k[0], v[0])[None], None
        band, added = attn_bias if isinstance(attn_bias, tuple) else (attn_bias, None)
        if isinstance(attn_bias, self.torch.Tensor):
            band, added = None, attn_bias
        visible = None if band is None else band(q.shape[1], k.shape[1])
        result = [
            _attend(self.torch, q[b], k[b], v[b], visible, 0.0 if added is None else added[b], scale=scale)
            for b in range(q.shape[0])
        ]
        outs, lses = zip(*result, strict=True)
        return self.torch.stack(outs), self.torch.stack(lses).transpose(1, 2)

    def memory_efficient_attention(
        self, q: Any, k: Any, v: Any, attn_bias: Any = None, p: float = 0.0, scale: Any = None
    ) -> Any:
        if q.dim() == 5:  # [batch, seq, groups, heads of a group, dim]
            flat = [x.flatten(2, 3) for x in (q, k, v)]
            return self._both(*flat, attn_bias, p, scale)[0].unflatten(2, q.shape[2:4])
        return self._both(q, k, v, attn_bias, p, scale)[0]


class _Blocks:
    """Packed sequences: `q` and `room` rows of each, of which `k` keys count."""

    def __init__(
        self, xops: Xformers, q: list[int], room: list[int], k: list[int], band: Any = None, pages: Any = None
    ) -> None:
        self.xops, self.q, self.room, self.k, self.band, self.pages = xops, q, room, k, band, pages

    def _with(self, band: Any) -> _Blocks:
        return _Blocks(self.xops, self.q, self.room, self.k, band)

    def make_causal(self) -> _Blocks:
        return self._with(self.xops.bias.LowerTriangularMask())

    def make_causal_from_bottomright(self) -> _Blocks:
        return self._with(self.xops.bias.LowerTriangularFromBottomRightMask())

    def make_local_attention_from_bottomright(self, window: int) -> _Blocks:
        return self._with(self.xops.bias.LowerTriangularFromBottomRightLocalAttentionMask(window))

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        torch, outs = self.xops.torch, []
        if self.pages is None:
            of_k, of_v = k.split(self.room), v.split(self.room)
        else:
            table, page_size = self.pages
            of_k, of_v = (
                [torch.cat([x.split(page_size)[page] for page in own]) for own in table.tolist()]
                for x in (k, v)
            )
        blocks = zip(q.split(self.q), of_k, of_v, self.k, strict=True)
        for queries, keys, values, used in blocks:
            visible = None if self.band is None else self.band(len(queries), used)
            outs.append(_attend(torch, queries, keys[:used], values[:used], visible)[0])
        return torch.cat(outs)


class FlashInfer:
    """`flashinfer`."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch
        self.BatchPrefillWithRaggedKVCacheWrapper = lambda _, layout: _Ragged(self, layout)
        self.BatchPrefillWithPagedKVCacheWrapper = lambda _, layout: _PagedPrefill(self, layout)
        self.BatchDecodeWithPagedKVCacheWrapper = lambda _, layout: _Paged(self, layout)

    def single_prefill_with_kv_cache(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        custom_mask: Any = None,
        causal: bool = False,
        kv_layout: str = "NHD",
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        pos_encoding_mode: str = "NONE",
        return_lse: bool = False,
    ) -> Any:
        if kv_layout == "HND":
            k, v = k.transpose(0, 1), v.transpose(0, 1)
        here = self.torch.arange(len(q))[:, None] + len(k) - len(q)
        keys = self.torch.arange(len(k))
        visible = keys >= (here - window_left if window_left >= 0 else 0 * here)
        if custom_mask is not None:
            visible = visible & custom_mask
        elif causal:
            visible = visible & (keys <= here)
        bias: Any = 0.0
        if pos_encoding_mode == "ALIBI":  # include/flashinfer/attention/variants.cuh
            heads = self.torch.arange(1, q.shape[1] + 1)
            slopes = 2.0 ** (-8 * heads / q.shape[1])
            bias = slopes[:, None, None] * (keys - self.torch.arange(len(q))[:, None])
        out, lse = _attend(self.torch, q, k, v, visible, bias, scale=sm_scale, softcap=logits_soft_cap)
        return (out, lse / math.log(2)) if return_lse else out

    def single_decode_with_kv_cache(self, q: Any, k: Any, v: Any) -> Any:
        return _attend(self.torch, q[None], k, v)[0][0]

    def merge_states(self, v: Any, s: Any) -> tuple[Any, Any]:
        total = self.torch.logsumexp(s.double() * math.log(2), 1) / math.log(2)
        weight = 2 ** (s.double() - total[:, None])
        return (weight[..., None] * v.double()).sum(1).float(), total.float()

    def merge_state(self, v_a: Any, s_a: Any, v_b: Any, s_b: Any) -> tuple[Any, Any]:
        return self.merge_states(self.torch.stack((v_a, v_b), 1), self.torch.stack((s_a, s_b), 1))

    def append_paged_kv_cache(
        self, k: Any, v: Any, items: Any, positions: Any, pages: Any, indices: Any, indptr: Any, _: Any
    ) -> None:
        page_size = pages.shape[2]
        for n, (item, position) in enumerate(zip(items.tolist(), positions.tolist(), strict=True)):
            page = indices[indptr[item] + position // page_size]
            pages[page, 0, position % page_size], pages[page, 1, position % page_size] = k[n], v[n]


class _Ragged:
    def __init__(self, library: FlashInfer, layout: str) -> None:
        assert layout == "NHD"
        self.library = library

    def plan(self, qo_indptr: Any, kv_indptr: Any, *sizes: int, causal: bool = False) -> None:
        assert len(sizes) == 3
        self.rows, self.keys, self.causal = qo_indptr.tolist(), kv_indptr.tolist(), causal

    def run(self, q: Any, k: Any, v: Any) -> Any:
        outs = []
        for b in range(len(self.rows) - 1):
            rows, keys = slice(*self.rows[b : b + 2]), slice(*self.keys[b : b + 2])
            outs.append(
                self.library.single_prefill_with_kv_cache(q[rows], k[keys], v[keys], causal=self.causal)
            )
        return self.library.torch.cat(outs)


class _Paged:
    def __init__(self, library: FlashInfer, layout: str) -> None:
        self.library, self.layout = library, layout

    def plan(self, indptr: Any, indices: Any, last_page_len: Any, *sizes: int) -> None:
        self.pages = [list(x) for x in indices.split(indptr.diff().tolist())]
        self.last, self.page_size = last_page_len.tolist(), sizes[3]

    def run(self, q: Any, pages: Any) -> Any:
        if self.layout == "HND":
            pages = pages.transpose(2, 3)
        outs = []
        for b, (own, last) in enumerate(zip(self.pages, self.last, strict=True)):
            rows = (len(own) - 1) * self.page_size + last
            k, v = (self.library.torch.cat([pages[page, side] for page in own])[:rows] for side in (0, 1))
            outs.append(self.library.single_decode_with_kv_cache(q[b], k, v))
        return self.library.torch.stack(outs)


class _PagedPrefill:
    def __init__(self, library: FlashInfer, layout: str) -> None:
        assert layout == "NHD"
        self.library = library

    def plan(
        self, qo_indptr: Any, indptr: Any, indices: Any, last_page_len: Any, *sizes: int, causal: bool = False
    ) -> None:
        self.rows, self.causal = qo_indptr.tolist(), causal
        self.pages = [list(x) for x in indices.split(indptr.diff().tolist())]
        self.last, self.page_size = last_page_len.tolist(), sizes[3]

    def run(self, q: Any, pages: Any) -> Any:
        outs = []
        for b, (own, last) in enumerate(zip(self.pages, self.last, strict=True)):
            rows = (len(own) - 1) * self.page_size + last
            k, v = (self.library.torch.cat([pages[page, side] for page in own])[:rows] for side in (0, 1))
            queries = q[self.rows[b] : self.rows[b + 1]]
            outs.append(self.library.single_prefill_with_kv_cache(queries, k, v, causal=self.causal))
        return self.library.torch.cat(outs)
