"""Attention to one tile of the scores, and its gradients, by the kernels of one device.

Functions of scores, ALiBi and dropout get the numbers that rows have on one device, by an array of offsets in
addition to the arrays of the caller. Dropout is exact without random numbers in the kernel: keys that it
keeps and keys that it drops are two parts of the keys, which masks tell apart, and the part that is dropped
has an output of 0 and its log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

import flash
from flash.distributed.arrays import (
    BEGINNING,
    BIAS,
    BY_POSITION,
    FEATURES,
    KEY_BIAS,
    OF_TILES,
    Arrays,
    by_items,
    part_of,
)
from flash.distributed.functions import (
    OF_MASK_MOD,
    OF_SCORE_MOD,
    RESERVED,
    array_names,
    with_internal_arrays,
    with_parameters,
)
from flash.distributed.packs import Pack, Rows, packs_of
from flash.distributed.tiles import Tile
from flash.operands.dtype_names import Backend
from flash.scores.philox import STEPS, keep_mask, threshold

_COORDINATES: Final = f"{RESERVED}places"
MOST_SUMMED: Final = 1 << 22  # f32 gradients of scores that a tile keeps to make those of slopes
MOST_RANDOM_NUMBERS: Final = 1 << 24  # random numbers of dropout, one byte each, that are made at once


class Part(NamedTuple):
    """The result of the queries `rows` of a shard for some of their keys: float32 out and lse, and if it is
    wanted the largest scores of heads, [batch, heads], or of each of `documents`.
    """

    rows: Rows
    out: Tensor
    lse: Tensor
    tops: Tensor | None = None
    documents: Sequence[int] = ()


def merged_parts(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The merge of partial results, float32 [batch, heads, rows, head_dim_v] and [batch, heads, rows], by the
    device that they are on: PTXGEN_BACKEND is the backend of the parts.
    """
    where: Backend = "cuda" if outs[0].is_cuda else "cpu"
    return flash.merge_partials(torch.stack(tuple(outs)), torch.stack(tuple(lses)), backend=where)


class Gradient(NamedTuple):
    """The gradients of a tile or a pack, float32: of its rows of q, and of its keys and values."""

    dq: Tensor
    dk: Tensor
    dv: Tensor


@dataclass(frozen=True)
class Scores:
    """The changes of scores by a call, apart from `Limits` and `Arrays`. `shared` holds the arguments that
    tiles share: softmax_scale, precision, backend, and those of features without arrays that count no
    positions.
    """

    shared: Mapping[str, Any] = field(default_factory=dict)
    score_mod: Callable[..., Any] | None = None
    mask_mod: Callable[..., Any] | None = None
    aux: Mapping[str, Tensor] | None = None
    dropout: float = 0.0
    dropout_seed: int = 0
    of_documents: bool = False  # whether batch items are the documents of a packed sequence


