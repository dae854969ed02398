"""Attention to one tile of the scores, and its gradients, by the kernels of one device.

Functions of scores, ALiBi and dropout get the numbers that rows have on one device, by an array of
offsets beside the arrays of the caller. Dropout is exact without random numbers in the kernel: keys that
it keeps and keys that it drops are two parts of the keys, which masks tell apart, and the part that is
dropped has an output of 0 and its log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

import flash
from flash.distributed.functions import OF_MASK_MOD, OF_SCORE_MOD, array_names, with_parameters
from flash.distributed.packs import Pack, Rows, packs_of
from flash.distributed.tiles import Tile
from flash.mods import absolute
from flash.scores.philox import STEPS, kept, threshold

_PLACES: Final = "shard_places"
_SLOPES: Final = "shard_slopes"
MOST_KEPT: Final = 1 << 24  # random numbers of dropout, one byte each, that are made at once


class Part(NamedTuple):
    """The result of the queries `rows` of a shard for some of their keys: float32 out and lse."""

    rows: Rows
    out: Tensor
    lse: Tensor


class Gradient(NamedTuple):
    """The gradients of a tile or a pack, float32: of its rows of q, and of its keys and values."""

    dq: Tensor
    dk: Tensor
    dv: Tensor


class Arrays(NamedTuple):
    """The arrays of scores of a call that may require gradients, or None: `bias` [batch, heads, rows of
    the rank, keys], `key_bias` [batch, heads, keys] and `sink` [batch, heads], or what broadcasts to it.
    """

    bias: Tensor | None = None
    key_bias: Tensor | None = None
    sink: Tensor | None = None


@dataclass(frozen=True)
class Scores:
    """What a call does to scores, beside `Limits` and `Arrays`. `given` holds the arguments that tiles
    share: softmax_scale, softcap, precision, backend.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    score_mod: Callable[..., Any] | None = None
    mask_mod: Callable[..., Any] | None = None
    aux: Mapping[str, Tensor] | None = None
    alibi_slopes: Tensor | None = None
    mask: Tensor | None = None
    dropout: float = 0.0
    dropout_seed: int = 0
    of_documents: bool = False  # whether batch items are the documents of a packed sequence


