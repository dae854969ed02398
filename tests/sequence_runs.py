"""Packed sequences of lengths of their own: drawn, launched, and judged one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from conformance import KINDS, SCALES, SEED, Array, judge, spoiled
from kernel_runs import Problem, random_operands

from flash.kernel import AttentionKernel
from flash.problem.config import AttentionConfig

UNTOUCHED: Final = 7.0  # in rows of O before a launch
NO_PAGE: Final = 10**6  # in entries of a table that no key needs
Lengths = Sequence[tuple[int, int]]  # queries and keys of each sequence

# A token of a long and of a short sequence, a prompt, a part of one, more queries than keys, whole blocks and
# tiles, no query, no key, and nothing at all.
LENGTHS: Final[Lengths] = (
    *((1, 70), (1, 1), (33, 33), (17, 40), (40, 15), (16, 16), (15, 17), (0, 20), (3, 0), (0, 0), (2, 16)),
)
# Lengths (seq_q, seq_k) of sequences for kernels with blocks of 64 queries.
OF_HOPPER: Final[Lengths] = ((1, 70), (65, 130), (9, 5), (0, 20), (3, 0), (64, 64))


def config_of(kind: str, page_size: int | None = None, **settings: Any) -> AttentionConfig:
    """A config of a kind for packed sequences; keys are in pages if they have a size."""
    narrow = {} if KINDS[kind].family.mapped or "head_dim_v" in settings else {"head_dim_v": 8}
    dims = {"head_dim": KINDS[kind].dims[0], "head_dim_v": KINDS[kind].dims[1], **narrow, **settings}
    return KINDS[kind].config(varlen=True, page_size=page_size, **dims)


def lengths_of(kind: str) -> Lengths:
    return OF_HOPPER if KINDS[kind].block_q >= 64 else LENGTHS


def offsets(lengths: Sequence[int], first: int = 0) -> Array:
    """`cu_seqlens` of these lengths; the first sequence begins after `first` rows."""
    return np.cumsum([first, *lengths]).astype(np.int32)


def _scales_of_blocks(
    config: AttentionConfig, lengths: Lengths, heads: tuple[int, int]
) -> list[dict[str, Array]]:
    """The scales of Q, K and V of each sequence, as if it were a batch."""
    how = dict.fromkeys(("varlen", "seqused_q", "seqused_k", "alibi", "sink"), False)
    alone, dims = replace(config, page_size=None, **how), (config.head_dim, config.value_dim)
    return [random_operands(alone, Problem(*one, *dims, 1, *heads), b) for b, one in enumerate(lengths)]


def _joined(name: str, arrays: Sequence[Array], starts: Array, gap: int) -> Array:
    """Arrays [heads, rows, dim] as [rows, heads, dim], each from its start on, and `gap` rows after the last
    one; rows of no sequence are NaN, or of scales 1.
    """
    heads, _, dim = arrays[0].shape
    spare = 1.0 if name in SCALES else np.nan
    joined = np.full((int(starts[-1]) + gap, heads, dim), spoiled(arrays[0], spare), arrays[0].dtype)
    for first, array in zip(starts, arrays, strict=False):
        joined[first : first + array.shape[1]] = array.swapaxes(0, 1)
    return joined


@dataclass
class Batch:
    """Packed sequences. `rows` are K and V of each, [kv_heads, keys, dim], and `scales` its scales of blocks
    of elements, if it has any, [1, heads, rows, dim]; `arguments` are those of a launch, with keys one after
    another, or in pages in random order, whose slots without a key are NaN.
    """

    config: AttentionConfig
    rows: list[tuple[Array, Array]]
    arguments: dict[str, Any]
    scales: list[dict[str, Array]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        config: AttentionConfig,
        lengths: Lengths = LENGTHS,
        heads: tuple[int, int] = (4, 2),
        gap: int = 0,
    ) -> Batch:
        """A batch drawn at random; `gap` rows before the first sequence and after the last are of none."""
        rng, kind, mx = np.random.default_rng(len(lengths)), config.element.numpy, config.features.mx
        halves = mx is not None and mx.format.in_byte > 1

        def drawn(*shape: int) -> Array:
            return rng.standard_normal(shape).astype(kind)

        def of_scores(*shape: int) -> Array:
            *rows, columns = shape
            return rng.integers(0, 256, (*rows, columns // 2), np.uint8) if halves else drawn(*shape)

        rows = []
        for _, keys in lengths:
            k = of_scores(heads[1], keys, config.head_dim)
            rows.append(
                (
                    k,
                    k[..., : config.value_dim]
                    if config.shared_kv
                    else drawn(heads[1], keys, config.value_dim),
                )
            )
        starts = offsets([n for n, _ in lengths], gap)
        arguments = {"q": of_scores(int(starts[-1]) + gap, heads[0], config.head_dim), "cu_seqlens_q": starts}
        for operand in config.features.operands:
            if operand.name in ("alibi_slopes", "sink"):
                arguments[operand.name] = rng.uniform(0.1, 0.5, (len(lengths), heads[0])).astype("f4")
            elif operand.name in SCALES:
                arguments[operand.name] = rng.uniform(0.5, 2, (len(lengths), heads[1])).astype("f4")
        if config.dropout:
            arguments["dropout_seed"] = SEED
        batch = cls(config, rows, arguments, _scales_of_blocks(config, lengths, heads) if mx else [])
        if batch.scales:
            arguments["q_scale"] = _joined("q_scale", [of["q_scale"][0] for of in batch.scales], starts, gap)
        arguments |= batch.in_pages(rng) if config.page_size else batch.one_after_another(gap)
        if config.shared_kv:
            del arguments["v"]
        return batch

    def one_after_another(self, gap: int = 0) -> dict[str, Array]:
        """K and V of all sequences, and where each begins."""
        starts = offsets([k.shape[1] for k, _ in self.rows], gap)
        result = {"cu_seqlens_k": starts}
        for name, of in self._of_keys().items():
            blocks = starts[:-1] // 32 + np.arange(len(of))
            firsts = [*blocks, -(-(starts[-1] + gap) // 32) + len(of)] if name == "v_scale" else starts
            result[name] = _joined(name, of, firsts, 0 if name == "v_scale" else gap)
        return result

    def in_pages(self, rng: np.random.Generator) -> dict[str, Array]:
        """Pages of K and V, two of them of no sequence, the table and the numbers of keys."""
        size, counts = self.config.page_size or 0, [k.shape[1] for k, _ in self.rows]
        pages = [-(-count // size) for count in counts]
        order = rng.permutation(sum(pages) + 2)
        table = np.full((len(pages), max([1, *pages]) + 1), NO_PAGE, np.int32)
        result = {"block_table": table, "seqused_k": np.array(counts, np.int32)}
        for name, of in self._of_keys().items():
            in_page = size // 32 if name == "v_scale" else size
            shape = len(order), len(of[0]), in_page, of[0].shape[2]
            result[name] = np.full(shape, spoiled(of[0], np.nan), of[0].dtype)
            for b, own in enumerate(of):
                table[b, : pages[b]] = order[sum(pages[:b]) :][: pages[b]]
                row = np.arange(own.shape[1])
                result[name][table[b, row // in_page], :, row % in_page] = own.swapaxes(0, 1)
        return result

    def _of_keys(self) -> dict[str, list[Array]]:
        """K and V of each sequence, and their `scales`, by the names of arguments."""
        arrays = {name: [of[n] for of in self.rows] for n, name in enumerate("kv")}
        of_blocks = ("k_scale", "v_scale") if self.scales else ()
        return arrays | {name: [of[name][0] for of in self.scales] for name in of_blocks}

    def launched(self, backend: Any = "interpreter", **changes: Any) -> tuple[Array, Array]:
        """O, `UNTOUCHED` where it is not written, and LSE."""
        q = self.arguments["q"]
        out = np.full((*q.shape[:2], self.config.value_dim), UNTOUCHED, self.config.output.numpy)
        arguments = {**self.arguments, "out": out, **changes}
        result, lse = AttentionKernel(self.config).launch(backend=backend, **arguments)
        assert result is arguments["out"]
        return result, lse

    def judge(self, out: Array, lse: Array) -> None:
        """Each sequence is as accurate as attention by itself, and other rows of O are as they were."""
        arguments, starts = self.arguments, self.arguments["cu_seqlens_q"]
        used = arguments.get("seqused_q", np.diff(starts))
        untouched = np.ones(len(out), bool)
        for b, (k, v) in enumerate(self.rows):
            queries = slice(int(starts[b]), int(starts[b] + used[b]))
            untouched[queries] = False
            if queries.start == queries.stop:
                continue
            keys = slice(arguments["seqused_k"][b] if "seqused_k" in arguments else None)
            results = out[queries].swapaxes(0, 1)[None], lse[None, :, queries]
            arrays = arguments["q"][queries].swapaxes(0, 1)[None], k[None, :, keys], v[None, :, keys]
            by_sequence = ("alibi_slopes", "sink", *(() if self.scales else SCALES))
            own = {n: arguments[n][b : b + 1] for n in by_sequence if n in arguments}
            own |= self.scales[b] if self.scales else {}
            if arrays[1].shape[2]:
                judge(self.config, arrays, *results, own, first_batch=b)
            else:
                sinks = own.get("sink", np.array([-np.inf]))[..., None]
                np.testing.assert_array_equal(results[0], 0)
                np.testing.assert_allclose(results[1], np.broadcast_to(sinks, results[1].shape), rtol=1e-6)
        assert (out[untouched] == UNTOUCHED).all()


def check(
    config: AttentionConfig,
    lengths: Lengths = LENGTHS,
    heads: tuple[int, int] = (4, 2),
    backend: Any = "interpreter",
    gap: int = 0,
    **used: Array,
) -> Batch:
    """Launch a batch and judge it; `used` are the numbers of queries and keys that count."""
    batch = Batch.of(config, lengths, heads, gap)
    batch.arguments |= used
    batch.judge(*batch.launched(backend))
    return batch