class TileAttention:
    """Attention of tiles of some heads, from `first_head` on, of `all_heads` in the call. `arrays` are those
    of these heads, and have the rows of the tiles' shards.
    """

    def __init__(self, scores: Scores, arrays: Arrays, first_head: int, all_heads: int) -> None:
        self.scores, self.arrays = scores, arrays
        self.first_head, self.all_heads = first_head, all_heads

    def together(self, tiles: Sequence[Tile], into: Arrays | None = None) -> Sequence[Tile | Pack]:
        """The tiles, with those of documents joined to packs, each of which is one call. Tiles are not joined
        with dropout, whose masks are of one document, nor if they add gradients to arrays `into`.
        """
        adds = any(name not in BEGINNING for name in into or ())
        return tiles if adds or not self.scores.of_documents or self.scores.dropout else packs_of(tiles)

    def parts(
        self, q: Tensor, k: Tensor, v: Tensor, tile: Tile | Pack, *, with_tops: bool = False
    ) -> Iterator[Part]:
        """The results of a tile or a pack: [batch, heads, rows, head_dim_v] and [batch, heads, rows]; q, k
        and v are whole shards, heads first.
        """
        how: dict[str, Any] = {"return_lse": True, "return_max_logit": with_tops}
        if isinstance(tile, Pack):
            yield self._packed_part(q, k, v, tile, how)
            return
        documents = (tile.document,) if self.scores.of_documents else ()
        q, k, v = q[:, :, tile.queries], k[:, :, tile.keys], v[:, :, tile.keys]
        arguments = self.arguments(q, tile)
        if not self.scores.dropout:
            out, lse, *tops = flash.attention(q, k, v, **how, **arguments)
            yield Part(tile.queries, out.float(), lse, _first(tops), documents)
            return
        keep, dropped = self._masks(q, tile, arguments.pop("mask", None))
        out, lse, *tops = flash.attention(q, k, v, mask=keep, **how, **arguments)
        yield Part(tile.queries, out.float() * self._factor, lse, _first(tops), documents)
        _, lse, *tops = flash.attention(q, k, v[..., :1], mask=dropped, **how, **arguments)
        nothing = torch.zeros_like(out, dtype=torch.float32)
        yield Part(tile.queries, nothing, lse, _first(tops), documents)

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
        """The gradients of a tile or a pack, where `out` and `lse` are the results for all keys. Its terms of
        the gradients of arrays are added to `into`, of the same heads. For those of `BY_POSITION`, a tile has
        at most `MOST_SUMMED` scores.
        """
        if isinstance(tile, Pack):
            return self._packed_gradient(dout, dlse, q, k, v, out, lse, tile)
        rows = tile.queries
        dout, out, q = dout[:, :, rows], out[:, :, rows], q[:, :, rows]
        lse = lse[:, :, rows].contiguous()
        dlse = None if dlse is None else dlse[:, :, rows].contiguous()
        k, v = k[:, :, tile.keys], v[:, :, tile.keys]
        arguments = self.arguments(q, tile)
        wanted = [name for name in OF_TILES if name in into]
        if any(name in into for name in BY_POSITION):
            arguments[BIAS] = _bias_of_scores(arguments, (*q.shape[:3], k.shape[2]), q.device)
            wanted = [BIAS, *(name for name in wanted if name not in (BIAS, KEY_BIAS))]
        if not self.scores.dropout:
            gradients = flash.attention_backward(
                dout, q, k, v, out, lse, dlse=dlse, wanted=wanted, **arguments
            )
            self._add(into, gradients.arrays, tile)
            return Gradient(gradients.dq.float(), gradients.dk.float(), gradients.dv.float())
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

    def _packed_part(self, q: Tensor, k: Tensor, v: Tensor, pack: Pack, how: dict[str, Any]) -> Part:
        arguments = self.arguments(q, pack) | pack.lengths(q.device)
        del arguments["max_seqlen_k"]
        of_q, of_k = pack.queries, pack.keys
        out, lse, *tops = flash.attention_varlen(
            _rows_first(q, of_q), _rows_first(k, of_k), _rows_first(v, of_k), **how, **arguments
        )
        documents = [tile.document for tile in pack.tiles]
        return Part(pack.queries, _heads_first(out), lse[None], _first(tops), documents)

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
        gradients = flash.attention_varlen_backward(
            _rows_first(dout, of_q),
            _rows_first(q, of_q),
            _rows_first(k, of_k),
            _rows_first(v, of_k),
            _rows_first(out, of_q),
            lse[0][:, of_q].contiguous(),
            dlse=None if dlse is None else dlse[0][:, of_q].contiguous(),
            **arguments,
        )
        return Gradient(*(_heads_first(t) for t in (gradients.dq, gradients.dk, gradients.dv)))

    def first_logits(self, documents: Tensor) -> dict[str, Tensor]:
        """The logits that each row has in addition to its keys, by the array that has them, broadcast to
        [batch, heads, rows]. `documents` has the document of each row, -1 for a row of none, which has no
        such logit.
        """
        logits = {}
        for name in BEGINNING:
            if name in self.arrays:
                numbers = by_items(self.arrays[name].detach().float())
                wide = numbers[..., None].expand(-1, -1, len(documents))
                if self.scores.of_documents and len(numbers) > 1:
                    wide = numbers[documents.clamp(min=0)].T[None]
                logits[name] = wide.masked_fill(documents < 0, -torch.inf)
        return logits

    def add_first(self, into: Tensor, each: Tensor, documents: Tensor) -> None:
        """Add the gradients `each` [batch, heads, rows] of the logits of rows to those of their array."""
        each = each.masked_fill(documents < 0, 0.0)
        wide = by_items(into)
        if not self.scores.of_documents or len(wide) == 1:
            wide += each.sum(-1).sum_to_size(wide.shape)
            return
        numbers, counts = torch.unique_consecutive(documents, return_counts=True)
        for number, part in zip(numbers.tolist(), each[0].split(counts.tolist(), dim=1), strict=True):
            target = wide[max(number, 0)]  # rows of no document add 0
            target += part.sum(1).sum_to_size(target.shape)

    @staticmethod
    def _by_position(name: str, dscores: Tensor, tile: Tile) -> Tensor:
        """The gradients [batch, heads] of numbers of heads, by those of a tile's scores."""
        steps = [tile.step * torch.arange(n, device=dscores.device) for n in tile.sizes]
        query = (tile.position + tile.first_query + steps[0])[:, None]
        return (dscores * FEATURES[name].factor(query, tile.first_key + steps[1])).sum((2, 3))

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
        keep = [keep_mask(self.scores.dropout, self.scores.dropout_seed, n, queries, keys) for n in numbers]
        survives = torch.from_numpy(np.stack(keep)).to(q.device)
        return (survives, ~survives) if mask is None else (survives & mask, ~survives & mask)

    def arguments(self, q: Tensor, tile: Tile | Pack) -> dict[str, Any]:
        """The arguments of `flash.attention` for a tile, or of `flash.attention_varlen` for a pack."""
        of = self.scores
        arguments: dict[str, Any] = dict(of.shared)
        if tile.right == 0:
            arguments["causal"] = True
        right = None if tile.right == 0 else tile.right
        if tile.left is not None or right is not None:
            arguments["window"] = (tile.left, right)
        arguments |= self._arrays_of(tile, len(q))
        functions: dict[str, Callable[..., Any]] = {}
        counting = [name for name in BY_POSITION if name in self.arrays]
        if of.score_mod is not None or counting:
            functions["score_mod"] = _moved(of.score_mod, tile.step, counting)
        if of.mask_mod is not None:
            functions["mask_mod"] = _moved_mask(of.mask_mod, tile.step)
        if functions:
            internal = {_COORDINATES: self._coordinates(q, tile)}
            internal |= {f"{RESERVED}{name}": by_items(self.arrays[name].detach()) for name in counting}
            arguments |= with_internal_arrays(functions, internal, of.aux)
        return arguments

    def _coordinates(self, q: Tensor, tile: Tile | Pack) -> Tensor:
        """The coordinates from which functions of scores count, for each batch item or document: int32
        [items, 5].
        """
        tiles = (
            [replace(tile, document=tile.document + n) for n in range(len(q))]
            if isinstance(tile, Tile)
            else tile.tiles
        )
        rows = [[t.first_query, t.first_key, t.document, self.first_head, t.position] for t in tiles]
        return torch.tensor(rows, dtype=torch.int32, device=q.device)

    def _arrays_of(self, tile: Tile | Pack, items: int) -> dict[str, Any]:
        """The slices of the arrays of scores that belong to a tile or a pack."""
        arrays: dict[str, Any] = {}
        for name in OF_TILES:
            if name in self.arrays:
                array = self.arrays[name].detach()
                if isinstance(tile, Tile):
                    arrays[name] = part_of(array, name, **_cut(tile, items))
                else:  # documents have numbers of heads alone
                    rows = by_items(array)
                    arrays[name] = rows if len(rows) == 1 else rows[[one.document for one in tile.tiles]]
        return arrays

    def _add(self, into: Arrays, gradients: Mapping[str, Tensor], tile: Tile) -> None:
        """Add the gradients of a tile's slices of arrays to `into`. If some arrays depend on positions, the
        gradient of the bias is that of all scores.
        """
        parts = dict(gradients)
        for name in BY_POSITION:
            if name in into:
                parts[KEY_BIAS] = parts[BIAS].sum(2)
                parts[name] = self._by_position(name, parts[BIAS], tile)
        for name, part in parts.items():
            if name in into:
                target = part_of(into[name], name, **_cut(tile, len(part)))
                target += part.sum_to_size(target.shape)


