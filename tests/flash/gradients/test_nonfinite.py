"""NaN and infinity in the arrays of the kernels of gradients: they reach what they reach in the
reference, which leaves out of its sums what a row does not see.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gradient_runs import KINDS, Case, assert_same_bits, by_name, case
from kernel_runs import mostly_nightly
from numpy.typing import NDArray

from flash.gradients.kernel import Gradients
from flash.reference import attention_reference_gradients

pytestmark = pytest.mark.judged

Array = NDArray[Any]

SEQ_Q, SEQ_K = 150, 140


def _normal(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def _hidden(*shape: int) -> Array:
    return np.random.default_rng(1).random(shape) < 0.3


def _striped(batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return (query - key) % 3 != 0


def _squared(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return score + 0.1 * score * score


HIDING: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"causal": True},
    "negative scale": {"causal": True, "softmax_scale": -0.4},
    "window": {"window": (20, 7)},
    "softcap": {"softcap": 2.0, "causal": "top_left"},
    "score_mod": {"score_mod": _squared, "causal": True},
    "mask": {"mask": True, "others": {"mask": ~_hidden(1, 2, SEQ_Q, SEQ_K)}},
    "mask_mod": {"mask_mod": _striped},
    "bias": {
        "bias": "f32",
        "arrays": {"bias": np.where(_hidden(2, 1, SEQ_K), np.float32(-np.inf), _normal(2, SEQ_Q, SEQ_K))},
    },
    "bias of keys": {
        "bias": "f32",
        "causal": True,
        "arrays": {"bias": np.where(_hidden(1, SEQ_K), np.float32(-np.inf), _normal(1, SEQ_K))},
    },
    "key_bias": {
        "key_bias": "f32",
        "arrays": {"key_bias": np.where(_hidden(2, SEQ_K), np.float32(-np.inf), _normal(2, SEQ_K))},
    },
    "sink, alibi": {
        "sink": True,
        "alibi": True,
        "causal": True,
        "arrays": {"sink": _normal(2), "alibi_slopes": np.abs(_normal(2))},
    },
    "dropout": {"dropout": 0.3, "causal": True},
}


def _run(of: Case) -> Gradients:
    """The gradients of a case whose O and LSE are those of NaN and infinity as well."""
    with np.errstate(all="ignore"):
        return of.run()


def _reference(of: Case) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        found = attention_reference_gradients(of.dout, of.q, of.k, of.v, dlse=of.dlse, **of.given)
    return {"q": found.dq, "k": found.dk, "v": found.dv, **{n: found.arrays[n] for n in of.wanted}}


def _changed(of: Case, where: str, at: Any, bad: float) -> Case:
    """The case with `bad` in one of its arrays, before those of its arrays are shared."""
    array = getattr(of, where).copy()
    array[at] = bad
    return replace(of, **{where: array})


# The first queries of causal cases see no key; they see a sink if there is one.
WHERE: dict[str, tuple[int, ...]] = {
    "q": (0, 1, 67, 3),
    "dout": (0, 1, 67, 3),
    "dout of the first query": (0, 1, 0, 3),
    "dlse": (0, 1, 67),
    "k": (0, 0, 66, 3),
    "v": (0, 0, 66, 3),
}


_EVERY = [("f16", name) for name in HIDING]
_EVERY += [(kind, name) for kind in KINDS if kind != "f16" for name in ("causal", "bias")]


def _assert_reaches_what_sees_it(kind: str, name: str, where: str, bad: float, **how: Any) -> None:
    """dV has a bad number at least where the reference has it, but for weights that are dropped, and at
    most where dK has it. What infinity in Q or K does where it makes a weight 0 is open: there only what
    is finite in the reference is looked at.
    """
    of = case(SEQ_Q, SEQ_K, 16, heads=2, with_dlse=True, **{**KINDS[kind], **HIDING[name]}, **how)
    of = _changed(of, where.split()[0], WHERE[where], bad)
    found, wanted = by_name(_run(of)), _reference(of)
    for which, gradient in found.items():
        ours, theirs = (np.isfinite(x.astype(np.float64)) for x in (gradient, wanted[which]))
        if which == "v":
            assert name == "dropout" or np.isinf(bad) or not ours[~theirs].any()
            theirs = np.where(ours, ours, np.isfinite(wanted["k"]))
        if np.isinf(bad) and where in ("q", "k"):
            theirs = np.where(ours, ours, theirs)
        np.testing.assert_array_equal(ours, theirs, err_msg=which)


@pytest.mark.parametrize(("kind", "name"), mostly_nightly(_EVERY, [("f16", "causal")]))
@pytest.mark.parametrize("where", mostly_nightly(WHERE, ["dout"]))
@pytest.mark.parametrize("bad", mostly_nightly([np.nan, np.inf], [np.nan]))
def test_a_bad_number_reaches_the_rows_and_keys_that_see_each_other(
    kind: str, name: str, where: str, bad: float
) -> None:
    _assert_reaches_what_sees_it(kind, name, where, bad)


@pytest.mark.nightly
@pytest.mark.parametrize("name", HIDING)
@pytest.mark.parametrize("kind", ["f16", "tf32", "f32_grade"])
@pytest.mark.parametrize("where", WHERE)
def test_in_one_sweep_it_reaches_no_others(kind: str, name: str, where: str) -> None:
    _assert_reaches_what_sees_it(kind, name, where, np.nan, deterministic=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", mostly_nightly(KINDS, ["f16"]))
@pytest.mark.parametrize("name", mostly_nightly(["causal", "mask", "bias", "sink, alibi"], ["bias"]))
@pytest.mark.parametrize("bad", mostly_nightly([np.nan, np.inf], [np.nan]))
def test_a_row_that_sees_no_key_adds_nothing(name: str, kind: str, bad: float) -> None:
    """Whatever its Q, O, dO and the gradient of its LSE are."""
    blind = np.arange(SEQ_Q) % 50 == 7
    arrays = dict(HIDING[name].get("arrays", {}))
    if "sink" in arrays:
        arrays["sink"] = np.full_like(arrays["sink"], -np.inf)
    if "bias" in arrays:
        arrays["bias"] = np.where(blind[:, None], np.float32(-np.inf), arrays["bias"])
    shown = np.broadcast_to(~blind[:, None], (1, 1, SEQ_Q, SEQ_K)).copy()
    by_mask = {} if "bias" in arrays else {"mask": True, "others": {"mask": shown}}
    settings = {**KINDS[kind], **HIDING[name], **by_mask, "arrays": arrays}
    of = case(SEQ_Q, SEQ_K, 16, heads=2, with_dlse=True, **settings)
    clean, (out, lse) = of.run(), of.forward()
    assert np.isneginf(lse[:, :, blind]).all()
    dirty = of
    for where in ("q", "dout", "dlse"):
        dirty = _changed(dirty, where, (..., blind) if where == "dlse" else (..., blind, slice(None)), bad)
    out[:, :, blind] = bad
    assert_same_bits(dirty.run(out=out), clean)
    assert not clean.dq[:, :, blind].any()