class TileAttention:
    """Attention of tiles whose q has `heads` heads from `first_head` on, of `all_heads` in the call."""

    def __init__(self, scores: Scores, arrays: Arrays, first_head: int, heads: int, all_heads: int) -> None:
        self.scores, self.arrays = scores, arrays
        self.first_head, self.heads, self.all_heads = first_head, heads, all_heads

    def together(self, tiles: Sequence[Tile], into: Arrays | None = None) -> Sequence[Tile | Pack]:
        """The tiles, those of documents in packs of which each is one call; without dropout, whose masks are
        of one document, and without gradients that are added to arrays `into`, except to the sink.
        """
        arrays = () if into is None else into._replace(sink=None)
        if not self.scores.of_documents or self.scores.dropout or any(t is not None for t in arrays):
            return tiles
        return packs_of(tiles)

    def parts(self, q: Tensor, k: Tensor, v: Tensor, tile: Tile | Pack) -> Iterator[Part]:
        """The results of a tile or a pack: [batch, heads, rows, head_dim_v] and [batch, heads, rows]; q, k
        and v are whole shards, heads first.
        """
        if isinstance(tile, Pack):
            yield self._packed_part(q, k, v, tile)
            return
        q, k, v = q[:, :, tile.queries], k[:, :, tile.keys], v[:, :, tile.keys]
        arguments = self.arguments(q, tile)
        if not self.scores.dropout:
            out, lse = flash.attention(q, k, v, return_lse=True, **arguments)
            yield Part(tile.queries, out.float(), lse)
            return
        keep, dropped = self._masks(q, tile, arguments.pop("mask", None))
        out, lse = flash.attention(q, k, v, return_lse=True, mask=keep, **arguments)
        yield Part(tile.queries, out.float() * self._factor, lse)
        _, lse = flash.attention(q, k, v[..., :1], return_lse=True, mask=dropped, **arguments)
        yield Part(tile.queries, torch.zeros_like(out, dtype=torch.float32), lse)

    def gradient(
        self,
        dout: Tensor,
        dlse: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        tile: Tile | Pack,
        into: Arrays,
    ) -> Gradient:
        """The gradients of a tile or a pack, where `out` and `lse` are the results for all keys. What it adds
        to the gradients of arrays is added to `into`.
        """
        if isinstance(tile, Pack):
            return self._packed_gradient(dout, dlse, q, k, v, out, lse, tile)
        rows = tile.queries
        dout, out, q = dout[:, :, rows], out[:, :, rows], q[:, :, rows]
        lse = lse[:, :, rows].contiguous()
        dlse = None if dlse is None else dlse[:, :, rows].contiguous()
        k, v = k[:, :, tile.keys], v[:, :, tile.keys]
        arguments = self.arguments(q, tile)
        wanted = [name for name in ("bias", "key_bias") if getattr(into, name) is not None]
        if not self.scores.dropout:
            found = flash.attention_backward(dout, q, k, v, out, lse, dlse=dlse, wanted=wanted, **arguments)
            self._add(into, found.arrays, tile)
            return Gradient(found.dq.float(), found.dk.float(), found.dv.float())
        # dS = P (keep dout V^T / p - delta + dlse) in two parts: where keys are kept, and where not.
        # With out = 0 the kernels' own delta is 0, and dlse carries it. All is multiplied by p first.
        keep, dropped = self._masks(q, tile, arguments.pop("mask", None))
        p = 1 / self._factor
        delta = (dout.float() * out.float()).sum(-1)
        change = -delta if dlse is None else dlse - delta
        one = flash.attention_backward(
            dout, q, k, v, torch.zeros_like(out), lse,
            dlse=(change * p).contiguous(), mask=keep, wanted=wanted, **arguments,
        )  # fmt: skip
        none, narrow = torch.zeros_like(out[..., :1]), v[..., :1]
        two = flash.attention_backward(
            none, q, k, narrow, none, lse,
            dlse=change.contiguous(), mask=dropped, wanted=wanted, **arguments,
        )  # fmt: skip
        self._add(into, {n: t * self._factor for n, t in one.arrays.items()}, tile)
        self._add(into, two.arrays, tile)
        f = self._factor
        return Gradient(
            one.dq.float() * f + two.dq.float(), one.dk.float() * f + two.dk.float(), one.dv.float() * f
        )

    def _packed_part(self, q: Tensor, k: Tensor, v: Tensor, pack: Pack) -> Part:
        arguments = self.arguments(q, pack) | pack.lengths(q.device)
        del arguments["max_seqlen_k"]
        of_q, of_k = pack.queries, pack.keys
        out, lse = flash.attention_varlen(
            _rows_first(q, of_q), _rows_first(k, of_k), _rows_first(v, of_k), return_lse=True, **arguments
        )
        return Part(pack.queries, _heads_first(out), lse[None])

    def _packed_gradient(
        self,
        dout: Tensor,
        dlse: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        pack: Pack,
    ) -> Gradient:
        arguments = self.arguments(q, pack) | pack.lengths(q.device)
        of_q, of_k = pack.queries, pack.keys
        found = flash.attention_varlen_backward(
            _rows_first(dout, of_q),
            _rows_first(q, of_q),
            _rows_first(k, of_k),
            _rows_first(v, of_k),
            _rows_first(out, of_q),
            lse[0][:, of_q].contiguous(),
            dlse=None if dlse is None else dlse[0][:, of_q].contiguous(),
            **arguments,
        )
        return Gradient(*(_heads_first(t) for t in (found.dq, found.dk, found.dv)))

    def sinks(self, documents: Tensor) -> Tensor | None:
        """The logit that each row has beside its keys, broadcast to [batch, heads, rows]; None without a
        sink. `documents` has the document of each row, -1 for a row of none, which has no sink.
        """
        sink = self.arrays.sink
        if sink is None:
            return None
        wide = sink.detach().float()
        wide = wide if wide.dim() == 2 else wide.reshape(1, -1)
        wide = wide[:, self._own(wide.shape[1])]
        found = wide[..., None].expand(-1, -1, len(documents))
        if self.scores.of_documents and len(wide) > 1:
            found = wide[documents.clamp(min=0)].T[None]
        return found.masked_fill(documents < 0, -torch.inf)

    def add_sinks(self, into: Tensor, each: Tensor, documents: Tensor) -> None:
        """Add the gradients `each` [batch, heads, rows] of the logits of rows to those of the sink."""
        wide = into if into.dim() == 2 else into.reshape(1, -1)
        target = wide[:, self._own(wide.shape[1])]
        each = each.masked_fill(documents < 0, 0.0)
        if self.scores.of_documents and len(wide) > 1:
            target.index_add_(0, documents.clamp(min=0), each[0].T.to(into.dtype))
            return
        total = each.sum(-1)
        total = total.sum(0, keepdim=True) if len(wide) == 1 else total
        target += total.sum(1, keepdim=True) if wide.shape[1] == 1 else total

    def _own(self, heads: int) -> slice:
        """The heads of this rank in an array of so many heads, which may be one for all."""
        return slice(self.first_head, self.first_head + self.heads) if heads > 1 else slice(None)

    @property
    def _factor(self) -> float:
        return STEPS / threshold(self.scores.dropout)

    def _masks(self, q: Tensor, tile: Tile, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The keys that dropout keeps and those that it drops, of those that `mask` shows."""
        batch, heads, rows, _ = q.shape
        queries = tile.first_query + tile.step * np.arange(rows)
        keys = tile.first_key + tile.step * np.arange(tile.sizes[1])
        items = tile.document + np.arange(batch)
        numbers = items[:, None] * self.all_heads + self.first_head + np.arange(heads)
        keep = [kept(self.scores.dropout, self.scores.dropout_seed, n, queries, keys) for n in numbers]
        found = torch.from_numpy(np.stack(keep)).to(q.device)
        return (found, ~found) if mask is None else (found & mask, ~found & mask)

    def arguments(self, q: Tensor, tile: Tile | Pack) -> dict[str, Any]:
        """The arguments of `flash.attention` for a tile, or of `flash.attention_varlen` for a pack."""
        of = self.scores
        found: dict[str, Any] = dict(of.given)
        if tile.right == 0:
            found["causal"] = True
        right = None if tile.right == 0 else tile.right
        if tile.left is not None or right is not None:
            found["window"] = (tile.left, right)
        if isinstance(tile, Tile):
            found |= self._arrays_of(tile)
        if of.score_mod is not None or of.alibi_slopes is not None:
            found["score_mod"] = _moved(of.score_mod, tile.step, of.alibi_slopes is not None)
        if of.mask_mod is not None:
            found["mask_mod"] = _moved_mask(of.mask_mod, tile.step)
        if "score_mod" in found or "mask_mod" in found:
            found["aux"] = {_PLACES: self._places(q, tile), **(of.aux or {})}
            if of.alibi_slopes is not None:
                slopes = of.alibi_slopes
                found["aux"][_SLOPES] = slopes if slopes.dim() == 2 else slopes.reshape(1, -1)
        return found

    def _places(self, q: Tensor, tile: Tile | Pack) -> Tensor:
        """What functions of scores count from, for each batch item or document: int32 [items, 5]."""
        tiles = (
            [replace(tile, document=tile.document + n) for n in range(len(q))]
            if isinstance(tile, Tile)
            else tile.tiles
        )
        rows = [[t.first_query, t.first_key, t.document, self.first_head, t.position] for t in tiles]
        return torch.tensor(rows, dtype=torch.int32, device=q.device)

    def _arrays_of(self, tile: Tile) -> dict[str, Any]:
        """The arrays of scores as far as a tile has them."""
        found: dict[str, Any] = {}
        of = self.scores
        if of.mask is not None:
            found["mask"] = self._cut(of.mask, tile, has_rows=True)
        if self.arrays.bias is not None:
            found["bias"] = self._cut(self.arrays.bias.detach(), tile, has_rows=True)
        if self.arrays.key_bias is not None:
            found["key_bias"] = self._cut(self.arrays.key_bias.detach(), tile, has_rows=False)
        return found

    def _cut(self, array: Tensor, tile: Tile, *, has_rows: bool) -> Tensor:
        """The part of an array of scores that a tile has; axes of one element stay."""
        return array[self._index(array, tile, has_rows=has_rows)]

    def _index(self, array: Tensor, tile: Tile, *, has_rows: bool) -> tuple[Any, ...]:
        of_heads = slice(self.first_head, self.first_head + self.heads)
        whole = [slice(None), of_heads, tile.queries, tile.columns]
        if not has_rows:
            del whole[2]
        parts = whole[len(whole) - array.dim() :]
        return tuple(part if n > 1 else slice(None) for part, n in zip(parts, array.shape, strict=True))

    def _add(self, into: Arrays, found: Mapping[str, Tensor], tile: Tile) -> None:
        for name, part in found.items():
            total = getattr(into, name)
            total[self._index(total, tile, has_rows=name == "bias")] += part


def _rows_first(x: Tensor, rows: Rows) -> Tensor:
    """Some rows of a shard as [rows, heads, columns]."""
    return x[0][:, rows].transpose(0, 1)


def _heads_first(x: Tensor) -> Tensor:
    """The inverse of `_rows_first`, float32."""
    return x.transpose(0, 1)[None].float()


def _moved(function: Callable[..., Any] | None, step: int, alibi: bool) -> Callable[..., Any]:
    """A score_mod that calls `function` with the numbers that rows have on one device, and then
    subtracts what ALiBi does, if asked.
    """
    names = [] if function is None else array_names(function, OF_SCORE_MOD)

    def moved(score: Any, batch: Any, head: Any, query: Any, key: Any, **arrays: Any) -> Any:
        places = arrays.pop(_PLACES)
        slopes = arrays.pop(_SLOPES, None)
        query, key = query * step + places[batch, 0], key * step + places[batch, 1]
        shift = places[batch, 4] if slopes is not None else 0
        batch, head = places[batch, 2], head + places[batch, 3]
        if function is not None:
            score = function(score, batch, head, query, key, **arrays)
        if slopes is not None:
            score = score - slopes[batch, head] * absolute(query + shift - key)
        return score

    return with_parameters(moved, [*OF_SCORE_MOD, *names, _PLACES, *([_SLOPES] if alibi else [])])


def _moved_mask(function: Callable[..., Any], step: int) -> Callable[..., Any]:
    """A mask_mod that calls `function` with the numbers that rows have on one device."""
    names = array_names(function, OF_MASK_MOD)

    def moved(batch: Any, head: Any, query: Any, key: Any, **arrays: Any) -> Any:
        places = arrays.pop(_PLACES)
        return function(
            places[batch, 2],
            head + places[batch, 3],
            query * step + places[batch, 0],
            key * step + places[batch, 1],
            **arrays,
        )

    return with_parameters(moved, [*OF_MASK_MOD, *names, _PLACES])
