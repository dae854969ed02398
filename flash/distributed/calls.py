"""The arguments of a call on one rank: read, checked, and as words that ranks compare."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

import flash
from flash.distributed.agreement import array_number, array_words, numbers_words
from flash.distributed.arrays import FEATURES, OF_ROWS, Arrays
from flash.distributed.functions import function_words
from flash.distributed.layouts import Sharding
from flash.distributed.local import Scores, TileAttention
from flash.distributed.plan import Problem, ScoreRows
from flash.distributed.tiles import Document, Limits, Tile
from flash.functions import kernel_of_attention
from flash.mods.record import MASK_MOD, SCORE_MOD
from flash.mods.trace import AUX
from flash.operands.dtype_names import Layout
from flash.operands.dtypes import BOOL, F32
from flash.scores.aux_arrays import with_captured
from flash.scores.features import SCORES
from flash.scores.window import key_limits, sides_of
from ptxgen.arguments import integer, is_one_of
from ptxgen.errors import LaunchError, shown

_LAYOUTS: Final = ("bhsd", "bshd")
_UNLIMITED: Final = -1
_OF_LAUNCH: Final = ("softmax_scale", "precision", "backend")
_MOST_SEED: Final = 2**64 - 1
_ABSENT: Final = -1
# Arguments that tiles have as the call has them: they count no positions and choose no weights.
_OF_TILES: Final = tuple(
    feature.argument
    for feature in SCORES
    if feature.schema and not (feature.uses_position or feature.changes_weights)
)
_WORDS: Final = {"seq_q": "rows", "seq_k": "keys"}  # of axes, in messages
_CONVERSIONS: Final = {BOOL: "bool", F32: "float"}  # the method that converts to a type


@dataclass(frozen=True)
class Call:
    """The call of a rank. `words` are what all ranks must have the same, by name; `numbers` are what
    may differ; `cuts` are the ends of documents in q and in k.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    causal: Any
    window: tuple[int | None, int | None]
    layout: Layout
    packed: bool
    scores: Scores
    arrays: Arrays
    cuts: tuple[tuple[int, ...], tuple[int, ...]] | None
    words: Mapping[str, str]

    def heads_first(self, x: Tensor) -> Tensor:
        """A tensor like q as [batch, heads, rows, head_dim]."""
        if self.packed:
            return x.transpose(0, 1)[None]
        return x if self.layout == "bhsd" else x.transpose(1, 2)

    def in_layout(self, x: Tensor) -> Tensor:
        """The inverse of `heads_first`."""
        if self.packed:
            return x[0].transpose(0, 1).contiguous()
        return x if self.layout == "bhsd" else x.transpose(1, 2).contiguous()

    def lse_in_layout(self, lse: Tensor) -> Tensor:
        """The log-sum-exp as the caller has it: [heads, rows] of packed documents."""
        return lse[0] if self.packed else lse

    @property
    def numbers(self) -> tuple[int, ...]:
        """The rows of q and of k of this rank, those of each of `OF_ROWS`, -1 for an absent one; then digests
        of these arrays, 0 for an array that does not have one row.
        """
        lengths = [self.heads_first(x).shape[2] for x in (self.q, self.k)]
        arrays = [self.arrays.get(name) for name in OF_ROWS]
        rows = [_ABSENT if a is None else a.shape[-2] if a.dim() > 1 else 1 for a in arrays]
        digests = [array_number(a) if n == 1 else 0 for a, n in zip(arrays, rows, strict=True)]
        return (*lengths, *rows, *digests)


def read(
    caller: str,
    q: Any,
    k: Any,
    v: Any,
    causal: Any,
    layout: Any,
    scores: Mapping[str, Any],
    cuts: Mapping[str, Tensor | None],
) -> Call:
    """The call of these arguments. Raises `LaunchError` and `ConfigError` for errors that one rank can find
    alone.
    """
    if not is_one_of(layout, _LAYOUTS):
        raise LaunchError(f"{caller}: layout must be one of {', '.join(_LAYOUTS)}, got {shown(layout)}")
    ends = _ends(caller, cuts)
    packed = ends is not None
    _require_tensors(caller, q, k, v, packed)
    arrays = {name: array for name in FEATURES if (array := scores.get(name)) is not None}
    seed = _seed(caller, scores.get("dropout", 0.0), scores.get("dropout_seed"))
    shared = {n: scores[n] for n in (*_OF_LAUNCH, *_OF_TILES) if scores.get(n) is not None}
    of = Scores(
        shared,
        scores.get("score_mod"),
        scores.get("mask_mod"),
        scores.get("aux"),
        scores.get("dropout", 0.0),
        seed,
        packed,
    )
    sides = sides_of(caller, scores.get("window"))
    call = Call(q, k, v, causal, sides, layout, packed, of, arrays, ends, {})
    _require_shapes(caller, call)
    _require_constant(caller, {name: scores.get(name) for name in (SCORE_MOD, MASK_MOD, AUX)})
    checked = replace(call, words=_words(caller, call, scores))
    _probe(checked, scores)
    return checked


