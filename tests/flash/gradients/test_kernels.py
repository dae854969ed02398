"""The kernels of gradients, run on the interpreter, against the reference in float64: sizes, layouts,
strides, broadcast arrays, packed sequences and hard inputs, in two sweeps and in one. Features are tested in
`test_conformance.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gradient_runs import HARD as CHANGED
from gradient_runs import KINDS, SWEEPS, Case, assert_same_bits, by_name, case, check, check_packed, judge
from kernel_runs import mostly_nightly, nightly

from flash.gradients.kernel import AttentionGradient
from flash.reference import attention_reference_gradients

pytestmark = [pytest.mark.judged, pytest.mark.usefixtures("unproved")]

Array = np.ndarray[Any, Any]
SHARED = {"batch": 2, "heads": 2, "kv_heads": 1}
MANY = {"batch": 2, "heads": 4, "kv_heads": 2}


def normal(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def in_sweeps(
    names: str, values: Iterable[Any], two: Collection[Any] = (), one: Collection[Any] = ()
) -> pytest.MarkDecorator:
    """Values in two sweeps and in one, of which `make test` has those that are named."""
    quick = {"two": two, "one": one}
    of_each = [(sweeps, value) for value in values for sweeps in SWEEPS]
    rows = [((*(v if isinstance(v, tuple) else (v,)), s), v in quick[s]) for s, v in of_each]
    return pytest.mark.parametrize(
        f"{names},sweeps", [row if is_quick else nightly(*row) for row, is_quick in rows]
    )


HEAD_DIMS = [(8, 8), (16, 8), (40, 72), (64, 64), (96, 40), (128, 128), (72, 160), (160, 160), (192, 128)]
HEAD_DIMS += [(64, 256), (256, 256), (5, 7), (6, 6)]


@in_sweeps("head_dim,head_dim_v", HEAD_DIMS, two=[(40, 72)])
@pytest.mark.parametrize("kind", mostly_nightly(KINDS, ["f16"]))
def test_every_head_dim(head_dim: int, head_dim_v: int, kind: str, sweeps: str) -> None:
    seq_k = {"two": 45, "one": 75}[sweeps]
    check(case(37, seq_k, head_dim, head_dim_v, causal=True, deterministic=SWEEPS[sweeps], **KINDS[kind]))


LENGTHS = [(1, 1), (1, 130), (130, 1), (64, 64), (65, 129), (128, 64), (200, 31), (5, 0), (0, 5), (0, 0)]


@in_sweeps("seq_q,seq_k", LENGTHS, two=[(65, 129), (5, 0), (0, 5)], one=[(5, 0), (0, 5)])
@pytest.mark.parametrize("causal", mostly_nightly([False, "bottom_right", "top_left"], ["bottom_right"]))
def test_every_length(seq_q: int, seq_k: int, causal: Any, sweeps: str) -> None:
    result = check(case(seq_q, seq_k, 8, causal=causal, deterministic=SWEEPS[sweeps], **SHARED))
    if not seq_q or not seq_k:
        assert not any(gradient.any() for gradient in result[:3])


@in_sweeps("heads,kv_heads", [(1, 1), (6, 2), (4, 1), (3, 3)], two=[(6, 2)])
@pytest.mark.parametrize("layout", mostly_nightly(["bhsd", "bshd"], ["bshd"]))
def test_groups_of_heads_and_both_layouts(heads: int, kv_heads: int, layout: str, sweeps: str) -> None:
    how: dict[str, Any] = {"batch": 2, "heads": heads, "kv_heads": kv_heads, "with_dlse": True}
    check(case(40, 70, 8, deterministic=SWEEPS[sweeps], **how), layout=layout)


BROADCAST = [(2, 4, 30, 45), (1, 4, 30, 45), (2, 1, 30, 45), (4, 30, 45), (30, 45), (1, 45), (45,)]
BROADCAST += [(2, 4, 1, 45), (2, 4, 30, 1), (4, 1, 1), (2, 1, 1, 1), ()]


_QUICK_BROADCAST = [(2, 1, 30, 45)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [s if s in _QUICK_BROADCAST else pytest.param(s, marks=pytest.mark.nightly) for s in BROADCAST],
    ids=str,
)
@pytest.mark.parametrize("kind", mostly_nightly(KINDS, ["f16"]))
def test_the_gradient_of_a_bias_is_the_sum_over_what_shares_it(shape: tuple[int, ...], kind: str) -> None:
    arrays = {"bias": normal(*shape)}
    result = check(case(30, 45, 8, bias="f32", arrays=arrays, **MANY, **KINDS[kind]))
    assert result.arrays["bias"].shape == shape


OF_HEADS = [(2, 4), (1, 4), (2, 1), (4,), ()]
NUMBERS = [(name, shape) for name in ("alibi_slopes", "sink") for shape in OF_HEADS]
NUMBERS += [("key_bias", shape) for shape in [(2, 4, 45), (1, 4, 45), (2, 1, 45), (4, 45), (45,)]]
FLAGS: dict[str, Any] = {"alibi_slopes": {"alibi": True}, "sink": {"sink": True}}
FLAGS["key_bias"] = {"key_bias": "f32", "causal": True}


@in_sweeps("name,shape", NUMBERS)
def test_the_gradient_of_numbers_by_heads_or_keys_is_the_sum_over_what_shares_them(
    name: str, shape: tuple[int, ...], sweeps: str
) -> None:
    array = np.asarray(normal(*shape), np.float32)
    arrays = {name: np.abs(array) if name == "alibi_slopes" else array}
    how = {**FLAGS[name], "arrays": arrays, "with_dlse": name == "sink", "deterministic": SWEEPS[sweeps]}
    result = check(case(30, 45, 8, **how, **MANY))
    assert result.arrays[name].shape == shape


def _strided(array: Array, how: str) -> Array:
    """The same numbers with other strides."""
    *outer, columns = array.shape
    if how == "transposed":
        return np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2)
    pad = {"spaced": 8, "unaligned": 1}[how]
    room = np.full((*outer, columns + pad), 99, array.dtype)
    moved = room[..., pad:] if how == "unaligned" else room[..., :columns]
    moved[...] = array
    return moved


@in_sweeps("how", ["transposed", "spaced", "unaligned"], two=["unaligned"])
def test_arrays_of_any_strides_give_the_same_bits(how: str, sweeps: str) -> None:
    """In one sweep dQ has not the same bits in each call, and is judged."""
    of = case(37, 50, 16, causal=True, deterministic=SWEEPS[sweeps], **SHARED)
    out, lse = of.forward()
    arrays = {"dout": of.dout, "q": of.q, "k": of.k, "v": of.v, "out": out}
    moved = {name: _strided(array, how) for name, array in arrays.items()}
    into = {f"d{name}": _strided(np.full_like(arrays[name], np.nan), how) for name in "qkv"}
    result = of.run(**moved, **into)
    assert result.dq is into["dq"]
    if sweeps == "one":
        judge(of, by_name(result), out, lse)
    else:
        assert_same_bits(result, of.run())
    if how != "transposed":  # what lies between rows is as before
        pad = slice(0, 1) if how == "unaligned" else slice(16, None)
        assert (into["dk"].base[..., pad] == 99).all()


# ------------------------------------------------------------------------------------------
# packed sequences: four, one of them without queries and one without keys

ENDS = {
    "cu_seqlens_q": np.array([0, 5, 5, 80, 90], np.int32),
    "cu_seqlens_k": np.array([0, 40, 50, 140, 140], np.int32),
}
USED = {"seqused_q": np.array([3, 0, 70, 10], np.int32), "seqused_k": np.array([30, 10, 80, 0], np.int32)}
PACKED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "dlse": {"with_dlse": True},
    "causal": {"causal": True},
    "seqused": {"causal": True, "seqused_q": True, "seqused_k": True},
    "window": {"window": (9, 4), "seqused_k": True},
    "softcap": {"softcap": 2.0, "causal": "top_left"},
    "tf32": {"dtype": "f32", "precision": "tf32", "causal": True},
    "ieee": {"dtype": "f32", "with_dlse": True, "window": (9, 4), "softcap": 2.0},
    "wide rows": {"head_dim": 264, "head_dim_v": 320, "causal": True, "seqused_k": True},
}


@in_sweeps("name", PACKED, two=["seqused"])
def test_packed_sequences(name: str, sweeps: str) -> None:
    settings = PACKED[name]
    of = case(90, 140, heads=4, kv_heads=2, varlen=True, deterministic=SWEEPS[sweeps], **settings)
    check_packed(of, ENDS | {n: x for n, x in USED.items() if settings.get(n)}, "interpreter", np.nan)


@pytest.mark.nightly
def test_packed_sequences_have_the_bits_of_a_batch() -> None:
    settings = {"dropout": 0.2, "causal": True, "alibi": True, "sink": True}
    arrays = {"alibi_slopes": 0.1 * np.abs(normal(2, 2)), "sink": normal(2)}
    of = case(40, 50, batch=2, heads=2, with_dlse=True, arrays=arrays, **settings)
    wanted, (out, lse) = of.run(), of.forward()
    flat = {
        name: np.concatenate(array.swapaxes(1, 2))
        for name, array in {"dout": of.dout, "q": of.q, "k": of.k, "v": of.v, "out": out}.items()
    }
    rows = {name: np.concatenate(array, axis=1) for name, array in (("lse", lse), ("dlse", of.dlse))}
    ends = {"cu_seqlens_q": np.array([0, 40, 80], np.int32), "cu_seqlens_k": np.array([0, 50, 100], np.int32)}
    kernel = AttentionGradient(replace(of.config, varlen=True))
    result = kernel.launch(
        **flat, **rows, **ends, **arrays, dropout_seed=7, wanted=list(arrays), backend="interpreter"
    )
    for name, gradient in by_name(wanted).items():
        expected = gradient if name in arrays else np.concatenate(gradient.swapaxes(1, 2))
        np.testing.assert_array_equal(by_name(result)[name], expected, err_msg=name)


@pytest.mark.nightly
def test_one_sweep_of_packed_sequences_sums_the_gradients_of_slopes() -> None:
    """Sequences have fewer keys than the longest one, for which there are terms."""
    arrays = {"alibi_slopes": 0.1 * np.abs(normal(2, 2))}
    of = case(40, 50, batch=2, heads=2, alibi=True, arrays=arrays, deterministic=False)
    out, lse = of.forward()
    flat = {
        name: np.concatenate(array.swapaxes(1, 2))
        for name, array in {"dout": of.dout, "q": of.q, "k": of.k, "v": of.v, "out": out}.items()
    }
    ends = {"cu_seqlens_q": np.array([0, 40, 80], np.int32), "cu_seqlens_k": np.array([0, 50, 100], np.int32)}
    result = replace(of, config=replace(of.config, varlen=True)).kernel.launch(
        **flat,
        lse=np.concatenate(lse, axis=1),
        **ends,
        **arrays,
        max_seqlen_k=60,
        wanted=["alibi_slopes"],
        backend="interpreter",
    )
    again = {name: np.stack(np.split(getattr(result, f"d{name}"), 2)).swapaxes(1, 2) for name in "qkv"}
    judge(of, {**again, "alibi_slopes": result.arrays["alibi_slopes"]}, out, lse)


# ------------------------------------------------------------------------------------------
# hard inputs


def hard(name: str, dtype: str, **how: Any) -> Case:
    return CHANGED[name](case(50, 70, 32, dtype=dtype, **how))


HARD = ["one-hot rows", "large scores", "large values", "equal keys", "small dout"]


@in_sweeps("name", HARD, two=["one-hot rows"])
@pytest.mark.parametrize("dtype", mostly_nightly(["f16", "bf16"], ["f16"]))
def test_hard_inputs(name: str, dtype: str, sweeps: str) -> None:
    check(hard(name, dtype, deterministic=SWEEPS[sweeps]))


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_nightly([*HARD, "normal"], ["normal", "one-hot rows"]))
@pytest.mark.parametrize("dtype", mostly_nightly(["f16", "bf16"], ["bf16"]))
def test_errors_are_at_most_twice_those_of_pytorch(name: str, dtype: str) -> None:
    """PyTorch's own backward in the same type, on the CPU. The floor is half a unit in the last place
    of the largest element.
    """
    torch = pytest.importorskip("torch")
    of = case(50, 70, 32, dtype=dtype, heads=2, kv_heads=2) if name == "normal" else hard(name, dtype)
    to = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    q, k, v, dout = (
        torch.tensor(x.astype(np.float32)).to(to).requires_grad_(x is not of.dout)
        for x in (of.q, of.k, of.v, of.dout)
    )
    torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=of.config.scale).backward(dout)
    theirs = {n: np.float64(x.grad.float().numpy()) for n, x in (("q", q), ("k", k), ("v", v))}
    result = by_name(of.run())
    right_ones = attention_reference_gradients(of.dout, of.q, of.k, of.v, **of.given)
    wanted = {"q": right_ones.dq, "k": right_ones.dk, "v": right_ones.dv}
    last = {"f16": 2.0**-11, "bf16": 2.0**-8}[dtype]
    for n, right in wanted.items():
        ours, other = (np.abs(x[n].astype(np.float64) - right).max() for x in (result, theirs))
        assert ours <= 2 * other + last * np.abs(right).max(), (n, ours, other)


def test_large_scores_of_rows_that_see_no_key_add_nothing() -> None:
    of = case(60, 20, 16, causal=True)  # the first 40 queries see no key
    hard = replace(of, q=of.q.copy(), dout=of.dout.copy())
    hard.q[:, :, :40] *= np.float16(100)
    out, lse = of.forward()
    assert np.isneginf(lse[..., :40]).all()
    out[:, :, :40] = np.inf  # of such rows O is not read
    result = hard.run(out=out)
    assert not result.dq[:, :, :40].any()
    assert_same_bits(result, of.run())
