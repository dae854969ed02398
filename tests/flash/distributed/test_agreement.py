"""Calls that differ between ranks: all ranks refuse them before anything is sent, and go on."""

from __future__ import annotations

import hashlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from distributed_ranks import Ranks

pytestmark = pytest.mark.slow

_CALL, _APPEND, _DECODE = "ContextParallel.attention", "ShardedKVCache.append", "ShardedKVCache.attention"
_SAME = "all ranks must make the same call, and nothing was sent"
_REFUSED = "rank 2 refused its call, and nothing was sent"
_PACKED = {"shape": (8, 2, 8)}
_SLOPES = {"score_mod": "score_mod", "slopes": [1.0, 2.0]}


def _differs(*words: tuple[str, str, str]) -> str:
    """The error where rank 2 has other arguments than the others: (name, theirs, its) of each."""
    lines = [f"{name} is {others} on ranks 0, 1, 3, but {own} on rank 2" for name, others, own in words]
    return f"{_SAME}: {'; '.join(lines)}"


def _ones(*shape: int) -> str:
    """How errors show a float32 tensor of ones of this shape."""
    digest = hashlib.sha256(np.ones(shape, np.float32).tobytes()).hexdigest()[:8]
    return f"float32 {list(shape)} with digest {digest}"


# The arguments of all ranks, those that rank 2 has instead, and the error.
FORWARD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "dtype": ({}, {"dtype": "float16"}, _differs(("dtype", "torch.float32", "torch.float16"))),
    "batch": ({}, {"shape": (2, 2, 8, 8)}, _differs(("batch", "1", "2"))),
    "heads": ({}, {"shape": (1, 4, 8, 8)}, _differs(("heads", "2", "4"), ("kv_heads", "2", "4"))),
    "columns": ({}, {"shape": (1, 2, 8, 16)}, _differs(("head_dim", "8", "16"), ("head_dim_v", "8", "16"))),
    "layout of tensors": (
        {"shape": (1, 8, 8, 8)}, {"tensors": "bshd"}, _differs(("layout", "bhsd", "bshd")),
    ),
    "causal": ({}, {"causal": "top_left"}, _differs(("causal", "False", "'top_left'"))),
    "window": ({"causal": True}, {"window": (3, -1)}, _differs(("window", "(None, None)", "(3, None)"))),
    "softcap": ({}, {"softcap": 2.0}, _differs(("softcap", "None", "2.0"))),
    "scale": ({}, {"softmax_scale": 0.5}, _differs(("softmax_scale", "None", "0.5"))),
    "seed": (
        {"dropout": 0.5, "dropout_seed": 3}, {"dropout_seed": 4}, _differs(("dropout_seed", "3", "4")),
    ),
    "backend": ({}, {"backend": "interpreter"}, _differs(("backend", "'auto'", "'interpreter'"))),
    "values of slopes": (
        {"alibi_slopes": [1.0, 2.0]},
        {"alibi_slopes": [1.0, 3.0]},
        _differs(
            ("alibi_slopes", "float32 [2] with digest b9c80b5a", "float32 [2] with digest a47077a1"),
        ),
    ),
    "presence of a sink": (
        {}, {"sink": [1.0, 2.0]}, _differs(("sink", "None", "float32 [2] with digest b9c80b5a")),
    ),
    "a value of key_bias": (
        {"key_bias": [[0.0] * 32]},
        {"key_bias": [[0.0] * 31 + [1.0]]},
        _differs(
            ("key_bias", "float32 [1, 32] with digest 38723a2e", "float32 [1, 32] with digest 9e0149c8"),
        ),
    ),
    "shape of a bias": (
        {"bias": [[[[0.0] * 32] * 8]]},
        {"bias": [[[[0.0] * 32] * 8] * 2]},
        _differs(("bias without rows", "float32 [1, 1, 32]", "float32 [1, 2, 32]")),
    ),
    "values of aux": (
        _SLOPES,
        {"slopes": [2.0, 1.0]},
        _differs(
            ("aux['slopes']", "float32 [2] with digest b9c80b5a", "float32 [2] with digest cec62291"),
        ),
    ),
    "a function": ({}, {"mask_mod": "mask_mod"}, _differs(("digest of mask_mod", "None", "95d28dcf"))),
    "documents": (
        {**_PACKED, "cu_seqlens_q": [0, 20, 32], "cu_seqlens_k": [0, 20, 32]},
        {"cu_seqlens_q": [0, 21, 32]},
        _differs(("cu_seqlens_q", "[0, 20, 32]", "[0, 21, 32]")),
    ),
    "many documents": (
        {**_PACKED, "cu_seqlens_q": list(range(33)), "cu_seqlens_k": list(range(33))},
        {"cu_seqlens_k": [0, *range(32)]},
        _differs(
            (
                "cu_seqlens_k",
                "[0, 1, 2, 3, 4, 5, 6, 7, ..., 32] of 33 with digest 3bafcb28",
                "[0, 0, 1, 2, 3, 4, 5, 6, ..., 31] of 33 with digest 4f13a946",
            )
        ),
    ),
    "scheme": ({}, {"scheme": "ring"}, _differs(("scheme", "auto", "ring"))),
    "layout of shards": ({}, {"layout": "striped"}, _differs(("layout of shards", "zigzag", "striped"))),
    "machine": (
        {},
        {"flops": 1e12},
        _differs(
            (
                "machine",
                "Machine(flops=495000000000000.0, bandwidth=450000000000.0, latency=1e-05)",
                "Machine(flops=1000000000000.0, bandwidth=450000000000.0, latency=1e-05)",
            )
        ),
    ),
    "gradients": (
        {}, {"requires_grad": True}, _differs(("what requires gradients", "nothing", "q, k, v")),
    ),
}  # fmt: skip


