"""The operators of the PyTorch adapter: what PyTorch asks of an operator, and what its users do."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import flash
from flash.launch.options import OPTIONS
from ptxgen.errors import ConfigError, LaunchError


@pytest.fixture
def three(torch: Any) -> tuple[Any, Any, Any]:
    return torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 16)


@pytest.fixture
def packed(torch: Any) -> tuple[Any, ...]:
    ends = [torch.tensor(e, dtype=torch.int32) for e in ([0, 2, 2, 7], [0, 3, 5, 9])]
    return torch.randn(7, 4, 8), torch.randn(9, 2, 8), torch.randn(9, 2, 16), *ends


def slopes_mod(score: Any, batch: Any, head: Any, query: Any, key: Any, slopes: Any) -> Any:
    return score - slopes[head] * (query - key)


def near(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query - key < 3


def settings(function: str = "attention", **changed: Any) -> tuple[Any, ...]:
    """The arguments of an operator behind its tensors, in the order of its schema."""
    import torch

    known = {option.name: option.default for option in OPTIONS} | {
        "causal": "",
        "return_lse": True,
        "backend": "cpu",
        "splits": 0,
        "dropout": 0.0,
        "score_mod": "",
        "mask_mod": "",
    }
    declared = [a.name for a in getattr(torch.ops.ptxgen_flash, function).default._schema.arguments]
    return tuple([(known | changed).get(name) for name in declared[declared.index("aux") + 1 :]])


def arrays(**given: Any) -> list[Any]:
    names = ("alibi_slopes", "bias", "key_bias", "mask", "sink", "dropout_seed", "aux")
    return [given.get(name) for name in names]


# ----------------------------------------------------------------------------- the same results


def test_results_are_those_of_flash_attention(ours: Any, torch: Any, three: Any) -> None:
    how = {
        "causal": True,
        "window": (4, None),
        "softcap": 5.0,
        "softmax_scale": 0.3,
        "score_mod": slopes_mod,
        "mask_mod": near,
        "aux": {"slopes": torch.rand(4)},
        "alibi_slopes": torch.rand(4),
        "bias": torch.randn(5, 6),
        "mask": torch.rand(5, 6) > 0.2,
        "sink": torch.randn(4),
        "dropout": 0.25,
        "dropout_seed": 2**64 - 3,
        "return_lse": True,
        "backend": "cpu",
    }
    for result, wanted in zip(ours.attention(*three, **how), flash.attention(*three, **how), strict=True):
        assert torch.equal(result, wanted)
    listened = torch.autograd.profiler.profile()
    with listened:  # calls go through the dispatcher
        out, _ = ours.attention(*three, **how)
    assert torch.equal(out, ours.attention(*three, **how)[0])
    assert "ptxgen_flash::attention" in [event.name for event in listened.function_events]


def test_out_is_written_and_returned(ours: Any, torch: Any, three: Any) -> None:
    out = torch.empty(2, 4, 5, 16)
    result, lse = ours.attention(*three, out=out, return_lse=True)
    wanted, sums = flash.attention(*three, return_lse=True)
    assert result is out
    assert out._version == 1
    assert torch.equal(out, wanted)
    assert torch.equal(lse, sums)


def test_results_of_varlen_are_those_of_flash(ours: Any, torch: Any, packed: Any) -> None:
    used = torch.tensor([3, 1, 3], dtype=torch.int32)
    how = {"causal": True, "alibi_slopes": torch.rand(3, 4), "seqused_k": used, "return_lse": True}
    for result, wanted in zip(
        ours.attention_varlen(*packed, **how), flash.attention_varlen(*packed, **how), strict=True
    ):
        assert torch.equal(result, wanted)


def test_results_over_a_cache_are_those_of_flash(ours: Any, torch: Any) -> None:
    caches = [flash.KVCache(1, 2, 2, 8, 40) for _ in range(2)]
    for rows in (3, 1, 1):
        q, k, v = torch.randn(2, 4, rows, 8), torch.randn(2, 2, rows, 8), torch.randn(2, 2, rows, 8)
        result = ours.attention_with_kvcache(q, caches[0], k, v, layer=0, return_lse=True, leftpad=[1, 0])
        wanted = flash.attention_with_kvcache(q, caches[1], k, v, layer=0, return_lse=True, leftpad=[1, 0])
        for a, b in zip(result, wanted, strict=True):
            assert torch.equal(a, b)
    assert caches[0].lengths.tolist() == [[5, 5]]


# -------------------------------------------------------------------------- PyTorch's own checks


def cases(t: Any, three: Any) -> dict[str, tuple[Any, ...]]:
    q, k, v = three
    tracked = [x.clone().requires_grad_() for x in three]
    one_batch = [x[0].clone().requires_grad_() for x in three]
    shown = t.ops.ptxgen_flash
    out, lse, _ = shown.attention(q, k, v, *arrays(), *settings())
    seed = t.tensor(3)
    everything = arrays(
        bias=t.randn(5, 6).requires_grad_(), mask=t.rand(5, 6) > 0.2, sink=t.randn(4), dropout_seed=seed
    )
    return {
        "plain": (shown.attention, (q, k, v, *arrays(), *settings(return_lse=False))),
        "gradients": (shown.attention, (*tracked, *everything, *settings(dropout=0.25))),
        "heads last": (
            shown.attention,
            (
                *(x.transpose(1, 2).contiguous() for x in three),
                *arrays(),
                *settings(layout="bshd", causal="top_left"),
            ),
        ),
        "three dimensions": (shown.attention, (*one_batch, *arrays(), *settings())),
        "out": (shown.attention_out, (out.clone(), q, k, v, *arrays(), *settings())),
        "backward": (
            shown.attention_backward,
            (out, None, out, lse, [True, False, True] + [False] * 4, q, k, v, *arrays(), *settings()),
        ),
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", ["plain", "gradients", "heads last", "three dimensions", "out", "backward"])
@pytest.mark.usefixtures("ours")
def test_opcheck(torch: Any, three: Any, case: str) -> None:
    operator, arguments = cases(torch, three)[case]
    torch.library.opcheck(operator.default, arguments)


@pytest.mark.slow
@pytest.mark.usefixtures("ours")
def test_opcheck_of_varlen(torch: Any, packed: Any) -> None:
    q, k, v, *ends = packed
    operators = torch.ops.ptxgen_flash
    chosen = settings("attention_varlen")
    of_lengths = (*ends, *[None] * 5)
    rest = (*of_lengths, torch.rand(4).requires_grad_(), None, None, None, *chosen)
    tracked = [x.clone().requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(operators.attention_varlen.default, (*tracked, *rest))
    rest = (*of_lengths, torch.rand(4), None, None, None, *chosen)
    torch.library.opcheck(operators.attention_varlen_out.default, (torch.zeros(7, 4, 16), q, k, v, *rest))
    out, lse, _ = operators.attention_varlen(q, k, v, *rest)
    arguments = (out, lse, out, lse, [False, True, True, True, False, False, False], q, k, v, *rest)
    torch.library.opcheck(operators.attention_varlen_backward.default, arguments)


@pytest.mark.slow
def test_opcheck_of_attention_over_a_cache(ours: Any, torch: Any) -> None:
    """A window of one key makes the result independent of how often the check has called it."""
    cache = flash.KVCache(1, 2, 2, 8, 400)
    q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 1, 8), torch.randn(2, 2, 1, 8)
    how = {"layer": 0, "head_dim_v": 8, "causal": "bottom_right", "window": [0, 0], "backend": "auto"}
    rest = settings("attention_with_kvcache", **how)
    operator = torch.ops.ptxgen_flash.attention_with_kvcache.default
    for out in (None, torch.zeros(2, 4, 1, 8)):
        torch.library.opcheck(operator, (ours.track(cache), out, q, k, v, *[None] * 8, *rest))
    assert cache.lengths.max() > 2


@pytest.fixture
def pages(torch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Packed queries, and keys of two sequences in pages."""
    q, k, v = torch.randn(7, 4, 8), torch.randn(6, 4, 2, 8), torch.randn(6, 4, 2, 16)
    table = torch.tensor([[4, 1, 3], [0, 5, 2]], dtype=torch.int32)
    used = torch.tensor([7, 9], dtype=torch.int32)
    return (q, k, v, torch.tensor([0, 2, 7], dtype=torch.int32)), {"block_table": table, "seqused_k": used}