def _cut(tile: Tile, items: int) -> dict[str, slice]:
    """The slices of arrays of scores for a tile of `items` batch items."""
    first = tile.document
    return {"batch": slice(first, first + items), "seq_q": tile.queries, "seq_k": tile.columns}


def _bias_of_scores(arguments: dict[str, Any], shape: tuple[int, ...], device: torch.device) -> Tensor:
    """The bias of a tile, or its key bias instead, or 0, as an f32 array of this shape, whose gradient is
    that of the scores; the key bias is taken out of the arguments.
    """
    of_keys = arguments.pop(KEY_BIAS, None)
    bias = torch.zeros((), device=device) if of_keys is None else of_keys
    bias = arguments.get(BIAS, bias.unsqueeze(-2) if bias.dim() else bias)
    return bias.float().expand(shape)


def _first(tensors: Sequence[Tensor]) -> Tensor | None:
    """The first of `tensors`; None if it is empty."""
    return tensors[0] if tensors else None


def _rows_first(x: Tensor, rows: Rows) -> Tensor:
    """The rows `rows` of a shard as [rows, heads, columns]."""
    return x[0][:, rows].transpose(0, 1)


def _heads_first(x: Tensor) -> Tensor:
    """The inverse of `_rows_first`, float32."""
    return x.transpose(0, 1)[None].float()