def _check(
    said: list[tuple[str, ...]], kind: str, text: str, own: str | None = None, caller: str = _CALL
) -> None:
    """All ranks say a text; rank 2 `own`, if it has refused its call."""
    others = f"{kind}: {caller}: {text if own is None else f'{_REFUSED}: {text}'}"
    assert [text for text, *_ in said] == [others, others, own or others, others]
    assert all(fact for _, *facts in said for fact in facts)


@pytest.mark.parametrize("name", FORWARD)
def test_calls_that_differ_are_refused_on_every_rank(ranks: Ranks, name: str) -> None:
    options, different, said = FORWARD[name]
    _check(ranks.run("distributed_calls.forward", options, {2: different}), "LaunchError", said)


@pytest.mark.parametrize(("other", "own"), [("attention", "explain"), ("attention", "unshard")])
def test_another_function_is_named(ranks: Ranks, other: str, own: str) -> None:
    result = ranks.run("distributed_calls.forward", {"what": other}, {2: {"what": own}})
    told = _differs(("the function", f"ContextParallel.{other}", f"ContextParallel.{own}"))
    for rank, (said, works) in enumerate(result):
        assert said == f"LaunchError: ContextParallel.{own if rank == 2 else other}: {told}"
        assert works


@pytest.mark.parametrize(
    ("options", "different", "kind", "said"),
    [
        ({}, {"q": 3}, "LaunchError", "q must be a torch.Tensor, got int"),
        (
            {},
            {"window": "x"},
            "ConfigError",
            "window must be (left, right), each a number of keys from 0 to 1073741568, or None or -1 for no "
            "limit, got 'x'",
        ),
        ({"what": "unshard"}, {"axis": 5}, "IndexError", "range object index out of range"),
    ],
)
def test_an_error_of_one_rank_is_one_of_all(
    ranks: Ranks, options: dict[str, Any], different: dict[str, Any], kind: str, said: str
) -> None:
    caller = f"ContextParallel.{options.get('what', 'attention')}"
    is_own = kind != "IndexError"
    own = f"{kind}: {caller}: {said}" if is_own else f"{kind}: {said}"
    text = said if is_own else f"{kind}: {said}"
    result = ranks.run("distributed_calls.forward", options, {2: different})
    _check(result, kind if is_own else "LaunchError", text, own, caller)