@pytest.mark.slow
@pytest.mark.usefixtures("ours")
def test_opcheck_of_pages(torch: Any, pages: Any) -> None:
    arguments, how = pages
    chosen = settings("attention_varlen", rotary_interleaved=True)
    angles = map(torch.from_numpy, flash.rotary_tables(positions=9, rotary_dim=8))
    rest = (None, None, how["seqused_k"], how["block_table"], *angles, *[None] * 4, *chosen)
    torch.library.opcheck(torch.ops.ptxgen_flash.attention_varlen.default, (*arguments, *rest))


@pytest.mark.parametrize("interleaved", [False, True])
def test_queries_of_keys_in_pages_are_rotated(ours: Any, torch: Any, pages: Any, interleaved: bool) -> None:
    arguments, how = pages
    cos, sin = map(torch.from_numpy, flash.rotary_tables(positions=9, rotary_dim=6))
    how = {**how, "causal": True, "rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": interleaved}
    wanted, lse = flash.attention_varlen(*arguments, **how, return_lse=True)
    result = ours.attention_varlen(*arguments, **how, return_lse=True)
    assert torch.equal(result[0], wanted)
    assert torch.equal(result[1], lse)
    out = torch.empty_like(wanted)
    ours.attention_varlen(*arguments, **how, out=out)
    assert torch.equal(out, wanted)
    compiled = torch.compile(ours.attention_varlen, fullgraph=True, backend="eager")
    assert torch.equal(compiled(*arguments, **how), wanted)
    with pytest.raises(LaunchError) as caught:
        ours.attention_varlen(*arguments, **{**how, "rotary_cos": cos.clone().requires_grad_()})
    assert str(caught.value) == (
        "attention_varlen: rotary_cos requires gradients, but keys in pages have no gradients; call inside "
        "torch.no_grad(), or pass rotary_cos.detach()"
    )
    with pytest.raises(LaunchError) as caught:
        ours.attention_varlen(*arguments, **{**how, "rotary_interleaved": 1})
    assert str(caught.value) == "attention_varlen: rotary_interleaved must be True or False, got 1"


