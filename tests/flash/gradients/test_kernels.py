"""The kernels of gradients, run on the interpreter, against the reference in float64."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gradient_runs import KINDS, TYPES, Case, assert_same_bits, by_name, case, check, judge
from kernel_runs import mostly_nightly

from flash.gradients.kernel import AttentionGradient, Gradients
from flash.reference import attention_reference_gradients

pytestmark = pytest.mark.judged

Array = np.ndarray[Any, Any]


def normal(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def some_hidden(*shape: int) -> Array:
    """Numbers of which one in five is -inf."""
    numbers = normal(*shape)
    return np.where(np.random.default_rng(2).random(shape) < 0.2, np.float32(-np.inf), numbers)


def some(*shape: int) -> Array:
    """A mask that hides three keys of ten, and all keys of query 3."""
    mask = np.random.default_rng(3).random(shape) < 0.7
    mask[..., 3 % shape[-2], :] = False
    return mask


def _squared(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return score + 0.1 * score * score


def _striped(batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return (query - key) % 3 != 0


def _first_keys(batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return key < 30


MANY = {"batch": 2, "heads": 4, "kv_heads": 2}
FEATURES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "negative scale": {"softmax_scale": -0.7, "causal": True},
    "scale 0": {"softmax_scale": 0.0, "causal": True},
    "bottom_right": {"causal": True},
    "top_left": {"causal": "top_left"},
    "left": {"window": (20, None)},
    "right": {"window": (None, 4)},
    "both_sides": {"window": (30, 9), "causal": "top_left"},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi": True, "heads": 2, "arrays": {"alibi_slopes": np.abs(normal(2))}},
    "bias": {"bias": "f32", "causal": True, "arrays": {"bias": some_hidden(1, 70, 90)}},
    "bias_f16": {"bias": "f16", "arrays": {"bias": normal(70, 90).astype(np.float16)}},
    "key_bias": {"key_bias": "f32", "causal": True, "arrays": {"key_bias": some_hidden(1, 90)}},
    "mask": {"mask": True, "others": {"mask": some(1, 1, 70, 90)}},
    "sink": {"sink": True, "causal": True, "arrays": {"sink": normal(1)}},
    "dropout": {"dropout": 0.3},
    "score_mod": {"score_mod": _squared, "bend": 3.0},
    "mask_mod": {"mask_mod": _striped},
    "several": {
        "softcap": 2.0,
        "dropout": 0.2,
        "window": (40, 25),
        "alibi": True,
        "sink": True,
        "key_bias": "f32",
        "mask": True,
        "heads": 2,
        "others": {"mask": some(1, 2, 70, 90)},
        "arrays": {"alibi_slopes": 0.1 * np.abs(normal(2)), "sink": normal(2), "key_bias": normal(1, 90)},
    },
}


_QUICK = [("f16", "several"), ("f32_grade", "both_sides")]
_EVERY = [(kind, feature) for feature in FEATURES for kind in KINDS if kind == "f16" or feature != "bias_f16"]


def _marked(kind: str, feature: str) -> Any:
    if (kind, feature) in _QUICK:
        return pytest.param(kind, feature)
    mark = pytest.mark.slow if kind == "f16" else pytest.mark.nightly
    return pytest.param(kind, feature, marks=mark)


@pytest.mark.parametrize(("kind", "feature"), [_marked(*pair) for pair in _EVERY])
def test_gradients_err_by_no_more_than_their_roundings(kind: str, feature: str) -> None:
    check(case(**{**KINDS[kind], **FEATURES[feature]}, with_dlse=feature in ("nothing", "sink", "several")))


HEAD_DIMS = [(8, 8), (16, 8), (40, 72), (64, 64), (96, 40), (128, 128), (72, 160), (160, 160), (192, 128)]
HEAD_DIMS += [(64, 256), (256, 256)]


@pytest.mark.parametrize(("head_dim", "head_dim_v"), mostly_nightly(HEAD_DIMS, [(40, 72)]))
@pytest.mark.parametrize("kind", mostly_nightly(KINDS, ["f16"]))
def test_every_head_dim(head_dim: int, head_dim_v: int, kind: str) -> None:
    check(case(37, 45, head_dim, head_dim_v, causal=True, **KINDS[kind]))


LENGTHS = [(1, 1), (1, 130), (130, 1), (64, 64), (65, 129), (128, 64), (200, 31), (5, 0), (0, 5), (0, 0)]


@pytest.mark.parametrize(("seq_q", "seq_k"), mostly_nightly(LENGTHS, [(65, 129), (5, 0), (0, 5)]))
@pytest.mark.parametrize("causal", mostly_nightly([False, "bottom_right", "top_left"], ["bottom_right"]))
def test_every_length(seq_q: int, seq_k: int, causal: Any) -> None:
    found = check(case(seq_q, seq_k, 8, causal=causal, **MANY))
    if not seq_q or not seq_k:
        assert not any(gradient.any() for gradient in found[:3])


@pytest.mark.parametrize(("heads", "kv_heads"), mostly_nightly([(1, 1), (6, 2), (4, 1), (3, 3)], [(6, 2)]))
@pytest.mark.parametrize("layout", mostly_nightly(["bhsd", "bshd"], ["bshd"]))
def test_groups_of_heads_and_both_layouts(heads: int, kv_heads: int, layout: str) -> None:
    check(case(40, 70, 8, batch=2, heads=heads, kv_heads=kv_heads, with_dlse=True), layout=layout)


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
    found = check(case(30, 45, 8, bias="f32", arrays=arrays, **MANY, **KINDS[kind]))
    assert found.arrays["bias"].shape == shape


@pytest.mark.nightly
@pytest.mark.parametrize("of", ["alibi", "sink"])
@pytest.mark.parametrize("shape", [(2, 4), (1, 4), (2, 1), (4,), ()], ids=str)
def test_the_gradient_of_a_number_of_each_head_is_the_sum_over_what_shares_it(
    of: str, shape: tuple[int, ...]
) -> None:
    name = "alibi_slopes" if of == "alibi" else of
    drawn = np.asarray(np.abs(normal(*shape)), np.float32)
    found = check(case(30, 45, 8, **{of: True}, arrays={name: drawn}, **MANY, with_dlse=True))
    assert found.arrays[name].shape == shape


@pytest.mark.nightly
@pytest.mark.parametrize("shape", [(2, 4, 45), (1, 4, 45), (2, 1, 45), (4, 45), (45,)], ids=str)
def test_the_gradient_of_a_bias_of_keys_is_the_sum_over_what_shares_it(shape: tuple[int, ...]) -> None:
    found = check(case(30, 45, 8, key_bias="f32", causal=True, arrays={"key_bias": normal(*shape)}, **MANY))
    assert found.arrays["key_bias"].shape == shape


def _strided(array: Array, how: str) -> Array:
    """The same numbers with other strides."""
    *outer, columns = array.shape
    if how == "transposed":
        return np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2)
    pad = {"spaced": 8, "unaligned": 1}[how]
    room = np.full((*outer, columns + pad), 99, array.dtype)
    made = room[..., pad:] if how == "unaligned" else room[..., :columns]
    made[...] = array
    return made


@pytest.mark.parametrize("how", mostly_nightly(["transposed", "spaced", "unaligned"], ["unaligned"]))
def test_arrays_of_any_strides_give_the_same_bits(how: str) -> None:
    of = case(37, 50, 16, causal=True, **MANY)
    out, _ = of.forward()
    given = {"dout": of.dout, "q": of.q, "k": of.k, "v": of.v, "out": out}
    odd = {name: _strided(array, how) for name, array in given.items()}
    into = {f"d{name}": _strided(np.full_like(given[name], np.nan), how) for name in "qkv"}
    found = of.run(**odd, **into)
    assert found.dq is into["dq"]
    assert_same_bits(found, of.run())
    if how != "transposed":  # what lies between rows is as before
        pad = slice(0, 1) if how == "unaligned" else slice(16, None)
        assert (into["dk"].base[..., pad] == 99).all()


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, ["f16"]))
def test_the_same_call_gives_the_same_bits(kind: str) -> None:
    of = case(70, 90, 8, causal=True, key_bias="f32", arrays={"key_bias": normal(90)}, **MANY, **KINDS[kind])
    assert_same_bits(of.run(), of.run())


# ------------------------------------------------------------------------------------------
# packed sequences

_ENDS_Q, _ENDS_K = (np.array(ends, np.int32) for ends in ([0, 5, 5, 80, 90], [0, 40, 50, 140, 140]))


def _packed(**settings: Any) -> tuple[Case, dict[str, Any]]:
    """A case whose arrays are the rows of four sequences, one of them without queries and one without
    keys; and the arguments with their lengths.
    """
    of = case(90, 140, heads=4, kv_heads=2, **settings)
    ends = {"cu_seqlens_q": _ENDS_Q, "cu_seqlens_k": _ENDS_K}
    for name, used in (("seqused_q", [3, 0, 70, 10]), ("seqused_k", [30, 10, 80, 0])):
        if settings.get(name):
            ends[name] = np.array(used, np.int32)
    return of, ends


def _check_packed(of: Case, ends: dict[str, Any]) -> Gradients:
    """Run a packed case, and judge the gradients of each sequence; what belongs to none is 0."""
    plain = replace(of.config, varlen=False, seqused_q=False, seqused_k=False)
    rows = [slice(a, b) for a, b in itertools.pairwise(_ENDS_Q)]
    keys = [slice(a, b) for a, b in itertools.pairwise(_ENDS_K)]
    for spans, used in ((rows, ends.get("seqused_q")), (keys, ends.get("seqused_k"))):
        if used is not None:
            spans[:] = [slice(s.start, s.start + n) for s, n in zip(spans, used, strict=True)]
    parts = []
    out, lse = np.zeros_like(of.dout), np.full(of.q.shape[:3], -np.inf, np.float32)
    for r, c in zip(rows, keys, strict=True):
        own_dlse = None if of.dlse is None else of.dlse[:, :, r]
        one = Case(
            plain, of.dout[:, :, r], of.q[:, :, r], of.k[:, :, c], of.v[:, :, c], of.arrays, dlse=own_dlse
        )
        out[:, :, r], lse[:, :, r] = one.forward()
        parts.append((r, c, one))
    flat = {
        name: np.ascontiguousarray(array[0].swapaxes(0, 1))
        for name, array in {"dout": of.dout, "q": of.q, "k": of.k, "v": of.v, "out": out}.items()
    }
    rows_of = {"lse": lse[0], "dlse": None if of.dlse is None else of.dlse[0]}
    found = of.kernel.launch(**flat, **rows_of, **of.arrays, **ends, backend="interpreter")
    again = {name: array.swapaxes(0, 1)[None] for name, array in by_name(found).items()}
    covered = {name: np.zeros(again[name].shape[2], bool) for name in "qkv"}
    for r, c, one in parts:
        spans = {"q": r, "k": c, "v": c}
        judge(one, {n: again[n][:, :, s] for n, s in spans.items()}, out[:, :, r], lse[:, :, r])
        for name, span in spans.items():
            covered[name][span] = True
    for name, rows_covered in covered.items():
        assert not again[name][:, :, ~rows_covered].any(), name
    return found


PACKED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "dlse": {"with_dlse": True},
    "causal": {"causal": True},
    "seqused": {"causal": True, "seqused_q": True, "seqused_k": True},
    "window": {"window": (9, 4), "seqused_k": True},
    "softcap": {"softcap": 2.0, "causal": "top_left"},
    "tf32": {"dtype": "f32", "precision": "tf32", "causal": True},
    "ieee": {"dtype": "f32", "with_dlse": True, "window": (9, 4), "softcap": 2.0},
}


@pytest.mark.parametrize("name", mostly_nightly(PACKED, ["seqused"]))
def test_packed_sequences(name: str) -> None:
    of, ends = _packed(varlen=True, **PACKED[name])
    _check_packed(of, ends)


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
    assert of.dlse is not None
    rows = {name: np.concatenate(array, axis=1) for name, array in (("lse", lse), ("dlse", of.dlse))}
    ends = {"cu_seqlens_q": np.array([0, 40, 80], np.int32), "cu_seqlens_k": np.array([0, 50, 100], np.int32)}
    made = AttentionGradient(replace(of.config, varlen=True))
    found = made.launch(
        **flat, **rows, **ends, **arrays, dropout_seed=7, wanted=list(arrays), backend="interpreter"
    )
    for name, gradient in by_name(wanted).items():
        expected = gradient if name in arrays else np.concatenate(gradient.swapaxes(1, 2))
        np.testing.assert_array_equal(by_name(found)[name], expected, err_msg=name)


# ------------------------------------------------------------------------------------------
# hard inputs


def _hard(name: str, dtype: str) -> Case:
    of = case(50, 70, 32, dtype=dtype, causal="top_left" if name == "empty rows" else False)
    kind = TYPES[dtype]
    rng = np.random.default_rng(5)
    if name == "one-hot rows":  # each row has nearly all its weight on one key
        keys = rng.choice([-1.0, 1.0], of.k.shape)
        return replace(of, k=keys.astype(kind), q=(6 * keys[:, :, :50]).astype(kind))
    if name == "large scores":
        return replace(of, q=(20 * of.q.astype(np.float32)).astype(kind))
    if name == "large values":
        return replace(of, v=(300 * of.v.astype(np.float32)).astype(kind))
    if name == "equal keys":
        return replace(of, k=np.broadcast_to(of.k[:, :, :1], of.k.shape).copy())
    if name == "small dout":
        return replace(of, dout=(2.0**-12 * of.dout.astype(np.float32)).astype(kind))
    raise AssertionError(name)


HARD = ["one-hot rows", "large scores", "large values", "equal keys", "small dout"]


@pytest.mark.parametrize("name", mostly_nightly(HARD, ["one-hot rows"]))
@pytest.mark.parametrize("dtype", mostly_nightly(["f16", "bf16"], ["f16"]))
def test_hard_inputs(name: str, dtype: str) -> None:
    check(_hard(name, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_nightly([*HARD, "normal"], ["normal", "one-hot rows"]))
@pytest.mark.parametrize("dtype", mostly_nightly(["f16", "bf16"], ["bf16"]))
def test_errors_are_at_most_twice_those_of_pytorch(name: str, dtype: str) -> None:
    """PyTorch's own backward in the same type, on the CPU. The floor is half a unit in the last place
    of the largest element.
    """
    torch = pytest.importorskip("torch")
    of = case(50, 70, 32, dtype=dtype, heads=2, kv_heads=2) if name == "normal" else _hard(name, dtype)
    to = {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
    q, k, v, dout = (
        torch.tensor(x.astype(np.float32)).to(to).requires_grad_(x is not of.dout)
        for x in (of.q, of.k, of.v, of.dout)
    )
    torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=of.config.scale).backward(dout)
    theirs = {n: np.float64(x.grad.float().numpy()) for n, x in (("q", q), ("k", k), ("v", v))}
    found = by_name(of.run())
    right_ones = attention_reference_gradients(of.dout, of.q, of.k, of.v, **of.given)
    wanted = {"q": right_ones.dq, "k": right_ones.dk, "v": right_ones.dv}
    last = {"f16": 2.0**-11, "bf16": 2.0**-8}[dtype]
    for n, right in wanted.items():
        ours, other = (np.abs(x[n].astype(np.float64) - right).max() for x in (found, theirs))
        assert ours <= 2 * other + last * np.abs(right).max(), (n, ours, other)


def test_large_scores_of_rows_that_see_no_key_add_nothing() -> None:
    of = case(60, 20, 16, causal=True)  # the first 40 queries see no key
    hard = replace(of, q=of.q.copy(), dout=of.dout.copy())
    hard.q[:, :, :40] *= np.float16(100)
    out, lse = of.forward()
    assert np.isneginf(lse[..., :40]).all()
    out[:, :, :40] = np.inf  # of such rows O is not read
    found = hard.run(out=out)
    assert not found.dq[:, :, :40].any()
    assert_same_bits(found, of.run())


UNSEEN: dict[str, dict[str, Any]] = {
    "window": {"window": (3, 3)},
    "causal": {"causal": "top_left"},
    "mask": {"mask": True},
    "key_bias": {"key_bias": "f32"},
    "bias": {"bias": "f32"},
    "mask_mod": {"mask_mod": _first_keys},
}


def _of_unseen(name: str, kind: str, bad: float, *, deterministic: bool = True) -> dict[float, Gradients]:
    """The gradients where no query sees the last of the keys, whose K and V hold 0, or `bad`."""
    seq_q, seq_k = 30, 80
    unseen = np.arange(seq_k) >= (34 if name == "window" else 30)
    arrays, others = {}, {}
    if name == "mask":
        others["mask"] = np.broadcast_to(~unseen, (1, 1, seq_q, seq_k)).copy()
    if name in ("bias", "key_bias"):
        hidden = np.where(unseen, np.float32(-np.inf), normal(seq_k))
        arrays[name] = hidden if name == "key_bias" else np.broadcast_to(hidden, (1, seq_q, seq_k)).copy()
    causal = {"causal": "top_left"} if name == "window" else {}
    settings = {**UNSEEN[name], **causal, **KINDS[kind], "with_dlse": True, "deterministic": deterministic}
    of = case(seq_q, seq_k, 16, arrays=arrays, others=others, **settings)
    found = {}
    for filled in (0.0, bad):
        k, v = of.k.copy(), of.v.copy()
        k[:, :, unseen] = v[:, :, unseen] = filled
        found[filled] = of.run(k=k, v=v)
    for gradient in (found[bad].dk, found[bad].dv):
        assert not gradient[:, :, unseen].any()
    return found


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, ["f16"]))
@pytest.mark.parametrize("name", mostly_nightly(UNSEEN, ["causal"]))
@pytest.mark.parametrize("bad", mostly_nightly([np.nan, np.inf], [np.nan]))
def test_unseen_keys_reach_no_gradient(name: str, kind: str, bad: float) -> None:
    """No query sees the last of the keys, whose K and V hold NaN or infinity."""
    found = _of_unseen(name, kind, bad)
    assert_same_bits(found[bad], found[0.0])


# ------------------------------------------------------------------------------------------
# one sweep: dQ by atomics


_QUICK_IN_ONE_SWEEP = [("f16", "bottom_right")]
_SLOW_IN_ONE_SWEEP = [("f16", "several")]


def _marked_in_one_sweep(kind: str, feature: str) -> Any:
    if (kind, feature) in _QUICK_IN_ONE_SWEEP:
        return pytest.param(kind, feature)
    is_slow = (kind, feature) in _SLOW_IN_ONE_SWEEP
    return pytest.param(kind, feature, marks=pytest.mark.slow if is_slow else pytest.mark.nightly)


@pytest.mark.parametrize(("kind", "feature"), [_marked_in_one_sweep(*pair) for pair in _EVERY])
def test_one_sweep_errs_by_no_more_than_its_roundings(kind: str, feature: str) -> None:
    with_dlse = feature in ("nothing", "sink", "several")
    check(case(**{**KINDS[kind], **FEATURES[feature]}, with_dlse=with_dlse, deterministic=False))


@pytest.mark.nightly
@pytest.mark.parametrize(("head_dim", "head_dim_v"), [*HEAD_DIMS, (5, 7), (6, 6)])
@pytest.mark.parametrize("kind", KINDS)
def test_one_sweep_of_every_head_dim(head_dim: int, head_dim_v: int, kind: str) -> None:
    check(case(37, 75, head_dim, head_dim_v, causal=True, deterministic=False, **KINDS[kind]))


@pytest.mark.parametrize(("seq_q", "seq_k"), mostly_nightly(LENGTHS, [(5, 0), (0, 5)]))
@pytest.mark.parametrize("causal", mostly_nightly([False, "bottom_right", "top_left"], ["top_left"]))
def test_one_sweep_of_every_length(seq_q: int, seq_k: int, causal: Any) -> None:
    found = check(case(seq_q, seq_k, 8, causal=causal, deterministic=False, **MANY))
    if not seq_q or not seq_k:
        assert not any(gradient.any() for gradient in found[:3])


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["transposed", "spaced", "unaligned"])
def test_one_sweep_takes_arrays_of_any_strides(how: str) -> None:
    of = case(37, 50, 16, causal=True, deterministic=False, **MANY)
    out, lse = of.forward()
    given = {"dout": of.dout, "q": of.q, "k": of.k, "v": of.v, "out": out}
    odd = {name: _strided(array, how) for name, array in given.items()}
    into = {f"d{name}": _strided(np.full_like(given[name], np.nan), how) for name in "qkv"}
    judge(of, by_name(of.run(**odd, **into)), out, lse)


@pytest.mark.nightly
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_one_sweep_of_both_layouts(layout: str) -> None:
    check(case(40, 70, 8, with_dlse=True, deterministic=False, **MANY), layout=layout)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.nightly) for n in PACKED])
def test_one_sweep_of_packed_sequences(name: str) -> None:
    of, ends = _packed(varlen=True, deterministic=False, **PACKED[name])
    _check_packed(of, ends)


@pytest.mark.nightly
@pytest.mark.parametrize("shape", [(2, 4), (1, 4), (2, 1), (4,), ()], ids=str)
def test_one_sweep_sums_the_gradients_of_slopes_by_keys(shape: tuple[int, ...]) -> None:
    slopes = np.asarray(np.abs(normal(*shape)), np.float32)
    found = check(case(30, 75, 8, alibi=True, arrays={"alibi_slopes": slopes}, deterministic=False, **MANY))
    assert found.arrays["alibi_slopes"].shape == shape


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
    found = replace(of, config=replace(of.config, varlen=True)).kernel.launch(
        **flat,
        lse=np.concatenate(lse, axis=1),
        **ends,
        **arrays,
        max_seqlen_k=60,
        wanted=["alibi_slopes"],
        backend="interpreter",
    )
    again = {name: np.stack(np.split(getattr(found, f"d{name}"), 2)).swapaxes(1, 2) for name in "qkv"}
    judge(of, {**again, "alibi_slopes": found.arrays["alibi_slopes"]}, out, lse)


@pytest.mark.nightly
@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_hard_inputs_in_one_sweep(name: str, dtype: str) -> None:
    check(replace(_hard(name, dtype), deterministic=False))


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, ["f16"]))
@pytest.mark.parametrize("window", [None, (200, None)])
def test_in_one_sweep_keys_that_do_not_exist_add_nothing_to_low_scores(kind: str, window: Any) -> None:
    """A score of 0, as of a key of zeros, would have an infinite weight."""
    of = case(128, 40, 8, window=window, deterministic=False, **KINDS[kind])
    of.q[..., 0], of.k[..., 0] = 48, -48
    check(of)


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, ["f16"]))
@pytest.mark.parametrize("name", mostly_nightly(UNSEEN, ["causal"]))
def test_unseen_keys_reach_no_gradient_of_one_sweep(name: str, kind: str) -> None:
    found = _of_unseen(name, kind, np.nan, deterministic=False)
    for n, gradient in by_name(found[np.nan]).items():
        assert np.isfinite(gradient.astype(np.float32)).all(), n