def test_gradients_of_different_calls_are_refused(ranks: Ranks) -> None:
    for said, works in ranks.run("distributed_calls.gradients", "another call"):
        start, _, told = said.partition(": the call to differentiate is number ")
        assert start == f"LaunchError: gradients of {_CALL}: {_SAME}"
        first, _, rest = told.partition(" ")
        assert rest == f"on the group on ranks 0, 1, 3, but number {int(first) + 1} on the group on rank 2"
        assert works


def test_a_forward_pass_instead_of_a_backward_pass_is_refused(ranks: Ranks) -> None:
    told = _differs(("the function", f"gradients of {_CALL}", _CALL))
    for rank, (said, works) in enumerate(ranks.run("distributed_calls.gradients", "forward instead")):
        assert said == f"LaunchError: {'' if rank == 2 else 'gradients of '}{_CALL}: {told}"
        assert works


def test_gradients_that_one_rank_cannot_compute_are_refused_by_all(ranks: Ranks) -> None:
    result = ranks.run("distributed_calls.gradients", "a changed tensor")
    own = result[2][0]
    assert own.startswith(
        "RuntimeError: one of the variables needed for gradient computation has been modified"
    )
    _check(result, "LaunchError", own, own, f"gradients of {_CALL}")


@pytest.mark.parametrize("scheme", ["ring", "2d"])
def test_some_ranks_may_differentiate_their_lse_alone(ranks: Ranks, scheme: str) -> None:
    assert max(ranks.run("distributed_calls.gradients_of_lse", scheme, [1])) <= 64 * 2.0**-24


CACHED: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any], str]] = {
    "rows": (
        ("append",), {}, {"rows": 7},
        _differs(*[(n, _ones(2, 2, 6, 8), _ones(2, 2, 7, 8)) for n in "kv"]),
    ),
    "sequences": (("append",), {}, {"sequences": [0, 2]}, _differs(("sequences", "[0, 1]", "[0, 2]"))),
    "blocks": (("append",), {}, {"block": 8}, _differs(("block", "4", "8"))),
    "pages": (("append",), {}, {"page_size": 4}, _differs(("page_size", "None", "4"))),
    "capacity": (("append",), {}, {"capacity": 32}, _differs(("capacity", "64", "32"))),
    "length of shards": (("append_shard",), {}, {"rows": 7}, _differs(("length", "6", "7"))),
    "source of a fork": (("append", "fork"), {}, {"source": 1}, _differs(("source", "0", "1"))),
    "what is left": (("append", "truncate"), {}, {"cut": 3}, _differs(("length", "2", "3"))),
    "queries": (
        ("append", "decode"), {}, {"heads": 8},
        _differs(("q", _ones(2, 4, 1, 8), _ones(2, 8, 1, 8))),
    ),
    "window of a token": (
        ("append", "decode"), {}, {"window": (3, 0)}, _differs(("window", "None", "(3, 0)")),
    ),
    "scale of a token": (
        ("append", "decode"), {}, {"softmax_scale": 0.5}, _differs(("softmax_scale", "None", "0.5")),
    ),
    "sink of a token": (
        ("append", "decode"), {}, {"sink": [1.0] * 4},
        _differs(("sink", "None", "float32 [4] with digest f6bb1294")),
    ),
    "function of a token": (
        ("append", "decode"), {}, {"mask_mod": "mask_mod"},
        _differs(("digest of mask_mod", "None", "95d28dcf")),
    ),
    "merge": (("append", "decode"), {}, {"merge": "tree"}, _differs(("merge", "'auto'", "'tree'"))),
    "new keys": (
        ("append", "attention"), {}, {"step": "decode"},
        _differs(*[(n, "None", _ones(2, 2, 1, 8)) for n in "kv"]),
    ),
}  # fmt: skip
_FUNCTIONS = {"decode": "attention"}


