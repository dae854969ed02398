"""A token of a KV cache, decoded by hosts that know of a kernel its text and its contract alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from contract_host import TYPES, Host
from judge import assert_attention_is_accurate

from flash.error_bound import arithmetic_of
from flash.operands.dtypes import FP8_DTYPES
from flash.problem.rotary import rotary_tables, rotated

DIM, DIM_V = 16, 8


class Cache(NamedTuple):
    """Sequences of a cache, in the arrays that the contracts name."""

    arrays: dict[str, Any]  # K, V and what says where rows are
    lengths: list[int]  # of the items, without the new row
    padding: list[int]
    sequences: list[int]

    def places(self, item: int) -> Iterator[tuple[int, int]]:
        """Place and row of each row of an item, the new one included."""
        table, rows = self.arrays.get("block_table"), self.arrays["K"].shape[2]
        for row in range(self.lengths[item] + 1):
            sequence = self.sequences[item]
            yield ((sequence, row) if table is None else (int(table[sequence, row // rows]), row % rows))

    def rows(self, name: str, item: int) -> Any:
        """Those of K or V, [1, kv_heads, keys, dim] in f32, times its scale, without padding."""
        stored = np.stack(
            [self.arrays[name][location, :, row] for location, row in self.places(item)], axis=1
        )[None, :, self.padding[item] :].astype(np.float32)
        scale = self.arrays.get(f"{name.lower()}_scale")
        return stored if scale is None else stored * scale[:, None, None]

    def turned(self, q: Any, cos: Any, sin: Any) -> Any:
        """A query of each item, at the position of its new row."""
        positions = np.subtract(self.lengths, self.padding)[:, None]
        return rotated(q, cos, sin, positions, interleaved=False).astype(q.dtype)


def cache_of(kernel: Host, layout: set[str], rng: np.random.Generator) -> Cache:
    """A cache of 3 sequences, 2 of which have rows; everything else is no number."""
    kv_heads, batch, capacity = 2, 2, 24
    indexed = "indexed" in layout
    sequences = [2, 0] if indexed else [0, 1]
    kv_batch = 3 if indexed else batch
    arrays: dict[str, Any] = {}
    if "paged" in layout:
        size = kernel.array_of("K")["dims"][2]["extent"]
        columns = capacity // size
        pages = kv_batch * columns
        arrays["block_table"] = rng.permutation(pages).astype(np.int32).reshape(kv_batch, columns)
        sizes = {"pages": pages, "kv_heads": kv_heads}
    else:
        sizes = {"kv_batch": kv_batch, "batch": kv_batch, "kv_heads": kv_heads, "seq_k": capacity}
    arrays |= {name: kernel.empty(name, **sizes) for name in "KV"}
    if layout & {*FP8_DTYPES}:
        arrays["k_scale"], arrays["v_scale"] = np.array([[0.5, 2], [1, 0.7]], np.float32)
    if indexed:
        arrays["cache_batch_idx"] = np.array(sequences, np.int32)
    padding = [3, 0] if "padded" in layout else [0, 0]
    if "padded" in layout:
        arrays["leftpad_k"] = np.array(padding, np.int32)
    cache = Cache(arrays, [21, 6], padding, sequences)
    arrays["seqused_k"] = np.array(cache.lengths, np.int32) + 1
    for item in range(batch):
        for location, row in [*cache.places(item)][:-1]:
            for name in "KV":
                of_row = arrays[name][location, :, row]
                of_row[...] = rng.standard_normal(of_row.shape).astype(of_row.dtype)
    return cache


def numbers_of(kernel: Host, **given: float) -> dict[str, float]:
    """Those that the kernel has as parameters, or that its sizes are said by."""
    names = {p["name"] for p in kernel.contract["parameters"]} | set(kernel.contract["sizes"])
    return {name: value for name, value in given.items() if name in names}


def append_first(append: Host, cache: Cache, qkv: tuple[Any, ...], tables: tuple[Any, ...]) -> Any:
    """The queries after a launch that puts k and v into the cache."""
    q, k, v = qkv
    arrays = {"K_NEW": k, "V_NEW": v, **cache.arrays}
    names = {array["name"] for array in append.contract["arrays"]}
    if "counts" in names:  # the second row of each item is none
        arrays |= {"K_NEW": np.concatenate([k, k * np.nan], axis=2)}
        arrays |= {"V_NEW": np.concatenate([v, v * np.nan], axis=2)}
        arrays["counts"] = np.array([1, 1], np.int32)
    turned = q
    if "Q_OUT" in names:
        batch, heads, seq_q, _ = q.shape
        turned = append.empty("Q_OUT", batch=batch, heads=heads, seq_q=seq_q)
        arrays |= {"Q": q, "Q_OUT": turned, "COS": tables[0], "SIN": tables[1]}
    append.launch(arrays, **numbers_of(append, seq_k=24))
    return turned


def seen(last: Any, keys: Any) -> Any:
    """[1, heads, seq_q, keys]: those that a mask of the last ones lets be seen."""
    count = min(keys.shape[2], last.shape[2])
    result = np.ones((1, *last.shape[:2], keys.shape[2]), bool)
    result[..., keys.shape[2] - count :] = last[..., last.shape[2] - count :]
    return result


def decode_a_token(host: Callable[..., Host], dtype: str, layout: set[str], splits: int) -> None:
    """Append a row to the caches of two items, attend to them and merge the parts, with the kernels that
    `host` makes of options of `tools/emit.py`; the result is what float64 gives, within its bound.
    """
    how = ["--head-dim", str(DIM), "--head-dim-v", str(DIM_V), "--dtype", dtype]
    options = {
        "paged": ["--page-size", "4"],
        **{name: ["--kv-dtype", name] for name in FP8_DTYPES},
        "padded": ["--leftpad-k"],
        "indexed": ["--cache-batch-idx"],
    }
    how += [word for name, words in options.items() if name in layout for word in words]
    mask = ["--mask"] if "mask" in layout else []
    rotary = ["--rotary-dim", "12"] if "rotary" in layout else []
    lse = ["--return-lse"] if "lse" in layout else []
    counted = ["--counts"] if "counted" in layout else []
    alone = ["--append", *rotary] if "alone" in layout else []  # what attends appends
    decode = host(
        "decode",
        *how,
        "--tile",
        "16",
        "--causal",
        "--group",
        "2",
        *lse,
        *mask,
        *alone,
        *(["--splits"] if splits else []),
    )
    merge = host("merge", "--head-dim-v", str(DIM_V), "--dtype", dtype, *lse)

    rng = np.random.default_rng(len(layout))
    cache = cache_of(decode, layout, rng)
    q, k, v = (
        rng.standard_normal((2, heads, 1, dim)).astype(TYPES[dtype])
        for heads, dim in ((4, DIM), (2, DIM), (2, DIM_V))
    )
    cos, sin = rotary_tables(24, 12)
    if alone:
        arrays: dict[str, Any] = {"Q": q, "k_new": k, "v_new": v}
        arrays |= {"rotary_cos": cos, "rotary_sin": sin} if rotary else {}
        turned = cache.turned(q, cos, sin) if rotary else q
    else:
        append = host("append", *how, *rotary, *counted)
        turned = append_first(append, cache, (q, k, v), (cos, sin))
        arrays = {"Q": turned}

    out = np.full((2, 4, 1, DIM_V), np.nan, TYPES[dtype])
    found_lse = np.full((2, 4, 1), np.nan, np.float32)
    numbers = {"group": 2, "softmax_scale": 0.25, "section": 4, "splits": splits}
    shown = rng.random((2, 4, 1, 9)) < 0.5
    arrays |= {**cache.arrays, **({"mask": shown} if mask else {})}
    if splits:
        parts = decode.empty("O", batch=2, heads=4, seq_q=1, splits=splits)
        of_parts = decode.empty("LSE", batch=2, heads=4, seq_q=1, splits=splits)
        decode.launch(
            {**arrays, "O": parts, "LSE": of_parts.reshape(8, 1, splits)}, **numbers_of(decode, **numbers)
        )
        into = {"LSE": found_lse.reshape(8)} if lse else {}
        merge.launch({"PARTS": parts, "LSES": of_parts.reshape(8, splits), "O": out, **into})
    else:
        into = {"LSE": found_lse.reshape(8, 1)} if lse else {}
        decode.launch({**arrays, "O": out, **into}, **numbers_of(decode, **numbers))

    for item in range(2):
        keys, values = (cache.rows(name, item) for name in "KV")
        exact = {"Q": q[item : item + 1], "K": k[item : item + 1]}
        if rotary:
            at = np.array([[keys.shape[2] - 1]])
            exact = {n: rotated(x, cos, sin, at, interleaved=False) for n, x in exact.items()}
        step = 2.0 ** -{"f32": 22, "f16": 10, "bf16": 7}[dtype]  # one rounding, to its type
        np.testing.assert_allclose(
            turned[item].astype(np.float32), exact["Q"][0].astype(np.float32), rtol=step, atol=step
        )
        step = max((2 * FP8_DTYPES[name].rounding[0] for name in layout & {*FP8_DTYPES}), default=step)
        for new, row in ((exact["K"], keys), (v[item : item + 1], values)):
            np.testing.assert_allclose(row[:, :, -1:], new.astype(np.float32), rtol=step, atol=step / 8)
        assert_attention_is_accurate(
            out[item : item + 1],
            found_lse[item : item + 1] if lse else None,
            turned[item : item + 1],
            *(x.astype(TYPES[dtype]) for x in (keys, values)),
            softmax_scale=0.25,
            causal=True,
            mask=seen(shown[item], keys) if mask else None,
            arithmetic=arithmetic_of(dtype),
        )
