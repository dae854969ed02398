"""`ShardedKVCache`: keys and values of sequences that are longer than one device holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flash.cache.attention import attention_with_kvcache
from flash.cache.cache import KVCache
from flash.cache.call import checked
from flash.distributed.agreement import RankCall, agreed, array_words
from flash.distributed.arrays import BEGINNING, FEATURES, OF_TILES
from flash.distributed.cache_arguments import require_no_gradients, require_of_heads, rows_of, tensor_words
from flash.distributed.cached_scores import LocalKeys, functions_of
from flash.distributed.eager import eager
from flash.distributed.exchange import Form, Peers, Traffic
from flash.distributed.functions import function_words
from flash.distributed.local import merged_parts
from flash.distributed.parallel import ContextParallel
from flash.distributed.tokens import Tokens
from flash.mods.record import MASK_MOD, SCORE_MOD
from flash.mods.trace import AUX
from flash.operands.declared import MAX_WINDOWED_SEQ
from flash.operands.dtype_names import CacheBackend, StoredDTypeLike
from flash.pages.numbers import integers, size
from flash.pages.placement import Journal
from flash.scores.features import ShardedCacheArguments, require_known, takes
from flash.scores.window import Window, key_limits, sides_of
from ptxgen.arguments import integer, is_one_of
from ptxgen.errors import CacheFullError, ConfigError, LaunchError, shown

Merge = Literal["auto", "gather", "tree"]
T = TypeVar("T")
U = TypeVar("U")
_CALLER: Final = "ShardedKVCache"
_MERGES: Final = ("auto", "gather", "tree")
SMALL: Final = 1 << 16  # bytes that a rank sends, up to which a merge has as few steps as possible


class _Arguments(ShardedCacheArguments, total=False):
    """The arguments of scores, and those of `flash.attention_with_kvcache` that apply to each rank."""

    causal: bool
    softmax_scale: float | None


_ARRAYS: Final = tuple(name for name in FEATURES if name in _Arguments.__annotations__)
_SETTINGS: Final = tuple(
    name for name in _Arguments.__annotations__ if name not in (*_ARRAYS, SCORE_MOD, MASK_MOD, AUX)
)


class ShardedKVCache:
    """A `KVCache` on each rank of a `ContextParallel`, which together hold the keys and values of up to
    `batch` sequences of up to `capacity` tokens.

    Each token lies on one rank: of rows that `append` gets, which every rank has, the token at position p
    on rank p // block % world; of rows that `append_shard` gets, on the rank that has them. Queries attend
    to the keys of all ranks: each rank to its own, and partial results are merged. All ranks make the same
    calls in the same order.

    The other arguments are those of `KVCache`; `pages` is the number of pages of this rank. Layers have
    lengths of their own, but all layers of a sequence get their rows in the same calls.

    Raises `ConfigError` for invalid arguments.
    """

    def __init__(
        self,
        parallel: ContextParallel,
        layers: int,
        batch: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        *,
        block: int = 64,
        head_dim_v: int | None = None,
        dtype: StoredDTypeLike = "f32",
        page_size: int | None = None,
        pages: int | None = None,
        backend: CacheBackend = "cpu",
        device: int | None = None,
    ) -> None:
        self._parallel, self.capacity = parallel, size("capacity", capacity, MAX_WINDOWED_SEQ)
        tokens = integer(block, 1, 1 << 20)
        if tokens is None:
            raise ConfigError(
                f"{_CALLER}: block must be a number of tokens, 1 to {1 << 20}, got {shown(block)}"
            )
        self.block = tokens
        local_capacity = min(capacity, math.ceil(capacity / parallel.peers.world) + 2 * self.block)
        self.local = KVCache(
            layers,
            batch,
            kv_heads,
            head_dim,
            local_capacity,
            head_dim_v=head_dim_v,
            dtype=dtype,
            page_size=page_size,
            pages=pages,
            backend=backend,
            device=device,
        )
        of = parallel.sharding, self.block, parallel.peers.rank
        self._tokens = [[Tokens(*of) for _ in range(batch)] for _ in range(layers)]
        self._grown: list[tuple[Tokens, int]] = []  # by the call under way, and their lengths before it
        self.traffic = Traffic()

    def __repr__(self) -> str:
        lengths = self.lengths.max(axis=0).tolist()
        return f"<{_CALLER}: lengths {lengths}, on rank {self.parallel.peers.rank}: {self.local!r}>"

    # ---------------------------------------------------------------------------------- looking

    @property
    def parallel(self) -> ContextParallel:
        """The `ContextParallel` with which the cache was made: the ranks that hold the tokens, and their
        layout.
        """
        return self._parallel

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The tokens of each sequence in each layer, on all ranks: [layers, batch]."""
        return np.array([[tokens.length for tokens in layer] for layer in self._tokens], np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and small arrays on this rank."""
        return self.local.nbytes

    def positions(self, layer: int, sequence: int) -> NDArray[np.int64]:
        """The positions, in ascending order, of the tokens of a sequence that this rank holds; a copy."""
        at = self.local.check_layer(f"{_CALLER}.positions", layer)
        return self._tokens[at][self.local.check_sequence(f"{_CALLER}.positions", sequence)].held.copy()

    # ---------------------------------------------------------------------------------- changing

    @eager
    def append(self, layer: int, k: Tensor, v: Tensor, sequences: object = None) -> None:
        """Append new rows, which every rank has, to sequences of a layer: k [items, kv_heads, n,
        head_dim], v [items, kv_heads, n, head_dim_v]. Each rank keeps the rows whose positions belong to it.

        Ranks compare their calls. Raises what `KVCache.append` raises, on every rank if one of them has
        no page left or refuses its call, `PeerError` if a rank is lost; then nothing has changed.
        """
        caller = f"{_CALLER}.append"

        def read() -> RankCall[None]:
            at, which = self._which(caller, layer, sequences)
            words = self._words(at, which, k, v)
            self._add(caller, at, which, k, v, rows_of(caller, "k", k), are_shards=False)
            return RankCall(None, words)

        self._whole(caller, read, _nothing)

    @eager
    def append_shard(self, layer: int, k: Tensor, v: Tensor, length: int, sequences: object = None) -> None:
        """Append `length` new rows to sequences of a layer, of which this rank has those that
        `ContextParallel.shard` gives it: what a prompt's `ContextParallel.attention` was given. No row
        moves. Raises as `append` does.
        """
        caller = f"{_CALLER}.append_shard"
        sharding, rank = self.parallel.sharding, self.parallel.peers.rank

        def read() -> RankCall[None]:
            at, which = self._which(caller, layer, sequences)
            new, rows = integer(length, 0, self.capacity), rows_of(caller, "k", k)
            if new is None:
                raise LaunchError(
                    f"{caller}: length must be the rows of all ranks, 0 to {self.capacity}, got "
                    f"{shown(length)}"
                )
            if rows != sharding.rows(rank, new):
                raise LaunchError(
                    f"{caller}: of {new} rows rank {rank} has {sharding.rows(rank, new)} with layout "
                    f"{sharding.layout!r}, got {rows}; shard k and v with the ContextParallel of the cache"
                )
            words = self._words(at, which, k, v, are_shards=True) | {"length": str(new)}
            self._add(caller, at, which, k, v, new, are_shards=True)
            return RankCall(None, words)

        self._whole(caller, read, _nothing)

    @eager
    def truncate(self, length: int, sequences: object = None) -> None:
        """Remove the last tokens of sequences, by default of all: every layer keeps the first `length`.
        Raises `LaunchError` if a sequence has fewer; otherwise as `append` does.
        """
        caller = f"{_CALLER}.truncate"

        def read() -> RankCall[tuple[int, list[int], list[int]]]:
            which = self._sequences(caller, sequences)
            cut = integer(length, 0, self.capacity)
            lengths = self.lengths[:, which]
            if cut is None or cut > lengths.min(initial=self.capacity):
                raise LaunchError(
                    f"{caller}: length must be from 0 to the tokens of each sequence in each layer, got "
                    f"{shown(length)} for {lengths.min(axis=0).tolist()}"
                )
            counts = [[int(np.searchsorted(layer[s].held, cut)) for s in which] for layer in self._tokens]
            if any(rows != counts[0] for rows in counts):
                raise LaunchError(
                    f"{caller}: all layers of a sequence must have got their rows in the same calls"
                )
            return RankCall((cut, which, counts[0]), {"sequences": str(which), "length": str(cut)})

        def shorten(value: tuple[int, list[int], list[int]], _: Peers) -> None:
            cut, which, counts = value
            self.local.truncate(counts, which)
            for layer in self._tokens:
                for sequence in which:
                    layer[sequence].cut(cut)

        self._whole(caller, read, shorten)

    def reset(self, sequence: int | None = None) -> None:
        """Remove all tokens of a sequence, by default of all."""
        self.truncate(0, None if sequence is None else [sequence])

    @eager
    def fork(self, source: int, target: int | None = None) -> int:
        """Give sequence `target`, by default the first without tokens, the tokens of `source`, in every
        layer, on every rank; pages are shared (`KVCache.fork`). Returns the index of `target`.

        Raises `LaunchError` if `target` is `source` or has tokens, `CacheFullError` if there is none.
        """
        caller = f"{_CALLER}.fork"

        def read() -> RankCall[tuple[int, int]]:
            begin = self.local.check_sequence(caller, source, "source")
            free = [s for s in range(self.local.batch) if s != begin and not self.lengths[:, s].any()]
            candidate = free[0] if target is None and free else target
            if candidate is None:
                raise CacheFullError(
                    f"{caller}: all other of {self.local.batch} sequences have tokens; reset one, or make a "
                    "cache with a larger batch"
                )
            end = self.local.check_sequence(caller, candidate, "target")
            if end not in free:
                raise LaunchError(
                    f"{caller}: target must be another sequence without tokens, got {end}; reset it first"
                )
            return RankCall((begin, end), {"source": str(begin), "target": str(end)})

        def share(value: tuple[int, int], _: Peers) -> int:
            begin, end = value
            self.local.fork(begin, end)
            for layer in self._tokens:
                layer[end] = layer[begin].copy()
            return end

        return self._whole(caller, read, share)

    # --------------------------------------------------------------------------------- attention

    @eager
    @takes(_Arguments, causal=True)
    def attention(
        self,
        q: Tensor,
        layer: int,
        k: Tensor | None = None,
        v: Tensor | None = None,
        *,
        sequences: object = None,
        return_lse: bool = False,
        merge: Merge = "auto",
        **arguments: Unpack[_Arguments],
    ) -> Any:
        """Append k and v, if they are given, as `append` does, and attend with q to all keys of a layer on
        all ranks: out, or (out, lse), the same bits on every rank.

        q [items, heads, seq_q, head_dim] is the same on every rank; the last query is at the position of
        the last key. `sequences` are those of the items, by default all. The arguments of scores are those
        of `flash.attention_with_kvcache`. `merge`: "gather" sends partial results to all ranks in one
        step, "tree" in log2(world) steps between pairs, for worlds that are powers of two; "auto" is "tree"
        where it is possible and "gather" would send more than `SMALL` bytes.

        Raises `LaunchError` for arguments that do not fit or differ between ranks, `CacheFullError` without
        room, `PeerError` if a rank is lost.
        """
        caller = f"{_CALLER}.attention"
        require_known(caller, arguments, _Arguments, ShardedKVCache.attention)
        options: dict[str, Any] = {"causal": True, **arguments}
        score_mod, mask_mod, aux = (options.pop(name, None) for name in (SCORE_MOD, MASK_MOD, AUX))
        arrays = {name: x for name in FEATURES if (x := options.pop(name, None)) is not None}

        def read() -> RankCall[tuple[Tensor, Tensor]]:
            rows_of(caller, "q", q)
            self.parallel.peers.named(caller).require_device("q", q)
            if (k is None) != (v is None):
                raise LaunchError(f"{caller}: k and v must both be given, or neither")
            self._check_merge(caller, merge)
            for name, array in arrays.items():
                require_of_heads(caller, name, array, q)
            require_no_gradients(caller, {"q": q, "k": k, "v": v, **arrays})
            at, which = self._which(caller, layer, sequences)
            words = self._words(at, which, k, v) | {"q": tensor_words(q)}
            words |= {name: repr(options.get(name)) for name in _SETTINGS} | {"merge": repr(merge)}
            words |= {name: array_words(arrays.get(name)) for name in _ARRAYS}
            words |= function_words(caller, score_mod, mask_mod, aux)
            if k is not None and v is not None:
                self._add(caller, at, which, k, v, rows_of(caller, "k", k), are_shards=False)
            left, right = key_limits(bool(options["causal"]), sides_of(caller, options.get(Window.argument)))
            tokens = [self._tokens[at][s] for s in which]
            lengths = np.array([t.length for t in tokens], np.int64)
            keys = LocalKeys.of([t.held for t in tokens], lengths, q.shape[2], left, right)
            local_options = {n: x for n, x in options.items() if n not in ("causal", Window.argument)}
            local_options |= {name: arrays[name] for name in OF_TILES if name in arrays}
            local_options |= functions_of(keys, score_mod, mask_mod, aux, arrays, q.device)
            return RankCall(self._local_results(q, at, which, keys, local_options), words)

        def merged(partial: tuple[Tensor, Tensor], peers: Peers) -> tuple[Tensor, Tensor]:
            self.traffic = Traffic()
            return self._merged(peers, *partial, merge)

        out, lse = self._whole(caller, read, merged)
        for first in (arrays[name] for name in BEGINNING if name in arrays):
            logits = first.float().reshape(-1, q.shape[1])[..., None].expand(lse.shape).contiguous()
            out, lse = merged_parts([out, torch.zeros_like(out)], [lse, logits])
        out = out.to(q.dtype)
        return (out, lse) if return_lse else out

    def _local_results(
        self, q: Tensor, layer: int, which: list[int], keys: LocalKeys, arguments: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """out and lse of attention to this rank's keys, float32."""
        if not keys.any_seen:  # the rank finds the errors that others find
            call: Any = {"cache_batch_idx": which, **_without_none(arguments)}
            checked(attention_with_kvcache, q.detach(), self.local, None, None, layer, call, repeated=False)
            shape = (*q.shape[:3], self.local.head_dim_v)
            return torch.zeros(shape, device=q.device), torch.full(shape[:3], -torch.inf, device=q.device)
        if keys.mask is not None:
            arguments = {**arguments, "mask": torch.from_numpy(keys.mask).to(q.device)}
        out, lse = attention_with_kvcache(
            q.detach(),
            self.local,
            layer=layer,
            cache_batch_idx=which,
            leftpad=keys.skipped,
            causal=False,
            return_lse=True,
            **_without_none(arguments),
        )
        return out.float(), lse

    def _merged(self, peers: Peers, out: Tensor, lse: Tensor, merge: str) -> tuple[Tensor, Tensor]:
        """out and lse for the keys of all ranks: partial results merged in the order of ranks."""
        world, rank = peers.world, peers.rank
        form = [Form(tuple(t.shape), t.dtype) for t in (out, lse)]
        is_power = world.bit_count() == 1
        sent = (world - 1) * sum(f.nbytes for f in form)
        if merge == "gather" or not is_power or (merge == "auto" and sent <= SMALL):
            others = peers.others
            transfer = peers.start(
                {p: [out, lse] for p in others}, dict.fromkeys(others, form), "partial results", out
            )
            received = {**transfer.wait(self.traffic), rank: [out, lse]}
            parts = [received[peer] for peer in range(world)]
            return merged_parts([p[0] for p in parts], [p[1] for p in parts])
        distance = 1
        while distance < world:
            peer = rank ^ distance
            transfer = peers.start(
                {peer: [out, lse]}, {peer: form}, f"partial results, distance {distance}", out
            )
            other = transfer.wait(self.traffic)[peer]
            pairs = sorted([(rank, [out, lse]), (peer, other)], key=lambda pair: pair[0])
            out, lse = merged_parts([p[1][0] for p in pairs], [p[1][1] for p in pairs])
            distance *= 2
        return out, lse

    # ------------------------------------------------------------------------------------ pieces

    def _whole(self, caller: str, read: Callable[[], RankCall[T]], then: Callable[[T, Peers], U]) -> U:
        """The result of `then`, which changes the cache, for the value of `read` once all ranks have agreed
        on it. After an exception the cache of this rank is as it was.
        """
        peers = self.parallel.peers.named(caller)

        def work(_: Journal) -> U:
            with peers.exclusive_call():
                value, _every = agreed(peers, read)
                return then(value, peers)

        self._grown.clear()
        try:
            return self.local.whole(work)
        except BaseException:
            for tokens, length in reversed(self._grown):
                tokens.cut(length)
            raise

    def _words(
        self, layer: int, which: Sequence[int], k: object, v: object, *, are_shards: bool = False
    ) -> dict[str, str]:
        """The arguments and settings that must be equal on all ranks before a call, by name."""
        local, of_layer = self.local, self._tokens[layer]
        sizes = {
            "layers": local.layers,
            "batch": local.batch,
            "kv_heads": local.kv_heads,
            "head_dim": local.head_dim,
            "head_dim_v": local.head_dim_v,
            "capacity": self.capacity,
            "block": self.block,
            "page_size": local.page_size,
        }
        return {
            "layout of shards": self.parallel.sharding.layout,
            **{name: str(size) for name, size in sizes.items()},
            "dtype of the cache": local.dtype,
            "layer": str(layer),
            "sequences": str(list(which)),
            "lengths": str([of_layer[s].length for s in which]),
            "k": tensor_words(k, are_shards=are_shards),
            "v": tensor_words(v, are_shards=are_shards),
        }

    def _check_merge(self, caller: str, merge: object) -> None:
        world = self.parallel.peers.world
        if not is_one_of(merge, _MERGES):
            raise LaunchError(f"{caller}: merge must be one of {', '.join(_MERGES)}, got {shown(merge)}")
        if merge == "tree" and world.bit_count() != 1:
            raise LaunchError(
                f"{caller}: merge 'tree' needs a power of two of ranks, got {world}; use 'auto'"
            )

    def _which(self, caller: str, layer: object, sequences: object) -> tuple[int, list[int]]:
        return self.local.check_layer(caller, layer), self._sequences(caller, sequences)

    def _sequences(self, caller: str, sequences: object) -> list[int]:
        indices = None if sequences is None else integers(sequences, 0, self.local.batch - 1)
        return self.local.check_sequences(caller, sequences if indices is None else indices)

    def _add(
        self,
        caller: str,
        layer: int,
        which: Sequence[int],
        k: Tensor,
        v: Tensor,
        new: int,
        *,
        are_shards: bool,
    ) -> None:
        """Append `new` rows to each item: k and v have all of these rows, or with `are_shards` those of this
        rank.
        """
        tokens = [self._tokens[layer][s] for s in which]
        added = [t.next(new, are_shards=are_shards) for t in tokens]
        of = self.parallel.sharding, self.block
        ranks = range(self.parallel.peers.world)
        most = max(
            (t.count(r) + a.count(r, *of) for t, a in zip(tokens, added, strict=True) for r in ranks),
            default=0,
        )
        lengths = [t.length for t in tokens]
        if max(lengths, default=0) + new > self.capacity or most > self.local.capacity:
            raise CacheFullError(
                f"{caller}: {new} more tokens do not fit into sequences of {lengths} tokens; the capacity is "
                f"{self.capacity}, and {self.local.capacity} on each rank"
            )
        if are_shards:
            self.local.append(layer, k.detach(), v.detach(), list(which))
        else:
            rank = self.parallel.peers.rank
            mine = [a.positions(rank, *of) - a.start for a in added]
            width = max(map(len, mine), default=0)
            index = np.zeros((len(mine), 1, width, 1), np.int64)
            for item, rows in zip(index, mine, strict=True):
                item[0, : len(rows), 0] = rows
            at = torch.from_numpy(index).to(k.device)
            local_k, local_v = (
                t.detach().gather(2, at.expand(-1, t.shape[1], -1, t.shape[3])) for t in (k, v)
            )
            self.local.append(layer, local_k, local_v, list(which), counts=[len(rows) for rows in mine])
        self._grown += [(t, t.length) for t in tokens]
        for sequence, segment in zip(tokens, added, strict=True):
            sequence.extend(segment)


def _nothing(_: None, __: Peers) -> None:
    """Do nothing after ranks have agreed: the new rows are appended already."""


def _without_none(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}