@pytest.mark.parametrize("name", CACHED)
def test_calls_of_a_cache_that_differ_are_refused_on_every_rank(ranks: Ranks, name: str) -> None:
    steps, options, different, said = CACHED[name]
    caller = f"ShardedKVCache.{_FUNCTIONS.get(steps[-1], steps[-1])}"
    _check(
        ranks.run("distributed_calls.cached", steps, options, {2: different}),
        "LaunchError",
        said,
        caller=caller,
    )


@pytest.mark.parametrize(
    ("steps", "options", "different", "kind", "source", "said"),
    [
        (
            ("append", "append"), {"rows": 20, "page_size": 4}, {"pages": 2}, "CacheFullError",
            "KVCache.append",
            "2 more pages are needed, but 0 of 2 are free; truncate or reset sequences, or make a cache with "
            "more pages",
        ),
        (
            ("append_shard",), {"rows": 40, "page_size": 4}, {"pages": 3}, "CacheFullError", "KVCache.append",
            "6 more pages are needed, but 3 of 3 are free; truncate or reset sequences, or make a cache with "
            "more pages",
        ),
        (
            ("append", "decode"), {"rows": 40, "page_size": 4}, {"pages": 4}, "CacheFullError",
            "KVCache.append",
            "2 more pages are needed, but 0 of 4 are free; truncate or reset sequences, or make a cache with "
            "more pages",
        ),
        (
            ("append", "truncate"), {}, {"cut": 30}, "LaunchError", "ShardedKVCache.truncate",
            "length must be from 0 to the tokens of each sequence in each layer, got 30 for [6]",
        ),
        (
            ("append", "decode"), {"rows": 1}, {"heads": 3}, "LaunchError", "attention_with_kvcache",
            "the heads of q must be a multiple of those of the cache, got 3 and 2",
        ),
        (
            ("append", "decode"), {}, {"alibi_slopes": [1.0] * 3}, "LaunchError", "ShardedKVCache.attention",
            "alibi_slopes must be a tensor [4] or [2, 4], a number for each head of q, got tensor([1., 1., "
            "1.])",
        ),
    ],
)  # fmt: skip
def test_an_error_of_one_ranks_cache_is_one_of_all_and_changes_nothing(
    ranks: Ranks,
    steps: tuple[str, ...],
    options: dict[str, Any],
    different: dict[str, Any],
    kind: str,
    source: str,
    said: str,
) -> None:
    caller = f"ShardedKVCache.{_FUNCTIONS.get(steps[-1], steps[-1])}"
    result = ranks.run("distributed_calls.cached", steps, options, {2: different})
    _check(
        result, kind, said if source == caller else f"{source}: {said}", f"{kind}: {source}: {said}", caller
    )


def test_a_second_thread_needs_a_group_of_its_own(ranks: Ranks) -> None:
    refused = (
        f"LaunchError: {_CALL}: another thread is in a call on this group, and messages of two would mix; "
        "give each thread a group of its own (torch.distributed.new_group), or call in turn"
    )
    result = ranks.run("distributed_calls.in_two_threads", False)
    assert result == [["nothing was raised", ""], *[["nothing was raised", refused]] * 3]
    assert ranks.run("distributed_calls.in_two_threads", True) == [["nothing was raised"] * 2] * 4


def test_a_window_is_the_same_as_a_tensor_and_as_a_tuple(torch: ModuleType) -> None:
    from thread_ranks import ThreadRanks

    import flash
    from flash.distributed import ContextParallel

    q, k, v = torch.randn((3, 1, 2, 8, 16), generator=torch.Generator().manual_seed(0))

    def call(rank: int) -> Any:
        cp = ContextParallel()
        window = torch.tensor([2, -1]) if rank else (2, None)
        return cp.unshard(cp.attention(*(cp.shard(x) for x in (q, k, v)), causal=True, window=window))

    wanted = flash.attention(q, k, v, causal=True, window=(2, None))
    for rank in ThreadRanks(2).run(call):
        torch.testing.assert_close(rank.gave, wanted, rtol=0, atol=1e-5)