def problem_of(caller: str, call: Call, sharding: Sharding, every: Sequence[tuple[int, ...]]) -> Problem:
    """The problem of all ranks, whose `Call.numbers` are `every`. Raises `LaunchError` if the rows are not
    those of the sharding, documents and arrays do not end with the sequence, or arrays of one row differ.
    """
    queries, keys = (sum(rows[side] for rows in every) for side in (0, 1))
    for name, length, side in (("q", queries, 0), ("k", keys, 1)):
        wanted = [sharding.rows(r, length) for r in range(sharding.world)]
        got = [rows[side] for rows in every]
        if wanted != got:
            raise LaunchError(
                f"{caller}: with layout {sharding.layout!r} the {length} rows of {name} are {wanted} on "
                f"ranks 0 to {sharding.world - 1}, got {got}; make shards with ContextParallel.shard"
            )
    documents: list[Document] = []
    top_left = call.causal == "top_left"
    if call.cuts is not None:
        for name, ends, length in zip(
            ("cu_seqlens_q", "cu_seqlens_k"), call.cuts, (queries, keys), strict=True
        ):
            if ends[-1] > length:
                raise LaunchError(
                    f"{caller}: {name} must end at {length} at most, the rows of all ranks, got {ends[-1]}"
                )
        cut_q, cut_k = call.cuts
        for n in range(len(cut_q) - 1):
            shift = 0 if top_left else cut_k[n + 1] - cut_k[n] - (cut_q[n + 1] - cut_q[n])
            documents.append(Document(n, cut_q[n], cut_q[n + 1], cut_k[n], cut_k[n + 1], shift))
    for name, array in call.arrays.items():
        if FEATURES[name].axes[-1] == "seq_k" and array.dim() and array.shape[-1] not in (1, keys):
            raise LaunchError(
                f"{caller}: {name} must have a column for each of the {keys} keys of all ranks, or 1, got "
                f"{array.shape[-1]}"
            )
    q, k, v = (call.heads_first(x) for x in (call.q, call.k, call.v))
    left, right = key_limits(call.causal is not False, call.window)
    return Problem(
        sharding,
        q.shape[0],
        q.shape[1],
        k.shape[1],
        q.shape[3],
        v.shape[3],
        q.element_size(),
        queries,
        keys,
        Limits(left, right, 0 if top_left else keys - queries),
        tuple(documents),
        tuple(_of_rows(caller, call, every)),
    )


def _of_rows(caller: str, call: Call, every: Sequence[Sequence[int]]) -> Iterator[ScoreRows]:
    """The arrays of a call that have the rows of their rank. Raises `LaunchError` if that is so on some
    ranks only, or for arrays of one row for all that are not the same on every rank.
    """
    for side, name in enumerate(OF_ROWS, start=2):
        array = call.arrays.get(name)
        if array is None:
            continue
        got, queries = [rows[side] for rows in every], [rows[0] for rows in every]
        if got == queries:
            wide = (1,) * (4 - array.dim()) + tuple(array.shape)
            tracked = array.requires_grad and torch.is_grad_enabled()
            yield ScoreRows(name, wide[0], wide[1], wide[3], array.element_size(), tracked)
        elif any(rows != 1 for rows in got):
            raise LaunchError(
                f"{caller}: {name} must have the rows of q on every rank, {queries}, or 1 row on every rank, "
                f"got {got}"
            )
        elif len({rows[side + len(OF_ROWS)] for rows in every}) > 1:
            digests = ", ".join(f"{rows[side + len(OF_ROWS)]:08x}" for rows in every)
            raise LaunchError(
                f"{caller}: {name} of 1 row must be the same on every rank, got elements with digests "
                f"{digests} on ranks 0 to {len(every) - 1}"
            )