def test_keys_in_pages(ours: Any, torch: Any, pages: Any) -> None:
    arguments, how = pages
    compiled = torch.compile(ours.attention_varlen, fullgraph=True, backend="eager")
    wanted = flash.attention_varlen(*arguments, **how, causal=True)
    assert torch.equal(ours.attention_varlen(*arguments, **how, causal=True), wanted)
    assert torch.equal(compiled(*arguments, **how, causal=True), wanted)
    q, k, v, starts = arguments
    by_head = (q, k.transpose(1, 2), v.transpose(1, 2), starts)
    assert torch.equal(ours.attention_varlen(*by_head, **how, kv_layout="HND", causal=True), wanted)
    for call, message in (
        (
            lambda: ours.attention_varlen(q.clone().requires_grad_(), k, v, starts, **how),
            "attention_varlen: q requires gradients, but keys in pages have no gradients; call inside "
            "torch.no_grad(), or pass q.detach()",
        ),
        (
            lambda: torch.func.vmap(lambda q: ours.attention_varlen(q, k, v, starts, **how))(q[None]),
            "attention_varlen: torch.func.vmap cannot map over keys in pages, which all sequences share; "
            "call it for each sample, or give the samples as one batch",
        ),
    ):
        with pytest.raises(LaunchError) as caught:
            call()
        assert str(caught.value) == message


