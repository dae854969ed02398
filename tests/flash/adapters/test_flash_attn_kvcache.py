"""`flash_attn_with_kvcache` beside an oracle: results, and what the caches hold after a call."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import flash_attn_oracle as oracle
import numpy as np
import pytest
from flash_attn_cases import as_numpy, bound_of, in_numpy, tensors
from judge import assert_close

BATCH, HEADS, KV_HEADS, DIM, CAPACITY, PAGE = 2, 4, 2, 40, 16, 4
BEFORE, LEFTPAD, INDEX = (3, 9), (2, 0), (2, 0)
MASKS: dict[str, dict[str, Any]] = {
    "all": {},
    "causal": {"causal": True},
    "window": {"window_size": (4, 1)},
    "causal_window": {"causal": True, "window_size": (2, 0), "softcap": 5.0},
    "alibi": {"causal": True, "alibi_slopes": [0.5, 0.25, 0.125, 0.0625]},
    "alibi_of_batch": {"alibi_slopes": [[0.5, 0.25, 0.125, 0.0625], [0.0, 0.1, 0.2, 0.3]]},
}
DTYPES = {"all": "float32", "window": "bfloat16"}  # of the others: float16


def quarter_turns(torch: ModuleType, positions: int, half: int, dtype: Any) -> tuple[Any, Any]:
    """Tables whose angles are multiples of 90 degrees, so that rotated rows are exact."""
    at = (torch.arange(positions)[:, None] * torch.arange(1, half + 1) + torch.arange(half)) % 4
    cos, sin = (torch.tensor(x, dtype=dtype)[at] for x in ([1, 0, -1, 0], [0, 1, 0, -1]))
    return cos, sin


def filled(torch: ModuleType, how: dict[str, Any], places: int, rows: int, dtype: str) -> list[Any]:
    """Caches with numbers in the rows that count, and NaN everywhere else."""
    k, v = tensors(torch, dtype, (places, rows, KV_HEADS, DIM), (places, rows, KV_HEADS, DIM))
    counts = torch.zeros(places, rows, dtype=torch.bool)
    for b in range(BATCH):
        sequence = int(how["cache_batch_idx"][b]) if "cache_batch_idx" in how else b
        first = int(how["cache_leftpad"][b]) if "cache_leftpad" in how else 0
        for row in range(first, int(BEFORE[b])):
            if "block_table" in how:
                counts[how["block_table"][sequence, row // rows], row % rows] = True
            else:
                counts[sequence, row] = True
    return [torch.where(counts[:, :, None, None], x, torch.nan) for x in (k, v)]


def assert_step_is_right(
    torch: ModuleType,
    flash_attn: Any,
    rows: tuple[int, int],
    where: str,
    padded: bool,
    rotary: str,
    mask: str,
    num_splits: int = 0,
) -> None:
    """A call with `rows` (queries, new rows) gives what the oracle gives, and leaves the caches as
    the oracle leaves its own.
    """
    (seqlen_q, new), dtype = rows, DTYPES.get(mask, "float16")
    scores = {n: torch.tensor(x) if isinstance(x, list) else x for n, x in MASKS[mask].items()}
    numbers = {"dtype": torch.int32}
    how: dict[str, Any] = {"cache_seqlens": torch.tensor(BEFORE, **numbers)}
    if where in ("index", "paged_index"):
        how["cache_batch_idx"] = torch.tensor(INDEX, **numbers)
    if padded:
        how["cache_leftpad"] = torch.tensor(LEFTPAD, **numbers)
    places, of_place = 3, CAPACITY
    if where in ("paged", "paged_index"):
        places, of_place = 14, PAGE
        order = torch.randperm(12, generator=torch.Generator().manual_seed(1)).to(torch.int32)
        how["block_table"] = order.reshape(3, 4)[: 3 if where == "paged_index" else BATCH]
    k_cache, v_cache = filled(torch, how, places, of_place, dtype)
    q, k, v = tensors(
        torch, dtype, (BATCH, seqlen_q, HEADS, DIM), (BATCH, new, KV_HEADS, DIM), (BATCH, new, KV_HEADS, DIM)
    )
    of_new = {"k": k, "v": v} if new else {}
    mine = [as_numpy(x).copy() for x in (k_cache, v_cache)]
    tables: dict[str, Any] = {}
    if rotary != "none":
        tables = dict(
            zip(("cos", "sin"), quarter_turns(torch, CAPACITY, 8, q.dtype), strict=True),
            rotary_interleaved=rotary == "interleaved",
        )
    arguments = {"rotary_" + n if n in ("cos", "sin") else n: x for n, x in tables.items()}
    out, lse = flash_attn.flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        **of_new,
        **arguments,
        **how,
        **scores,
        num_splits=num_splits,
        return_softmax_lse=True,
    )
    items = oracle.cache_step(
        as_numpy(q),
        *mine,
        *(as_numpy(x) for x in of_new.values()),
        **in_numpy(tables),
        **in_numpy(how),
        positions_increase=mask not in ("all", "alibi_of_batch"),
    )
    for result, said in zip((k_cache, v_cache), mine, strict=True):
        np.testing.assert_array_equal(as_numpy(result).astype(np.float64), said.astype(np.float64))
    assert out.is_contiguous()
    assert_items(out, lse, items, in_numpy(scores))


def assert_items(out: Any, lse: Any, items: list[Any], how: dict[str, Any]) -> None:
    """out and lse of each batch item are those of the oracle for its queries, keys and values."""
    slopes = how.get("alibi_slopes")
    for b, item in enumerate(items):
        own = how if slopes is None or slopes.ndim == 1 else {**how, "alibi_slopes": slopes[b]}
        wanted, sums = oracle.attention(*(x[None] for x in item), **own)
        bound = bound_of(*(x.swapaxes(0, 1)[None] for x in item), own)
        assert_close(f"out of item {b}", as_numpy(out[b]), wanted[0], bound.out_error[0].swapaxes(0, 1))
        assert_close(f"lse of item {b}", as_numpy(lse[b]), sums[0], bound.lse_error[0])


@pytest.mark.judged
@pytest.mark.sample(32, gate=120)
@pytest.mark.parametrize("rotary", ["none", "interleaved", "halves"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("where", ["plain", "index", "paged", "paged_index"])
@pytest.mark.parametrize("rows", [(1, 0), (4, 0), (1, 1), (5, 5), (3, 5), (5, 3)])
def test_a_step_is_that_of_the_oracle(
    torch: ModuleType,
    flash_attn: Any,
    rows: tuple[int, int],
    where: str,
    padded: bool,
    mask: str,
    rotary: str,
) -> None:
    if rotary != "none" and not rows[1]:
        rows = (rows[0], 2)  # rotation is for new rows
    assert_step_is_right(torch, flash_attn, rows, where, padded, rotary, mask)


@pytest.mark.slow
@pytest.mark.judged
@pytest.mark.parametrize(
    ("rows", "where", "rotary", "mask"),
    [
        pytest.param((5, 5), "plain", "interleaved", "causal", marks=pytest.mark.nightly),
        ((1, 1), "paged", "halves", "all"),
        pytest.param((3, 0), "paged_index", "none", "window", marks=pytest.mark.slow),
    ],
)
def test_a_step_on_the_interpreter_is_that_of_the_oracle(
    torch: ModuleType, flash_attn: Any, rows: tuple[int, int], where: str, rotary: str, mask: str
) -> None:
    with flash_attn.using_backend("interpreter"):
        assert_step_is_right(torch, flash_attn, rows, where, True, rotary, mask, num_splits=2)


def step_tensors(torch: ModuleType, rows: int = CAPACITY, places: int = BATCH, new: int = 2) -> list[Any]:
    """q, caches and new rows of a call, f32."""
    cache, more = (places, rows, KV_HEADS, DIM), (BATCH, new, KV_HEADS, DIM)
    return tensors(torch, "float32", (BATCH, new, HEADS, DIM), cache, cache, more, more)


def test_an_integer_is_the_length_of_every_sequence(torch: ModuleType, flash_attn: Any) -> None:
    q, k_cache, v_cache, k, v = step_tensors(torch)
    others = k_cache.clone(), v_cache.clone()
    for number in (5, np.int64(5)):
        result = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=number)
        lengths = torch.tensor([5, 5], dtype=torch.int32)
        wanted = flash_attn.flash_attn_with_kvcache(q, *others, k, v, cache_seqlens=lengths)
        assert torch.equal(result, wanted)
        assert torch.equal(k_cache, others[0])
        assert torch.equal(k_cache[:, 5:7], k)
    assert lengths.tolist() == [5, 5]


def test_without_lengths_all_rows_of_a_cache_are_keys(torch: ModuleType, flash_attn: Any) -> None:
    q, k_cache, v_cache, *_ = step_tensors(torch)
    result = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, causal=True)
    torch.testing.assert_close(result, flash_attn.flash_attn_func(q, k_cache, v_cache, causal=True))


def test_a_cache_may_have_room_for_a_larger_batch(torch: ModuleType, flash_attn: Any) -> None:
    q, k_cache, v_cache, k, v = step_tensors(torch, places=5)
    before = k_cache.clone()
    result = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=3)
    own = before[:BATCH].clone(), v_cache[:BATCH].clone()
    assert torch.equal(result, flash_attn.flash_attn_with_kvcache(q, *own, k, v, cache_seqlens=3))
    assert torch.equal(k_cache[:BATCH, 3:5], k)
    assert torch.equal(k_cache[BATCH:], before[BATCH:])


@pytest.mark.parametrize("page_size", [1, 256, 512, 768, 514])
def test_pages_of_any_size_are_updated_in_place(torch: ModuleType, flash_attn: Any, page_size: int) -> None:
    pages = 6
    q, k_cache, v_cache, k, v = step_tensors(torch, page_size, pages)
    table = torch.tensor([[4, 1, 3], [0, 5, 2]], dtype=torch.int32)
    length = 2 * page_size - 1  # new rows are on the last two pages
    dense = [x[table.long()].flatten(1, 2).contiguous() for x in (k_cache, v_cache)]
    how = {"cache_seqlens": length, "causal": True}
    result = flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, block_table=table, **how)
    assert torch.equal(result, flash_attn.flash_attn_with_kvcache(q, *dense, k, v, **how))
    assert torch.equal(k_cache[table.long()].flatten(1, 2), dense[0])
    assert torch.equal(v_cache[table.long()].flatten(1, 2), dense[1])


def test_caches_may_be_views_of_a_larger_tensor(torch: ModuleType, flash_attn: Any) -> None:
    q, _, _, k, v = step_tensors(torch)
    (both,) = tensors(torch, "float32", (BATCH, CAPACITY, 2, KV_HEADS, 64))
    own = [x.clone() for x in both[..., :DIM].unbind(2)]
    result = flash_attn.flash_attn_with_kvcache(
        q, *both[..., :DIM].unbind(2), k, v, cache_seqlens=5, causal=True
    )
    assert torch.equal(
        result, flash_attn.flash_attn_with_kvcache(q, *own, k, v, cache_seqlens=5, causal=True)
    )
    assert torch.equal(both[:, 5:7, 0, :, :DIM], k)
    assert torch.equal(both[:, 5:7, 1, :, :DIM], v)


def test_rows_that_are_not_read_are_not_copied(torch: ModuleType, flash_attn: Any) -> None:
    """Caches of 2**45 bytes, whose sequences have 9 rows, cannot be copied."""
    q, k_cache, v_cache, *_ = step_tensors(torch, rows=9)
    rows = 2**30 - 256
    huge = [x[:, :1].expand(BATCH, rows, KV_HEADS, DIM) for x in (k_cache, v_cache)]
    result = flash_attn.flash_attn_with_kvcache(q, *huge, cache_seqlens=9)
    same = [x[:, :9].contiguous() for x in huge]
    torch.testing.assert_close(result, flash_attn.flash_attn_func(q, *same))


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary_tables_of_any_floating_type_are_taken(
    torch: ModuleType, flash_attn: Any, interleaved: bool
) -> None:
    q, k_cache, v_cache, k, v = step_tensors(torch)
    angles = torch.arange(CAPACITY)[:, None] / 10000 ** (torch.arange(8) / 8)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        tables = angles.cos().to(dtype), angles.sin().to(dtype)
        mine = k_cache.numpy().copy(), v_cache.numpy().copy()
        result = flash_attn.flash_attn_with_kvcache(
            q, k_cache, v_cache, k, v, *tables, cache_seqlens=5, causal=True, rotary_interleaved=interleaved
        )
        items = oracle.cache_step(
            q.numpy(),
            *mine,
            k.numpy(),
            v.numpy(),
            cache_seqlens=np.array([5, 5]),
            cos=tables[0].double().numpy(),
            sin=tables[1].double().numpy(),
            rotary_interleaved=interleaved,
        )
        torch.testing.assert_close(k_cache, torch.from_numpy(mine[0]))
        for b, item in enumerate(items):
            wanted, _ = oracle.attention(*(x[None] for x in item), causal=True)
            torch.testing.assert_close(result[b], torch.from_numpy(wanted[0]).float())


def test_queries_beyond_the_rotary_tables_take_their_last_position(
    torch: ModuleType, flash_attn: Any
) -> None:
    """More queries than new rows, of which the last would be rotated by positions without a row."""
    q, k_cache, v_cache, k, v = step_tensors(torch, new=4)
    tables = quarter_turns(torch, CAPACITY, 8, q.dtype)
    longer = [torch.cat((x, x[-1:].expand(3, 8))) for x in tables]
    how = {"cache_seqlens": CAPACITY - 1, "causal": True}
    result, wanted = (
        flash_attn.flash_attn_with_kvcache(q, k_cache.clone(), v_cache, k[:, :1], v[:, :1], *each, **how)
        for each in (tables, longer)
    )
    assert torch.equal(result, wanted)


def test_splits_do_not_change_what_is_computed(torch: ModuleType, flash_attn: Any) -> None:
    q, k_cache, v_cache, *_ = step_tensors(torch)
    one, three = (
        flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, num_splits=n, return_softmax_lse=True)
        for n in (1, 3)
    )
    for a, b in zip(one, three, strict=True):
        torch.testing.assert_close(a, b)


def test_splits_are_those_of_the_caller_or_chosen(
    torch: ModuleType, flash_attn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k_cache, v_cache, *_ = step_tensors(torch)
    seen = []
    monkeypatch.setattr("flash.DecodeKernel.launch", lambda *_, splits, **__: seen.append(splits))
    for number in (0, 1, 3):
        flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, num_splits=number)
    assert seen == ["auto", 1, 3]


@pytest.mark.slow
def test_prefill_and_steps_give_what_one_call_over_all_tokens_gives(
    torch: ModuleType, flash_attn: Any
) -> None:
    """A prompt, then token after token, with rotary embedding, on the interpreter."""
    tokens, prompt = 9, 5
    q, k, v = tensors(
        torch, "float32", (1, tokens, HEADS, 16), (1, tokens, KV_HEADS, 16), (1, tokens, KV_HEADS, 16)
    )
    angles = torch.arange(12)[:, None] / 10000 ** (torch.arange(8) / 8)
    tables = angles.cos(), angles.sin()
    whole = torch.zeros(1, 12, KV_HEADS, 16), torch.zeros(1, 12, KV_HEADS, 16)
    wanted = flash_attn.flash_attn_with_kvcache(q, *whole, k, v, *tables, cache_seqlens=0, causal=True)
    caches = [torch.full_like(x, torch.nan) for x in whole]
    outs = []
    with flash_attn.using_backend("interpreter"):
        for begin, end in [(0, prompt), *((n, n + 1) for n in range(prompt, tokens))]:
            new = [x[:, begin:end] for x in (q, k, v)]
            outs.append(
                flash_attn.flash_attn_with_kvcache(
                    new[0], *caches, *new[1:], *tables, cache_seqlens=begin, causal=True
                )
            )
    torch.testing.assert_close(torch.cat(outs, 1), wanted)
    for result, said in zip(caches, whole, strict=True):
        assert torch.equal(result[:, :tokens], said[:, :tokens])
        assert bool(result[:, tokens:].isnan().all())


def given_with_new_rows(torch: ModuleType) -> tuple[tuple[Any, ...], Any]:
    """q, the caches and new rows of two sequences of 3 and 7 rows, and these lengths."""
    random = torch.Generator().manual_seed(2)
    shapes = ((2, 1, 4, 8), (2, 16, 2, 8), (2, 16, 2, 8), (2, 1, 2, 8), (2, 1, 2, 8))
    arrays = tuple(torch.randn(shape, generator=random) for shape in shapes)
    return arrays, torch.tensor([3, 7], dtype=torch.int32)


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_a_compiled_call_is_one_graph(torch: ModuleType, flash_attn: Any, backend: str) -> None:
    """With new rows, which are written to the caches; and without, by a number for all lengths."""
    torch.compiler.reset()  # or the compilations of other tests count towards torch's limit
    call = flash_attn.flash_attn_with_kvcache
    compiled = torch.compile(call, fullgraph=True, backend=backend)
    (q, *caches, k, v), lengths = given_with_new_rows(torch)
    ours, theirs = ([x.clone() for x in caches] for _ in range(2))
    with torch.no_grad():
        how = {"cache_seqlens": lengths, "causal": True, "return_softmax_lse": True}
        for a, b in zip(compiled(q, *ours, k, v, **how), call(q, *theirs, k, v, **how), strict=True):
            assert torch.equal(a, b)
        for cache, wanted, before in zip(ours, theirs, caches, strict=True):
            assert torch.equal(cache, wanted)
            assert not torch.equal(cache, before)
        for length in (5, 6, 7):
            how = {"cache_seqlens": length, "window_size": (3, 0)}
            assert torch.equal(compiled(q, *ours, **how), call(q, *ours, **how))
    with pytest.raises(Exception, match="q requires gradients, but there is no backward pass of attention"):
        compiled(q.requires_grad_(), *ours, cache_seqlens=5)


@pytest.mark.slow
@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.usefixtures("flash_attn")
def test_opcheck(torch: ModuleType, writes: bool) -> None:
    (q, *caches, k, v), lengths = given_with_new_rows(torch)
    new = (k, v) if writes else (None, None)
    rest = (None, None, None, None, True, [3, 0], 0.0, True, None, 0, True, None, None, None, "cpu")
    operators = torch.ops.ptxgen_flash
    name = "flash_attn_with_kvcache" if writes else "flash_attn_with_kvcache_read"
    arguments = (q, *caches, *new, None, None, lengths, None, *rest)
    torch.library.opcheck(getattr(operators, name).default, arguments)
