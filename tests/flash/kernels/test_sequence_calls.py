"""Which configs, launches and calls of packed sequences there are, over pages or not; and what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_arrays import interpreting, on_device, without_assembler
from fake_driver import FakeDevice, FakeDriver
from kernel_runs import refused_config
from refusals import refusal
from sequence_runs import Batch, Lengths, config_of, offsets

import flash
from flash.kernel import AttentionKernel
from flash.problem.config import AttentionConfig
from flash.reference import attention_varlen_reference
from ptxgen.errors import ConfigError
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend

pytestmark = [pytest.mark.grid, pytest.mark.judged]

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"varlen": 1}, "varlen must be True or False, got 1"),
        (
            {"seqused_k": True},
            "seqused_k is for sequences of their own lengths; use varlen=True with it, or leave "
            "seqused_k=False",
        ),
        *(
            (
                {"varlen": True, **how},
                f"varlen cannot be combined with {name}, which has a number for each score of "
                "[batch, heads, seq_q, seq_k], and sequences of their own lengths have no such "
                "array; use window, causal or alibi, or a batch for each length",
            )
            for name, how in (("bias", {"bias": "f32"}), ("mask", {"mask": True}))
        ),
        *(
            (
                {"varlen": True, "page_size": size},
                f"page_size must be an integer from 1 to 256, or None for keys without pages, got {size!r}",
            )
            for size in (0, 257, "16")
        ),
        (
            {"page_size": 16},
            "page_size is for sequences of their own lengths; use varlen=True with it, or DecodeKernel, "
            "whose launches take a block_table",
        ),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    assert refused_config(8, **settings) == message


def test_the_name_of_a_kernel_says_that_its_sequences_are_packed_and_in_pages() -> None:
    name = "attention_forward_f32_d16v8_m16_n16_varlen"
    used = config_of("simt", seqused_q=True, seqused_k=True)
    assert used.kernel().name == f"{name}_usedq_usedk_lse"
    paged = config_of("simt", 24)
    assert paged.seqused_k
    assert paged.kernel().name == f"{name}_usedk_page24_lse"


PLAIN = AttentionConfig(8, 8, tile=16, block_q=16, varlen=True)
USED = AttentionConfig(8, 8, tile=16, block_q=16, varlen=True, seqused_q=True, seqused_k=True)
OVER_PAGES = AttentionConfig(8, 8, tile=16, block_q=16, varlen=True, page_size=4)
CU = offsets((3, 4))
TABLE = np.array([[0, 1], [2, -1]], np.int32)
COUNTS = np.array([8, 3], np.int32)
ROWS = np.zeros((7, 4, 8), np.float32)
PAGES = np.zeros((3, 2, 4, 8), np.float32)


def i32(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


PACKED: dict[str, tuple[AttentionConfig, dict[str, Any], str]] = {
    "nothing given": (
        PLAIN,
        {"cu_seqlens_k": None},
        "cu_seqlens_k must be given, because the config says varlen=True",
    ),
    "one too many": (
        PLAIN,
        {"seqused_q": CU[1:]},
        "seqused_q is given, but the config does not say so; use AttentionConfig(seqused_q=True, ...)",
    ),
    "a type": (
        PLAIN,
        {"cu_seqlens_q": CU.astype(np.int64)},
        "cu_seqlens_q must be int32, got int64; convert with cu_seqlens_q.astype('int32')",
    ),
    "a shape": (PLAIN, {"cu_seqlens_k": CU[:2]}, "cu_seqlens_k must be [batch + 1] = [3], got [2]"),
    "no batch": (
        PLAIN,
        {"cu_seqlens_q": CU[:0]},
        "cu_seqlens_q must be [batch + 1], one more than there are sequences, got [0]",
    ),
    "a used shape": (
        USED,
        {"seqused_q": CU[:0], "seqused_k": CU[:2]},
        "seqused_q must be [batch] = [2], or of a shape that broadcasts to it, got [0]",
    ),
    "four dimensions": (
        PLAIN,
        {"q": ROWS[None]},
        "q must be [total, heads, dim], as the config says varlen, got shape [1, 7, 4, 8]",
    ),
    "a layout": (
        PLAIN,
        {"layout": "bshd"},
        "layout is for batches of one length, got 'bshd', but with varlen q, k and v are [total, "
        "heads, dim]; leave out the layout",
    ),
    "a first end": (
        PLAIN,
        {"cu_seqlens_q": i32(-1, 2, 6)},
        "cu_seqlens_q[0] must be from 0 to 7, the rows of q, got -1",
    ),
    "decreasing": (
        PLAIN,
        {"cu_seqlens_k": CU[::-1]},
        "cu_seqlens_k[1] must be from 7, which is cu_seqlens_k[0], to 7, the rows of k, got 3",
    ),
    "beyond": (
        PLAIN,
        {"cu_seqlens_q": i32(0, 3, 8), "cu_seqlens_k": i32(0, 12, 16)},
        "2 problems\n"
        "  cu_seqlens_q[2] must be from 3, which is cu_seqlens_q[1], to 7, the rows of q, got 8\n"
        "  cu_seqlens_k[1] must be from 0, which is cu_seqlens_k[0], to 7, the rows of k, got 12",
    ),
    "too many used": (
        USED,
        {"seqused_q": i32(1, 5), "seqused_k": i32(-3, 7)},
        "2 problems\n"
        "  seqused_q[1] must be from 0 to 4, the rows of that sequence, got 5\n"
        "  seqused_k[0] must be from 0 to 3, the rows of that sequence, got -3",
    ),
    "a longest": (
        PLAIN,
        {"max_seqlen_q": 3},
        "max_seqlen_q must be at least 4, the queries of sequence 1, got 3; leave it out to have it found",
    ),
    "no longest": (
        PLAIN,
        {"max_seqlen_q": -1},
        f"max_seqlen_q must be an integer from 0 to {2**30 - 256}, got -1",
    ),
    "a longest without varlen": (
        AttentionConfig(8),
        {"max_seqlen_q": 4, "cu_seqlens_q": None, "cu_seqlens_k": None},
        "max_seqlen_q is given, but the config does not say varlen; use AttentionConfig(varlen=True, ...)",
    ),
    "a table": (
        PLAIN,
        {"block_table": TABLE},
        "block_table is given, but the config does not say so; use AttentionConfig(page_size=16, ...)",
    ),
}


PAGED: dict[str, tuple[dict[str, Any], str]] = {
    "no table": ({"block_table": None}, "block_table must be given, because the config says page_size=16"),
    "no lengths": ({"seqused_k": None}, "seqused_k must be given, because the config says seqused_k=True"),
    "ends of keys": (
        {"cu_seqlens_k": CU},
        "cu_seqlens_k is given, but the keys are in pages, where seqused_k says how many each sequence "
        "has; leave out cu_seqlens_k",
    ),
    "rows": (
        {"k": ROWS},
        "k must be [pages, kv_heads, page_size, head_dim] = [pages, kv_heads, 4, 8], got [7, 4, 8]",
    ),
    "the other layout": (
        {"layout": "bshd"},
        "2 problems\n"
        "  k must be [pages, page_size, kv_heads, head_dim] = [pages, 4, kv_heads, 8], got [3, 2, 4, 8]\n"
        "  v must be [pages, page_size, kv_heads, head_dim_v] = [pages, 4, kv_heads, 8], got [3, 2, 4, 8]",
    ),
    "another page size": (
        {"k": PAGES[:, :, :3]},
        "k must be [pages, kv_heads, page_size, head_dim] = [pages, kv_heads, 4, 8], got [3, 2, 3, 8]",
    ),
    "fewer pages of v": (
        {"v": PAGES[:2]},
        "v must be [pages, kv_heads, page_size, head_dim_v] = [3, 2, 4, 8], got [2, 2, 4, 8]",
    ),
    "heads": (
        {"q": ROWS[:, :3]},
        "the heads of q must be a multiple of those of k and v, got 3 and 2 (layout 'thd', shapes "
        "[7, 3, 8] and [3, 2, 4, 8])",
    ),
    "no page": ({"k": PAGES[:0], "v": PAGES[:0]}, "k must have room for a key, got shape [0, 2, 4, 8]"),
    "no column": (
        {"block_table": TABLE[:, :0]},
        "block_table must be [batch, n] with room for a page, got [2, 0]",
    ),
    "a table of numbers": (
        {"block_table": TABLE.astype(np.int64)},
        "block_table must be int32, got int64; convert with block_table.astype('int32')",
    ),
    "rows of a table": (
        {"block_table": np.tile(TABLE, (2, 1))},
        "block_table must be [batch, table_columns] = [2, 2], or of a shape that broadcasts to it, got "
        "[4, 2]",
    ),
    "a type": (
        {"k": PAGES.astype(np.float16)},
        "k must be float32, as the config says, got float16; convert with k.astype('float32')",
    ),
    "too many keys": (
        {"seqused_k": i32(8, 9)},
        "2 problems\n"
        "  seqused_k[1] must be from 0 to 8, the rows that block_table has room for, got 9\n"
        "  block_table[1, 1] must be from 0 to 2, a page of k, got -1",
    ),
    "a negative number": (
        {"seqused_k": i32(-1, 3)},
        "seqused_k[0] must be from 0 to 8, the rows that block_table has room for, got -1",
    ),
    "a page that is not": (
        {"block_table": np.array([[0, 3], [2, 9]], np.int32)},
        "block_table[0, 1] must be from 0 to 2, a page of k, got 3",
    ),
}


@pytest.mark.parametrize("name", PACKED)
def test_a_launch_of_packed_sequences_that_cannot_be_is_refused(name: str) -> None:
    config, how, message = PACKED[name]
    arguments = {
        "q": ROWS,
        "k": ROWS,
        "v": ROWS,
        "cu_seqlens_q": CU,
        "cu_seqlens_k": CU,
        "backend": "cpu",
        **how,
    }
    assert refusal(AttentionKernel(config).launch, **arguments) == f"launch: {message}"


OF_PAGES: dict[str, Any] = {
    "q": ROWS,
    "k": PAGES,
    "v": PAGES,
    "backend": "cpu",
    "cu_seqlens_q": CU,
    "block_table": TABLE,
    "seqused_k": COUNTS,
}


@pytest.mark.parametrize("name", PAGED)
def test_a_launch_over_pages_that_cannot_be_is_refused(name: str) -> None:
    how, message = PAGED[name]
    assert refusal(AttentionKernel(OVER_PAGES).launch, **{**OF_PAGES, **how}) == f"launch: {message}"


CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "no keys": ({"block_table": None, "seqused_k": None}, "cu_seqlens_k must be given"),
    "no lengths": ({"seqused_k": None}, "seqused_k must be given"),
    "ends of keys": (
        {"cu_seqlens_k": CU},
        "cu_seqlens_k is given, but the keys are in pages, where seqused_k says how many each sequence "
        "has; leave out cu_seqlens_k",
    ),
    "a layout": ({"kv_layout": "HND "}, "kv_layout must be one of NHD, HND, got 'HND '; did you mean 'HND'?"),
    "rows": (
        {"k": ROWS},
        "k must be [pages, kv_heads, page_size, head_dim], because block_table is given, got [7, 4, 8]",
    ),
    "rows of the other layout": (
        {"k": ROWS, "kv_layout": "NHD"},
        "k must be [pages, page_size, kv_heads, head_dim], because block_table is given, got [7, 4, 8]",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_cannot_be_is_refused(name: str) -> None:
    how, message = CALLS[name]
    arguments = {**OF_PAGES, "kv_layout": "HND", **how}
    assert refusal(flash.attention_varlen, **arguments) == f"attention_varlen: {message}"


def test_pages_that_are_too_large_are_refused() -> None:
    pages = np.zeros((1, 2, 300, 8), np.float32)
    arguments = {**OF_PAGES, "k": pages, "v": pages, "block_table": TABLE[:, :1], "kv_layout": "HND"}
    assert refusal(flash.attention_varlen, error=ConfigError, **arguments) == (
        "attention_varlen: page_size must be an integer from 1 to 256, or None for keys without pages, "
        "got 300"
    )


def test_the_number_of_used_rows_may_be_one_for_all() -> None:
    arguments = {**Batch.of(USED, ((3, 3), (4, 4))).arguments, "backend": "cpu"}
    outs = [
        AttentionKernel(USED).launch(**arguments, out=np.zeros_like(ROWS), seqused_q=used, seqused_k=used)
        for used in (i32(2), i32(2, 2))
    ]
    np.testing.assert_array_equal(*outs)
    assert (outs[0][2] == 0).all()


# ------------------------------------------------------------------------------------------
# launches on a GPU, and what is said of them


@pytest.mark.slow
@pytest.mark.parametrize("config", [PLAIN, config_of("simt", 4, causal=True, return_lse=False)])
def test_a_call_on_a_gpu_needs_the_longest_and_takes_any_lengths(
    config: AttentionConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = interpreting(FakeDriver(FakeDevice()))
    without_assembler(monkeypatch)
    kernel = AttentionKernel(config, cuda=CudaBackend(driver), cache=ModuleCache(None))
    arguments = Batch.of(config, ((17, 10), (3, 20), (20, 0))).arguments
    there: Any = {name: on_device(driver, array) for name, array in arguments.items()}
    assert refusal(kernel.launch, **there) == (
        "launch: max_seqlen_q must be given, because cu_seqlens_q is on cuda:0, which a launch "
        "does not wait for; pass the most queries of a sequence"
    )
    built: Any = kernel.launch(**there, max_seqlen_q=33)
    out = driver.fetch(built.pointer, np.empty(built.shape, built.dtype))
    launched = driver.launches[-1]
    exact, layouts = dict(arguments), [arguments]
    sizes = {"max_seqlen_q": 33, "total_q": 40}
    if config.page_size:
        exact |= {name: arguments[name].swapaxes(1, 2) for name in "kv"}
        layouts.append({**arguments, **{name: exact[name].copy() for name in "kv"}, "layout": "bshd"})
        sizes |= {"seq_k": arguments["block_table"].shape[1] * 4, "pages": len(arguments["k"])}
    else:
        sizes["total_k"] = 30
        assert launched.grid == (3 * 4 * 3, 1, 1)
        said = kernel.explain(**there, max_seqlen_q=33)
        assert "work:     as much as the lengths say, which are on a GPU and not read" in said
    sizes["cu_seqlens_q"] = there["cu_seqlens_q"].pointer
    assert {name: launched.values[name] for name in sizes} == sizes
    wanted, _ = attention_varlen_reference(**exact, causal=config.causal)
    np.testing.assert_allclose(out, wanted, atol=2e-6)
    for arrays in layouts:
        assert np.array_equal(kernel.launch(**arrays, backend="cuda"), out)


def explained(
    config: AttentionConfig, lengths: Lengths, heads: tuple[int, int], **more: Any
) -> dict[str, str]:
    """What `explain` says of a batch, by the word before the colon."""
    kernel, arguments = AttentionKernel(config), Batch.of(config, lengths, heads).arguments
    said = kernel.explain(**arguments, **more, backend="interpreter")
    return {name: text.strip() for name, text in (line.split(":", 1) for line in said.splitlines())}


def test_explain_counts_the_work_of_each_sequence() -> None:
    lines = explained(PLAIN, ((3, 3), (4, 4)), (4, 2))
    assert lines["problem"] == (
        "batch 2, heads 4, kv_heads 2, total_q 7, total_k 7, max_seqlen_q 4, head_dim 8, head_dim_v 8, f32"
    )
    assert lines["grid"] == "8 CTAs"
    assert explained(PLAIN, ((3, 3), (4, 4)), (4, 2), max_seqlen_q=2**29) == lines  # the lengths are known
    assert "scores" not in lines
    needed = 2 * 4 * (3 * 3 + 4 * 4) * 16
    done = sum(AttentionKernel(PLAIN).resources.flops(1, 4, n, n) for n in (3, 4))
    assert lines["work"] == (
        f"{needed / 1e9:.3g} GFLOP needed, {done / 1e9:.3g} by the kernel's whole tiles; "
        "memory 2.6 KiB instead of 3.0 KiB, 1.1 times less; beyond inputs and outputs 2.6 KiB instead of 100 "
        "bytes, 26.2 times more for a head"
    )


@pytest.mark.slow
def test_a_batch_of_single_tokens_has_blocks_for_its_heads_and_a_prompt_larger_ones() -> None:
    config = AttentionConfig(16, dtype="f16", varlen=True, page_size=16, causal=True)
    tokens = explained(config, [(1, 40)] * 3, (8, 2))
    assert tokens["kernel"] == (
        "attention_forward_f16_d16_m32_n64_bottom_right_varlen_usedk_page16_packed for sm_80, verified"
    )
    assert tokens["grid"] == "6 CTAs"
    assert tokens["problem"] == (
        "batch 3, heads 8, kv_heads 2, total_q 3, 11 pages, block_table of 64 rows, max_seqlen_q 1, "
        "head_dim 16, head_dim_v 16, f16"
    )
    mixed = explained(config, [(1, 40), (100, 100)], (8, 2))
    assert "_m128_n64_bottom_right_varlen_usedk_page16_packed" in mixed["kernel"]
    assert mixed["grid"] == "16 CTAs"
    assert "packed" not in explained(config, [(1, 40)], (2, 2))["kernel"]