# ------------------------------------------------------------------------- compiled and exported


def everything(ours: Any, q: Any, k: Any, v: Any, slopes: Any) -> Any:
    """A function with most arguments, for compilers."""
    return ours.attention(
        q * 2,
        k,
        v,
        causal=True,
        window=(3, None),
        score_mod=slopes_mod,
        mask_mod=near,
        aux={"slopes": slopes},
        return_lse=True,
    )


def test_compiled_without_a_break(ours: Any, torch: Any, three: Any) -> None:
    slopes = torch.rand(4)
    compiled = torch.compile(everything, fullgraph=True, backend="eager")
    for result, wanted in zip(compiled(ours, *three, slopes), everything(ours, *three, slopes), strict=True):
        assert torch.equal(result, wanted)


@pytest.mark.slow
def test_compiled_with_gradients_and_dropout(ours: Any, torch: Any, three: Any) -> None:
    tracked = [x.clone().requires_grad_() for x in three]

    def drop(q: Any, k: Any, v: Any) -> Any:
        return ours.attention(q * 2, k, v, dropout=0.5)

    compiled = torch.compile(drop, fullgraph=True, backend="aot_eager")
    torch.manual_seed(5)
    wanted = torch.autograd.grad(drop(*tracked).square().sum(), tracked)
    torch.manual_seed(5)
    first = compiled(*tracked)
    for a, b in zip(torch.autograd.grad(first.square().sum(), tracked), wanted, strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(compiled(*tracked), first)


@pytest.mark.slow
def test_compiled_varlen(ours: Any, torch: Any, packed: Any) -> None:
    compiled = torch.compile(ours.attention_varlen, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*packed, causal=True), ours.attention_varlen(*packed, causal=True))


@pytest.mark.slow
def test_compiled_calls_over_a_cache_all_happen(ours: Any, torch: Any) -> None:
    caches = [flash.KVCache(1, 2, 2, 8, 40) for _ in range(2)]
    ours.track(caches[0])

    def twice(q: Any, k: Any, v: Any) -> Any:
        ours.attention_with_kvcache(q, caches[0], k, v, layer=0)  # its result is not used
        return ours.attention_with_kvcache(q, caches[0], k, v, layer=0)

    compiled = torch.compile(twice, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 1, 8), torch.randn(2, 2, 1, 8)
        for _ in range(2):
            wanted = flash.attention_with_kvcache(q, caches[1], k, v, layer=0)
        assert torch.equal(compiled(q, k, v), wanted)
    assert caches[0].lengths.tolist() == [[4, 4]]


@pytest.mark.slow
def test_an_unknown_cache_in_compiled_code_is_refused(ours: Any, torch: Any) -> None:
    cache = flash.KVCache(1, 2, 2, 8, 40)
    compiled = torch.compile(ours.attention_with_kvcache, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"adapters\.torch\.track\(cache\) once"):
        compiled(torch.randn(2, 4, 1, 8), cache, layer=0)


@pytest.mark.slow
def test_exported_programs_are_saved_and_loaded(ours: Any, torch: Any, three: Any) -> None:
    from flash.adapters.torch.functions import trace_of

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, q: Any, k: Any, v: Any, slopes: Any) -> Any:
            return everything(ours, q, k, v, slopes)

    arguments = (*three, torch.rand(4))
    file = io.BytesIO()
    torch.export.save(torch.export.export(Model(), arguments), file)
    file.seek(0)
    trace_of.cache_clear()  # as in a process that has never seen the functions
    loaded = torch.export.load(file).module()
    assert torch.equal(loaded(*arguments)[0], Model()(*arguments)[0])


@pytest.mark.slow
def test_a_cache_is_not_exported(ours: Any, torch: Any) -> None:
    cache = flash.KVCache(1, 2, 2, 8, 40)

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, q: Any) -> Any:
            return ours.attention_with_kvcache(q, cache, layer=0)

    with pytest.raises(LaunchError, match="cannot export a call with a KV cache"):
        torch.export.export(Model(), (torch.randn(2, 4, 1, 8),), strict=False)