def _moved(function: Callable[..., Any] | None, step: int, counting: Sequence[str]) -> Callable[..., Any]:
    """A score_mod that calls `function` with the indices that rows of a tile have in the whole sequence, and
    then adds the terms of the arrays `counting`.
    """
    names = [] if function is None else array_names(function, OF_SCORE_MOD)

    def moved(score: Any, batch: Any, head: Any, query: Any, key: Any, **arrays: Any) -> Any:
        coordinates = arrays.pop(_COORDINATES)
        numbers = {name: arrays.pop(f"{RESERVED}{name}") for name in counting}
        query, key = query * step + coordinates[batch, 0], key * step + coordinates[batch, 1]
        shift = coordinates[batch, 4] if numbers else 0
        first_head, batch = coordinates[batch, 3], coordinates[batch, 2]
        if function is not None:
            score = function(score, batch, head + first_head, query, key, **arrays)
        for name, each in numbers.items():  # of this rank's heads
            score = score + each[batch, head] * FEATURES[name].factor(query + shift, key)
        return score

    reserved = [f"{RESERVED}{name}" for name in counting]
    return with_parameters(moved, [*OF_SCORE_MOD, *names, _COORDINATES, *reserved])


def _moved_mask(function: Callable[..., Any], step: int) -> Callable[..., Any]:
    """A mask_mod that calls `function` with the indices that rows of a tile have in the whole sequence."""
    names = array_names(function, OF_MASK_MOD)

    def moved(batch: Any, head: Any, query: Any, key: Any, **arrays: Any) -> Any:
        coordinates = arrays.pop(_COORDINATES)
        return function(
            coordinates[batch, 2],
            head + coordinates[batch, 3],
            query * step + coordinates[batch, 0],
            key * step + coordinates[batch, 1],
            **arrays,
        )

    return with_parameters(moved, [*OF_MASK_MOD, *names, _COORDINATES])
