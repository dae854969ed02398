"""Numbers of other classes than Python's mean the same in each function: numpy's scalars, tensors. Values of
classes that mean nothing are refused by the same words in each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import flash
from ptxgen.errors import ConfigError, LaunchError, PtxGenError

OURS: dict[str, Any] = {"softmax_scale": 0.25, "softcap": 3.0, "window": (2, 0)}
THEIRS: dict[str, Any] = {"softmax_scale": 0.25, "softcap": 3.0, "window_size": (2, 0)}
NUMPY = np.float32(0.25), np.float16(3.0)
Call = Callable[..., Any]


def calls(torch: ModuleType, flash_attn: Any) -> dict[str, tuple[Call, dict[str, Any]]]:
    """A call of each function, which takes its arguments about scores, and these as numbers of Python."""
    from flash.adapters import torch as ours

    rows = torch.randn(1, 5, 2, 16, generator=torch.Generator().manual_seed(0))
    tracked = rows.clone().requires_grad_()
    cu = torch.tensor([0, 5], dtype=torch.int32)
    packed, most = rows[0], {"max_seqlen_q": 5}
    theirs = functools.partial

    def cached(**how: Any) -> Any:
        cache = flash.KVCache(layers=1, batch=1, kv_heads=2, head_dim=16, capacity=8)
        heads = [rows.transpose(1, 2)] * 3
        return ours.attention_with_kvcache(heads[0], cache, *heads[1:], **{"layer": 0, **how})

    def of_config(**how: Any) -> Any:
        config = flash.AttentionConfig(head_dim=16, **how)
        return flash.AttentionKernel(config).launch(rows, rows, rows, layout="bshd")

    return {
        "flash.attention": (theirs(flash.attention, rows, rows, rows, layout="bshd"), OURS),
        "flash.attention_varlen": (
            theirs(flash.attention_varlen, packed, packed, packed, cu, cu, **most),
            OURS,
        ),
        "AttentionConfig": (of_config, OURS),
        "attention": (theirs(ours.attention, rows, rows, rows, layout="bshd"), OURS),
        "with gradients": (theirs(ours.attention, tracked, rows, rows, layout="bshd"), OURS),
        "attention_with_kvcache": (cached, OURS),
        "flash_attn_func": (theirs(flash_attn.flash_attn_func, rows, rows, rows), THEIRS),
        "flash_attn_varlen_func": (
            theirs(flash_attn.flash_attn_varlen_func, packed, packed, packed, cu, cu, 5, 5),
            THEIRS,
        ),
        "flash_attn_with_kvcache": (theirs(flash_attn.flash_attn_with_kvcache, rows, rows, rows), THEIRS),
    }


NAMES = (
    *("flash.attention", "flash.attention_varlen", "AttentionConfig", "attention", "with gradients"),
    *("attention_with_kvcache", "flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"),
)


@pytest.mark.parametrize("kind", ["tensor", "array", "list of tensors"])
@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_any_class_are_taken(torch: ModuleType, flash_attn: Any, name: str, kind: str) -> None:
    call, how = calls(torch, flash_attn)[name]
    windows: dict[str, Any] = {
        "tensor": torch.tensor([2, 0]),
        "array": np.array([2, 0]),
        "list of tensors": [torch.tensor(2), np.int64(0)],
    }
    arguments = dict(zip(how, (*NUMPY, windows[kind]), strict=True))
    assert torch.equal(call(**arguments), call(**how))


def test_a_window_that_changes_in_place_is_read_in_each_call(torch: ModuleType) -> None:
    rows = torch.randn(1, 2, 5, 16)
    window = torch.tensor([2, 0])
    flash.attention(rows, rows, rows, window=window)
    window[0] = 1
    result = flash.attention(rows, rows, rows, window=window)
    assert torch.equal(result, flash.attention(rows, rows, rows, window=(1, 0)))


def test_jax_takes_them() -> None:
    jnp = pytest.importorskip("jax.numpy")
    from flash.adapters import jax as ours

    rows = jnp.asarray(np.random.default_rng(0).standard_normal((1, 2, 5, 16), dtype=np.float32))
    arguments = dict(zip(OURS, (*NUMPY, jnp.array([2, 0])), strict=True))
    assert (ours.attention(rows, rows, rows, **arguments) == ours.attention(rows, rows, rows, **OURS)).all()


# --------------------------------------------------------------- values of classes that mean nothing


class Shown:
    """A value of no use, which messages show as it is."""

    def __repr__(self) -> str:
        return "Shown()"


SIDES = "(left, right), each a number of keys"
SCALE = "a number of at most 1.70141e+38 either way, or None for 1/sqrt(head_dim)"
FLAG = "True or False"
STREAM = "None, the integer of a CUstream, or an object with __cuda_stream__, cuda_stream or ptr"
SPLITS = "'auto' or an integer from 1 to 32768"
# What an argument of `flash.attention`, and of functions with its arguments, must be.
WANTED = {
    "causal": "one of False, True, 'bottom_right', 'top_left'",
    "precision": "one of None, 'auto', 'ieee', 'f32_grade', 'tf32'",
    "softmax_scale": SCALE,
    "layout": "one of bhsd, bshd",
    "window": f"{SIDES} from 0 to 1073741568, or None or -1 for no limit",
    "softcap": "a number from 9.53674e-07 to 1.04858e+06, or None or 0 for no cap",
    "dropout": "a probability from 0 to less than 1",
    "return_lse": FLAG,
    "backend": "one of auto, cuda, interpreter, cpu, compiled",
    "stream": STREAM,
    "splits": SPLITS,
}
OF_PACKED = {
    **{name: words for name, words in WANTED.items() if name != "layout"},
    "kv_layout": "one of NHD, HND",
    "max_seqlen_q": "an integer from 0 to 1073741568",
    "rotary_interleaved": FLAG,
}
OF_ADAPTER = {"deterministic": FLAG}
OF_CACHE = {
    **{
        name: WANTED[name]
        for name in ("softmax_scale", "window", "softcap", "return_lse", "backend", "splits")
    },
    "layer": "an integer from 0 to 0",
    "rotary_interleaved": FLAG,
}
OF_SDPA = {
    "dropout_p": WANTED["dropout"],
    "is_causal": FLAG,
    "enable_gqa": FLAG,
    "scale": SCALE.replace("head_dim", "E"),
}
OF_FLASH_ATTN = {
    "dropout_p": WANTED["dropout"],
    "causal": FLAG,
    "softmax_scale": "a number, or None for 1/sqrt(head_dim)",
    "window_size": f"{SIDES}, or -1 for no limit",
    "softcap": "a number, 0.0 for none",
    "return_attn_probs": FLAG,
    "deterministic": FLAG,
}


def refusing(torch: ModuleType, flash_attn: Any) -> dict[str, tuple[Call, str, dict[str, str]]]:
    """Calls of functions, their names in messages, and what their arguments must be."""
    from flash.adapters import torch as ours

    named = {name: call for name, (call, _) in calls(torch, flash_attn).items()}
    rows = torch.randn(1, 5, 2, 16)
    array, packed, cu = rows.numpy(), rows[0].numpy(), np.array([0, 5], np.int32)
    of = functools.partial

    def sdpa(**how: Any) -> Any:
        with ours.replace_sdpa():
            return torch.nn.functional.scaled_dot_product_attention(rows, rows, rows, **how)

    tracked = rows.clone().requires_grad_()
    adapter, varlen = (
        {**WANTED, **OF_ADAPTER},
        {**OF_PACKED, **OF_ADAPTER, "max_seqlen_k": OF_PACKED["max_seqlen_q"]},
    )
    sequences = of(ours.attention_varlen, *[tracked[0]] * 3, torch.tensor(cu), torch.tensor(cu))
    return {
        "flash.attention": (of(flash.attention, array, array, array), "attention", WANTED),
        "flash.attention_varlen": (
            of(flash.attention_varlen, packed, packed, packed, cu, cu),
            "attention_varlen",
            OF_PACKED,
        ),
        "attention": (of(ours.attention, rows, rows, rows), "attention", adapter),
        "with gradients": (of(ours.attention, tracked, rows, rows), "attention", adapter),
        "into out": (of(ours.attention, rows, rows, rows, out=torch.empty_like(rows)), "attention", adapter),
        "attention_varlen": (sequences, "attention_varlen", varlen),
        "attention_with_kvcache": (
            named["attention_with_kvcache"],
            "attention_with_kvcache",
            {**OF_CACHE, "stream": STREAM},
        ),
        "scaled_dot_product_attention": (
            of(ours.scaled_dot_product_attention, rows, rows, rows),
            "scaled_dot_product_attention",
            OF_SDPA,
        ),
        "replace_sdpa": (sdpa, "scaled_dot_product_attention", OF_SDPA),
        "flash_attn_func": (named["flash_attn_func"], "flash_attn_func", OF_FLASH_ATTN),
    }


REFUSING = (
    *("flash.attention", "flash.attention_varlen", "attention", "with gradients", "into out"),
    *("attention_varlen", "attention_with_kvcache", "scaled_dot_product_attention", "replace_sdpa"),
    "flash_attn_func",
)


def useless(torch: ModuleType) -> dict[str, Any]:
    """Values that mean nothing as a number, a word or a flag, whose truth some of them do not tell."""
    return {
        "tensor": torch.ones(2, 2),
        "array": np.ones((2, 2)),
        "object": Shown(),
        "word": "nonsense",
        "nested list": [[1], [2]],
        "mapping": {"a": 1},
        "complex": 1j,
        "no word": "",
    }


@pytest.mark.parametrize("name", REFUSING)
def test_other_classes_are_refused_in_words(torch: ModuleType, flash_attn: Any, name: str) -> None:
    call, caller, arguments = refusing(torch, flash_attn)[name]
    for argument, wanted in arguments.items():
        for value in useless(torch).values():
            with pytest.raises(PtxGenError) as raised:
                call(**{argument: value})
            assert str(raised.value) == f"{caller}: {argument} must be {wanted}, got {value!r}"


def test_jax_refuses_them() -> None:
    jnp = pytest.importorskip("jax.numpy")
    from flash.adapters import jax as ours

    rows, cu = jnp.zeros((1, 5, 2, 16)), jnp.array([0, 5], dtype=np.int32)
    values = (np.ones((2, 2)), jnp.ones((2, 2)), Shown(), "nonsense", {"a": 1}, 1j, "")
    packed = functools.partial(ours.attention_varlen, rows[0], rows[0], rows[0], cu, cu)
    for call, caller, arguments in (
        (functools.partial(ours.attention, rows, rows, rows), "attention", WANTED),
        (packed, "attention_varlen", {**OF_PACKED, "max_seqlen_k": OF_PACKED["max_seqlen_q"]}),
    ):
        for argument, wanted in {**arguments, **OF_ADAPTER}.items():
            for value in values if argument != "stream" else ():  # JAX has streams of its own
                with pytest.raises(PtxGenError) as raised:
                    call(**{argument: value})
                assert str(raised.value) == f"{caller}: {argument} must be {wanted}, got {value!r}"


@pytest.mark.parametrize("value", ["nonsense", Shown(), {"a": 1}], ids=["word", "object", "mapping"])
def test_sequences_of_a_cache_are_integers(torch: ModuleType, value: Any, ours: Any) -> None:
    cache, q = flash.KVCache(layers=1, batch=1, kv_heads=2, head_dim=16, capacity=8), torch.zeros(1, 2, 1, 16)
    with pytest.raises(LaunchError) as raised:
        ours.attention_with_kvcache(q, cache, layer=0, cache_batch_idx=value)
    assert str(raised.value) == (
        f"attention_with_kvcache: cache_batch_idx must be integers from 0 to 0, got {value!r}"
    )


@pytest.mark.parametrize("argument", ["causal", pytest.param("window", marks=pytest.mark.slow)])
def test_compiled_code_refuses_them(torch: ModuleType, argument: str, ours: Any) -> None:
    rows = torch.randn(1, 2, 5, 16)
    torch.compiler.reset()
    call = torch.compile(lambda x, **how: ours.attention(x, x, x, **how), backend="eager")
    for value in ("nonsense", Shown()):
        with pytest.raises(PtxGenError) as raised:
            call(rows, **{argument: value})
        assert str(raised.value) == f"attention: {argument} must be {WANTED[argument]}, got {value!r}"


def test_tensors_that_are_required_are_missed(torch: ModuleType, ours: Any) -> None:
    rows, cu = torch.randn(1, 2, 5, 16), torch.tensor([0, 5], dtype=torch.int32)
    sdpa: Any = ours.scaled_dot_product_attention
    cache = flash.KVCache(layers=1, batch=1, kv_heads=2, head_dim=16, capacity=8)
    cases: list[tuple[str, str, Call]] = [
        ("attention", "k", lambda: ours.attention(rows, None, rows)),
        ("attention_varlen", "cu_seqlens_q", lambda: ours.attention_varlen(*[rows[0]] * 3, None, cu)),
        ("attention_with_kvcache", "q", lambda: ours.attention_with_kvcache(None, cache, layer=0)),
        ("scaled_dot_product_attention", "value", lambda: sdpa(rows, rows, None)),
    ]
    for caller, name, call in cases:
        with pytest.raises(LaunchError) as raised:
            call()
        assert str(raised.value) == (
            f"{caller}: {name} must be a torch.Tensor, got NoneType; convert it, or call the function of "
            "this name in flash, which takes arrays of any library"
        )


def test_numbers_that_no_schema_holds(torch: ModuleType, flash_attn: Any, ours: Any) -> None:
    rows, large = torch.randn(1, 2, 5, 16, requires_grad=True), 2**70
    with pytest.raises(LaunchError) as raised:
        ours.attention(rows, rows, rows, stream=large)
    assert str(raised.value) == f"attention: stream must be {STREAM}, got {large}"
    cache = flash.KVCache(layers=1, batch=1, kv_heads=2, head_dim=16, capacity=8)
    with pytest.raises(LaunchError) as raised:
        ours.attention_with_kvcache(rows.detach(), cache, layer=large)
    assert str(raised.value) == f"attention_with_kvcache: layer must be an integer from 0 to 0, got {large}"
    with pytest.raises(LaunchError) as raised:
        flash_attn.flash_attn_with_kvcache(*[rows.detach()] * 3, cache_seqlens=large)
    assert str(raised.value) == (
        "flash_attn_with_kvcache: cache_seqlens must be from 0 to 2, the rows of a sequence in the cache, "
        f"got {large}"
    )
    wide = ours.attention(rows, rows, rows, softmax_scale=large)
    assert torch.equal(wide, flash.attention(*[rows.detach()] * 3, softmax_scale=large))


@pytest.mark.parametrize("window", [(2.0, 1.0), (True, 2), (np.True_, 2)], ids=str)
def test_a_window_is_refused_also_after_one_that_equals_it(torch: ModuleType, window: Any) -> None:
    rows = torch.randn(1, 2, 5, 16)
    flash.attention(rows, rows, rows, window=(2, 1))
    flash.attention(rows, rows, rows, window=(1, 2))
    with pytest.raises(ConfigError) as raised:
        flash.attention(rows, rows, rows, window=window)
    assert str(raised.value) == f"attention: window must be {WANTED['window']}, got {window}"


def test_a_tensor_of_a_flag_is_no_number(torch: ModuleType) -> None:
    rows, flags = torch.randn(1, 2, 5, 16), torch.tensor([True, False])
    with pytest.raises(ConfigError, match="window must be"):
        flash.attention(rows, rows, rows, window=flags)


@pytest.mark.parametrize("name", ["score_mod", "mask_mod"])
def test_a_class_is_no_function_of_scores(torch: ModuleType, name: str) -> None:
    rows = torch.randn(1, 2, 5, 16)
    signature = f"({'score, ' if name == 'score_mod' else ''}batch, head, query, key)"
    how: dict[str, Any] = {name: int}
    with pytest.raises(ConfigError) as raised:
        flash.attention(rows, rows, rows, **how)
    assert (
        str(raised.value) == f"attention: {name} must be a function {signature}, or None, got <class 'int'>"
    )