# ------------------------------------------------------------------------- autocast and dropout


@pytest.mark.parametrize("lower", ["bfloat16", "float16"])
def test_autocast(ours: Any, torch: Any, three: Any, lower: str) -> None:
    dtype = getattr(torch, lower)
    bias = torch.randn(5, 6)
    with torch.autocast("cpu", dtype):
        result = ours.attention(*three, bias=bias)
    assert result.dtype == dtype
    assert torch.equal(result, flash.attention(*(x.to(dtype) for x in three), bias=bias.to(dtype)))
    with torch.autocast("cpu", dtype, enabled=False):
        assert ours.attention(*three).dtype == torch.float32


def test_autocast_of_varlen_and_its_gradients(ours: Any, torch: Any, packed: Any) -> None:
    q = packed[0].clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = ours.attention_varlen(q, *packed[1:])
    assert out.dtype == torch.bfloat16
    (gradient,) = torch.autograd.grad(out.float().sum(), q)
    assert gradient.dtype == torch.float32


def test_seeds_of_dropout(ours: Any, torch: Any, three: Any) -> None:
    torch.manual_seed(3)
    first, second = (ours.attention(*three, dropout=0.5) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(ours.attention(*three, dropout=0.5), first)
    assert not torch.equal(first, second)
    fixed = [ours.attention(*three, dropout=0.5, dropout_seed=s) for s in (7, torch.tensor(7))]
    assert torch.equal(*fixed)
    assert torch.equal(fixed[0], flash.attention(*three, dropout=0.5, dropout_seed=7))


def test_arguments_that_do_not_fit_are_refused(ours: Any, torch: Any, three: Any) -> None:
    q, k, v = three
    no_tensor = "convert it, or call the function of this name in flash, which takes arrays of any library"
    signature = "batch, head, query, key"
    for kind, how, message in (
        *(
            (
                LaunchError,
                {"dropout": 0.5, "dropout_seed": seed},
                "dropout_seed must be an integer from 0 to 2**64 - 1, or None for one of torch's generator, "
                f"got {seed!r}",
            )
            for seed in (-1, 2**64, 1.5, "7", True)
        ),
        (LaunchError, {"dropout_seed": 3}, "dropout_seed is given, but dropout is 0; give both, or neither"),
        (
            LaunchError,
            {"dropout": 0.5, "dropout_seed": torch.tensor([1, 2])},
            "dropout_seed as a tensor must be int64 with one element on the CPU, got torch.int64 of shape "
            "[2] on cpu; pass dropout_seed.item()",
        ),
        (
            LaunchError,
            {"bias": np.zeros((5, 6), np.float32)},
            f"bias must be a torch.Tensor, got ndarray; {no_tensor}",
        ),
        (
            LaunchError,
            {"aux": [q]},
            "aux must be a mapping of names to tensors, such as {'slopes': slopes}, got list",
        ),
        (LaunchError, {"aux": {"slopes": 3}}, f"aux['slopes'] must be a torch.Tensor, got int; {no_tensor}"),
        (ConfigError, {"score_mod": 3}, f"score_mod must be a function (score, {signature}), or None, got 3"),
        (ConfigError, {"mask_mod": 3}, f"mask_mod must be a function ({signature}), or None, got 3"),
    ):
        with pytest.raises(kind) as caught:
            ours.attention(q, k, v, **how)
        assert str(caught.value) == f"attention: {message}"
    with pytest.raises(LaunchError, match=r"cache must be a flash\.KVCache, got list"):
        ours.attention_with_kvcache(q, [], layer=0)


@pytest.fixture
def one_process(torch: Any) -> Any:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_distributed_tensors_are_refused(ours: Any, three: Any, one_process: Any) -> None:
    from torch.distributed.tensor import DTensor, Shard

    q = DTensor.from_local(three[0], one_process, [Shard(0)])
    with pytest.raises(LaunchError) as caught:
        ours.attention(q, *three[1:])
    assert str(caught.value) == (
        "attention: q must be a plain tensor, got a DTensor; where rows of sequences are sharded, pass it to "
        "flash.distributed.ContextParallel(group, layout='contiguous').attention, which attends to all "
        "ranks' keys; where batch or heads are, pass q.to_local(); or pass q.full_tensor()"
    )


@pytest.mark.usefixtures("ours")
def test_functions_of_scores_are_arguments_as_text() -> None:
    from flash.adapters.torch.functions import text_of, trace_of
    from flash.mods.record import traced
    from flash.mods.trace import AuxArray
    from flash.operands.dtypes import F32

    arrays_of_call = (("slopes", "torch.float32", 1),)
    wanted = traced("score_mod", slopes_mod, [AuxArray("slopes", F32, 1)])
    assert trace_of(text_of("score_mod", slopes_mod, arrays_of_call)) == wanted

    def odd(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return score * 0.1 - batch * head * float("inf") + query // 3 + key % 5

    assert trace_of(text_of("score_mod", odd, ())) == traced("score_mod", odd, [])


def test_flash_does_not_import_torch() -> None:
    code = "import sys, flash, flash.functions, flash.adapters; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# ----------------------------------------------------------------------------- known options

# Options of `attention` that equal those of a right call and are refused, and others.
WRONG: dict[str, dict[str, Any]] = {
    "causal": {"causal": None},
    "splits": {"splits": True},
    "flag": {"return_lse": "yes"},
    "word": {"layout": ""},
    "stream": {"stream": "0"},
    "scale": {"softmax_scale": "much"},
    "seed": {"dropout_seed": 3},
    "unknown": {"scale": 1.0},
}


@pytest.mark.parametrize("name", list(WRONG))
def test_errors_after_a_known_call_are_those_of_a_first_call(ours: Any, torch: Any, name: str) -> None:
    from flash.adapters.torch.dense import _OPERATORS

    q, texts = torch.ones(1, 1, 2, 8), []
    for is_first in (True, False):
        _OPERATORS._settings._known.clear()
        if not is_first:
            for right in ({}, {"splits": 1}, {"causal": False}, {"return_lse": True}):
                ours.attention(q, q, q, **right)
        with pytest.raises((LaunchError, ConfigError, TypeError)) as refused:
            ours.attention(q, q, q, **WRONG[name])
        texts.append(str(refused.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("wrong", [{"dropout_p": False}, {"scale": True}, {"enable_gqa": 0}], ids=str)
def test_calls_of_sdpa_with_equal_numbers_of_other_classes_are_checked(
    ours: Any, torch: Any, wrong: dict[str, Any]
) -> None:
    q = torch.ones(1, 1, 2, 8)
    ours.scaled_dot_product_attention(q, q, q)
    ours.scaled_dot_product_attention(q, q, q, scale=1.0)
    with pytest.raises(LaunchError):
        ours.scaled_dot_product_attention(q, q, q, **wrong)


def test_known_options_give_the_results_and_gradients_of_a_first_call(
    ours: Any, torch: Any, three: tuple[Any, Any, Any]
) -> None:
    from flash.adapters.torch.dense import _OPERATORS

    results = []
    for count in (1, 2):
        _OPERATORS._settings._known.clear()
        for _ in range(count):
            inputs = [x.clone().requires_grad_() for x in three]
            out, lse = ours.attention(*inputs, causal="top_left", softmax_scale=0.3, return_lse=True)
            grads = torch.autograd.grad(ours.attention(*inputs, causal="top_left").sum(), inputs)
            plain = ours.attention(*three, causal="top_left", softmax_scale=0.3)
        results.append([x.detach().numpy().tobytes() for x in (out, lse, plain, *grads)])
    assert results[0] == results[1]