def _ends(caller: str, cuts: Mapping[str, Tensor | None]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    of_q, of_k = cuts["cu_seqlens_q"], cuts["cu_seqlens_k"]
    if of_q is None:
        if of_k is not None:
            raise LaunchError(
                f"{caller}: cu_seqlens_k is given without cu_seqlens_q; give both, or cu_seqlens_q alone"
            )
        return None
    sides = []
    for name, tensor in (("cu_seqlens_q", of_q), ("cu_seqlens_k", of_q if of_k is None else of_k)):
        ends = [int(n) for n in tensor.tolist()] if isinstance(tensor, Tensor) and tensor.dim() == 1 else []
        if len(ends) < 2 or ends[0] != 0 or any(a > b for a, b in itertools.pairwise(ends)):
            raise LaunchError(
                f"{caller}: {name} must be a tensor of integers that begins with 0 and does not fall, with "
                f"an end for each document, got {shown(tensor)}"
            )
        sides.append(tuple(ends))
    if len(sides[0]) != len(sides[1]):
        raise LaunchError(
            f"{caller}: cu_seqlens_q and cu_seqlens_k must be of as many documents, got {len(sides[0]) - 1} "
            f"and {len(sides[1]) - 1}"
        )
    return sides[0], sides[1]


def _require_tensors(caller: str, q: Any, k: Any, v: Any, packed: bool) -> None:
    axes = 3 if packed else 4
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise LaunchError(f"{caller}: {name} must be a torch.Tensor, got {type(x).__name__}")
        if x.dim() != axes:
            why = "with cu_seqlens_q" if packed else "without cu_seqlens_q"
            raise LaunchError(f"{caller}: {name} must have {axes} dimensions {why}, got {x.dim()}")
        if (x.dtype, x.device) != (q.dtype, q.device):
            raise LaunchError(
                f"{caller}: {name} must be {q.dtype} on {q.device}, as q is, got {x.dtype} on {x.device}"
            )


def _require_shapes(caller: str, call: Call) -> None:
    q, k, v = (call.heads_first(x) for x in (call.q, call.k, call.v))
    if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise LaunchError(
            f"{caller}: k and v must have the same batch, heads and rows, and k the batch and head_dim of q, "
            f"got shapes {list(call.q.shape)}, {list(call.k.shape)} and {list(call.v.shape)} with layout "
            f"{call.layout!r}"
        )
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise LaunchError(
            f"{caller}: the {q.shape[1]} heads of q must be a multiple of the {k.shape[1]} of k"
        )
    documents = None if call.cuts is None else len(call.cuts[0]) - 1
    sizes = {"batch": documents or q.shape[0], "heads": q.shape[1], "rows": q.shape[2]}
    for name, array in call.arrays.items():
        _require_array(caller, call, name, array, sizes)


def _require_array(caller: str, call: Call, name: str, array: Any, sizes: Mapping[str, int]) -> None:
    """Raise `LaunchError` for an array of scores that is not on the device of q, of another type, or whose
    axes are not those of `sizes` or 1.
    """
    if not isinstance(array, Tensor) or array.device != call.q.device:
        raise LaunchError(f"{caller}: {name} must be a tensor on {call.q.device}, got {shown(array)}")
    feature, got = FEATURES[name], str(array.dtype).removeprefix("torch.")
    wanted = feature.array_dtype
    if wanted is not None and got != wanted.array_name:
        raise LaunchError(
            f"{caller}: {name} must be {wanted.array_name}, got {got}; convert it with "
            f"{name}.{_CONVERSIONS[wanted]}()"
        )
    if call.packed and feature.of_each:
        function = SCORE_MOD if feature.changes_scores else MASK_MOD
        raise LaunchError(
            f"{caller}: {name} cannot be combined with cu_seqlens_q, as in flash.attention_varlen: documents "
            f"of their own lengths have no such array; use {function} with aux"
        )
    every = [_WORDS.get(axis, axis) for axis in feature.axes]
    axes = every[max(0, len(every) - array.dim()) :]
    wrong = array.dim() > len(axes) or any(
        n not in (1, sizes[axis]) for n, axis in zip(array.shape, axes, strict=True) if axis in sizes
    )
    if wrong:
        want = ", ".join(
            f"{axis} {sizes[axis]}" if axis in sizes else f"{axis} of all ranks" for axis in axes
        )
        raise LaunchError(
            f"{caller}: {name} must broadcast to [{', '.join(every)}] ({want}), got shape {list(array.shape)}"
        )


def _require_constant(caller: str, functions: Mapping[str, Any]) -> None:
    """Raise `LaunchError` for arrays that would need gradients, of functions of scores and those that they
    close over.
    """
    aux = functions[AUX]
    if aux is not None and not isinstance(aux, Mapping):
        raise LaunchError(f"{caller}: aux must be a mapping of names to tensors, or None, got {shown(aux)}")
    for name, array in (with_captured(caller, functions)[AUX] or {}).items():
        if isinstance(array, Tensor) and array.requires_grad and torch.is_grad_enabled():
            raise LaunchError(
                f"{caller}: aux[{name!r}] requires gradients, but functions of scores are not differentiated "
                f"by the arrays that they index; call inside torch.no_grad(), or pass aux[{name!r}].detach()"
            )


def _seed(caller: str, dropout: Any, seed: Any) -> int:
    if not dropout:
        if seed is not None:
            raise LaunchError(f"{caller}: dropout_seed is given, but dropout is 0; give both, or neither")
        return 0
    checked = integer(seed, 0, _MOST_SEED)
    if checked is None:
        raise LaunchError(
            f"{caller}: dropout needs a dropout_seed, an integer from 0 to 2**64 - 1 that is the same on all "
            f"ranks, got {shown(seed)}"
        )
    return checked


def _probe(call: Call, scores: Mapping[str, Any]) -> None:
    """Make the kernel's config, and launch it for no row, so that errors come before anything is sent."""
    q, k, v = (call.heads_first(x).detach() for x in (call.q, call.k, call.v))
    nothing = slice(0, 0)
    left, right = key_limits(call.causal is not False, call.window)
    tile = Tile(nothing, nothing, 0, 0, 0, 0, 1, 0, left, right)
    local = TileAttention(call.scores, call.arrays, 0, q.shape[1])
    arguments = local.arguments(q.detach(), tile)
    flash.attention(*(x[:, :, nothing] for x in (q, k, v)), **arguments)
    of_scores: Any = {n: a for n, a in arguments.items() if n not in (*_OF_LAUNCH, "causal", "window")}
    of_scores |= {"window": scores.get("window"), "dropout": scores.get("dropout", 0.0)}
    kernel_of_attention(q, call.v, call.causal, scores.get("precision"), of_scores)


def _words(caller: str, call: Call, scores: Mapping[str, Any]) -> dict[str, str]:
    q, k, v = (call.heads_first(x) for x in (call.q, call.k, call.v))
    cut_q, cut_k = ("None", "None") if call.cuts is None else map(numbers_words, call.cuts)
    words = {
        "dtype": str(q.dtype),
        "device": q.device.type,
        "layout": call.layout,
        "batch": str(q.shape[0]),
        "heads": str(q.shape[1]),
        "kv_heads": str(k.shape[1]),
        "head_dim": str(q.shape[3]),
        "head_dim_v": str(v.shape[3]),
        "causal": repr(call.causal),
        "window": repr(call.window),
        "cu_seqlens_q": cut_q,
        "cu_seqlens_k": cut_k,
        **function_words(caller, *(scores.get(name) for name in ("score_mod", "mask_mod", "aux"))),
    }
    names = (*_OF_TILES, "softmax_scale", "dropout", "dropout_seed", "precision", "backend")
    words |= {name: repr(scores.get(name)) for name in names}
    for name, feature in FEATURES.items():
        array, has_rows = scores.get(name), name in OF_ROWS
        at = feature.axes.index("seq_q") - len(feature.axes) if has_rows else None
        words[f"{name} without rows" if has_rows else name] = array_words(array, without=at)
    if torch.is_grad_enabled():
        tensors = {"q": call.q, "k": call.k, "v": call.v, **call.arrays}
        tracked = [n for n, t in tensors.items() if t.requires_grad]
        words["what requires gradients"] = ", ".join(tracked) or "nothing"
    return words
