"""Each kind of kernels of gradients with each feature, in two sweeps and in one: accuracy, NaN, proofs, bits.

A new feature has to be in `gradient_runs.features_of`, and needs tests of its own only for what no other has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gradient_runs import KINDS, SETTINGS, SWEEPS, Case, assert_same_bits, by_name, case, check, features_of
from kernel_runs import mostly_nightly
from numpy.typing import NDArray

from flash.contract.gradients import gradient_build
from flash.gradients.kernel import Gradients
from flash.problem.config import AttentionConfig
from flash.problem.gradient_choice import gradient_config, has_one_sweep
from flash.problem.gradients import ELEMENTS, SCORES, owners_of
from flash.reference import attention_reference_gradients
from ptxgen.target import target

pytestmark = [pytest.mark.judged, pytest.mark.usefixtures("unproved")]

Array = NDArray[Any]
Row = tuple[str, str, str]  # kind, feature and sweeps
SEQ_Q, SEQ_K = 150, 140
FEATURES = features_of()
HIDING = features_of(SEQ_Q, SEQ_K)


def table(
    quick: Collection[Row] = (),
    slow: Collection[Row] = (),
    features: Collection[str] = FEATURES,
    only: Callable[[Row], bool] = lambda _: True,
) -> pytest.MarkDecorator:
    """All kinds with all features, of which few are not nightly. f32 takes no bias of f16."""
    rows = [
        row
        for row in itertools.product(KINDS, features, SWEEPS)
        if not (row[1] == "bias_f16" and "f16" not in row[0].split())
        and (row[2] == "two" or has_one_sweep(AttentionConfig(64, **KINDS[row[0]])))
        and only(row)
    ]
    assert {*quick, *slow} <= {*rows}
    return pytest.mark.parametrize(
        ("kind", "feature", "sweeps"),
        [row if row in quick else pytest.param(*row, marks=_mark(row in slow)) for row in rows],
    )


def _mark(is_slow: bool) -> Any:
    return pytest.mark.slow if is_slow else pytest.mark.nightly


def case_of(kind: str, feature: str, sweeps: str, *sizes: int, **how: Any) -> Case:
    """A case of a row of the table, with arrays for its sizes and heads."""
    arguments = features_of(*sizes, how["heads"])[feature]
    return case(*sizes, 16, **{**KINDS[kind], **arguments, **how}, deterministic=SWEEPS[sweeps])


@table(
    quick=[
        ("f16", "several", "two"),
        ("f16 sm_75", "several", "two"),
        ("f32_grade", "both_sides", "two"),
        ("f16", "bottom_right", "one"),
    ],
    slow=[
        *[(kind, "several", "one") for kind in ("f16", "f16 sm_75")],
        *[("f16", feature, "two") for feature in FEATURES if feature != "several"],
    ],
)
def test_gradients_err_by_no_more_than_their_roundings(kind: str, feature: str, sweeps: str) -> None:
    heads = 2 if feature in ("alibi", "several") else 1
    with_dlse = feature in ("nothing", "sink", "several")
    check(case_of(kind, feature, sweeps, 70, 90, heads=heads, with_dlse=with_dlse))


# Rows of more than 256 columns, by kind: head_dim and head_dim_v, and a feature.
WIDE = [
    ("f16", 320, 512, "several"),
    ("f16", 576, 8, "bias"),
    ("bf16", 8, 384, "window"),
    ("tf32", 264, 512, "key_bias"),
    ("f32_grade", 512, 8, "sink"),
    ("ieee", 512, 264, "dropout"),
    ("wgmma_f16", 512, 512, "bottom_right"),
]


@pytest.mark.parametrize(
    ("kind", "head_dim", "head_dim_v", "feature"),
    [row if row in WIDE[:1] else pytest.param(*row, marks=pytest.mark.slow) for row in WIDE],
)
def test_gradients_of_wide_rows_err_by_no_more_than_their_roundings(
    kind: str, head_dim: int, head_dim_v: int, feature: str
) -> None:
    features = features_of(20, 37, 2)[feature]
    check(case(20, 37, head_dim, head_dim_v, heads=2, with_dlse=True, **KINDS[kind], **features))


# ------------------------------------------------------------------------------------------
# NaN and infinity reach what they reach in the reference, whose sums leave out what a row does not see


def run_silently(of: Case) -> Gradients:
    """The gradients of a case whose O and LSE are those of NaN and infinity as well."""
    with np.errstate(all="ignore"):
        return of.run()


def reference(of: Case) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        exact = attention_reference_gradients(of.dout, of.q, of.k, of.v, dlse=of.dlse, **of.given)
    return {"q": exact.dq, "k": exact.dk, "v": exact.dv, **{n: exact.arrays[n] for n in of.wanted}}


def changed(of: Case, where: str, at: Any, bad: float) -> Case:
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


def _for_bad_numbers(row: Row) -> bool:
    """All features with f16, and in one sweep with tf32 and f32_grade; two with other kinds."""
    kind, feature, sweeps = row
    return (
        kind in ("f16", "wgmma_f16")
        or feature in ("bottom_right", "bias")
        or (sweeps == "one" and kind != "bf16")
    )


@table(
    quick=[("f16", "bottom_right", "two")],
    features=[
        "nothing",
        "bottom_right",
        "negative scale",
        "window",
        "softcap",
        "score_mod",
        "mask",
        "mask_mod",
        "bias",
        "bias of keys",
        "key_bias",
        "sink, alibi",
        "dropout",
        "aux",
    ],
    only=_for_bad_numbers,
)
@pytest.mark.parametrize("where", mostly_nightly(WHERE, ["dout"]))
@pytest.mark.parametrize("bad", mostly_nightly([np.nan, np.inf], [np.nan]))
def test_a_bad_number_reaches_the_rows_and_keys_that_see_each_other(
    kind: str, feature: str, sweeps: str, where: str, bad: float
) -> None:
    """dV has a bad number at least where the reference has it, but for weights that are dropped, and at
    most where dK has it. What infinity in Q or K does where it makes a weight 0 is open: there only what
    is finite in the reference is looked at.
    """
    of = case_of(kind, feature, sweeps, SEQ_Q, SEQ_K, heads=2, with_dlse=True)
    of = changed(of, where.split()[0], WHERE[where], bad)
    result, wanted = by_name(run_silently(of)), reference(of)
    for which, gradient in result.items():
        ours, theirs = (np.isfinite(x.astype(np.float64)) for x in (gradient, wanted[which]))
        if which == "v":
            assert of.config.dropout or np.isinf(bad) or not ours[~theirs].any()
            theirs = np.where(ours, ours, np.isfinite(wanted["k"]))
        if np.isinf(bad) and where in ("q", "k"):
            theirs = np.where(ours, ours, theirs)
        np.testing.assert_array_equal(ours, theirs, err_msg=which)


@pytest.mark.slow
@pytest.mark.parametrize("kind", mostly_nightly(KINDS, ["f16"]))
@pytest.mark.parametrize("feature", mostly_nightly(["bottom_right", "mask", "bias", "sink, alibi"], ["bias"]))
@pytest.mark.parametrize("bad", mostly_nightly([np.nan, np.inf], [np.nan]))
def test_a_row_that_sees_no_key_adds_nothing(feature: str, kind: str, bad: float) -> None:
    """Whatever its Q, O, dO and the gradient of its LSE are."""
    blind = np.arange(SEQ_Q) % 50 == 7
    arrays = dict(HIDING[feature].get("arrays", {}))
    if "sink" in arrays:
        arrays["sink"] = np.full_like(arrays["sink"], -np.inf)
    if "bias" in arrays:
        arrays["bias"] = np.where(blind[:, None], np.float32(-np.inf), arrays["bias"])
    shown = np.broadcast_to(~blind[:, None], (1, 1, SEQ_Q, SEQ_K)).copy()
    by_mask = {} if "bias" in arrays else {"mask": True, "others": {"mask": shown}}
    settings = {**KINDS[kind], **HIDING[feature], **by_mask, "arrays": arrays}
    of = case(SEQ_Q, SEQ_K, 16, heads=2, with_dlse=True, **settings)
    clean, (out, lse) = of.run(), of.forward()
    assert np.isneginf(lse[:, :, blind]).all()
    dirty = of
    for where in ("q", "dout", "dlse"):
        dirty = changed(dirty, where, (..., blind) if where == "dlse" else (..., blind, slice(None)), bad)
    out[:, :, blind] = bad
    assert_same_bits(dirty.run(out=out), clean)
    assert not clean.dq[:, :, blind].any()


def _first_keys(batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return key < 30


def _unseen(name: str) -> tuple[Array, dict[str, Any]]:
    """Which of 80 keys none of 30 queries sees, and the arguments of `case` by which that is so."""
    seq_q, seq_k = 30, 80
    unseen = np.arange(seq_k) >= (34 if name == "window" else 30)
    numbers = np.random.default_rng([1, seq_k]).standard_normal(seq_k, np.float32)
    hidden = np.where(unseen, np.float32(-np.inf), numbers)
    mask, bias = (np.broadcast_to(x, (1, seq_q, seq_k)).copy() for x in (~unseen, hidden))
    return unseen, {
        "window": {"window": (3, 3), "causal": "top_left"},
        "causal": {"causal": "top_left"},
        "mask": {"mask": True, "others": {"mask": mask[None]}},
        "key_bias": {"key_bias": "f32", "arrays": {"key_bias": hidden}},
        "bias": {"bias": "f32", "arrays": {"bias": bias}},
        "mask_mod": {"mask_mod": _first_keys},
    }[name]


@table(
    quick=[("f16", "causal", "two"), ("f16", "causal", "one")],
    features=["window", "causal", "mask", "key_bias", "bias", "mask_mod"],
)
@pytest.mark.parametrize("bad", mostly_nightly([np.nan, np.inf], [np.nan]))
def test_unseen_keys_reach_no_gradient(kind: str, feature: str, sweeps: str, bad: float) -> None:
    """No query sees the last of the keys, whose K and V hold NaN or infinity."""
    unseen, how = _unseen(feature)
    of = case(30, 80, 16, with_dlse=True, deterministic=SWEEPS[sweeps], **how, **KINDS[kind])
    result = []
    for filled in (0.0, bad):
        k, v = of.k.copy(), of.v.copy()
        k[:, :, unseen] = v[:, :, unseen] = filled
        result.append(of.run(k=k, v=v))
    for gradient in (result[1].dk, result[1].dv):
        assert not gradient[:, :, unseen].any()
    if of.deterministic:
        assert_same_bits(result[1], result[0])
    for name, gradient in by_name(result[1]).items():
        assert np.isfinite(gradient.astype(np.float32)).all(), name


# ------------------------------------------------------------------------------------------
# proofs and bits


@table(
    quick=[("f16", "bottom_right", "two")],
    slow=[*[("f16", feature, "two") for feature in ("several", "mask")], ("f16", "bottom_right", "one")],
    features=SETTINGS,
)
def test_kernels_are_proved(kind: str, feature: str, sweeps: str) -> None:
    config = AttentionConfig(64, **KINDS[kind], **SETTINGS[feature])
    wanted = config.differentiable
    others = [SCORES] * ("bias" in wanted) + [ELEMENTS] * (feature == "aux")
    for owner in [*owners_of(one_sweep=sweeps == "one"), *others]:
        how: dict[str, Any] = {"with_dlse": True, "wanted": wanted, "one_sweep": sweeps == "one"}
        built = gradient_build(gradient_config(config, owner, target(config.target or "sm_80"), 16, **how))
        assert built.proof.complete, built.proof.unknown
        assert not built.global_proof.unknown, built.global_proof.unknown
        assert not built.is_faulty


@table(quick=[("f16", "key_bias", "two")], features=["key_bias", "bias", "several"])
def test_the_same_call_gives_the_same_bits(kind: str, feature: str, sweeps: str) -> None:
    """But for dQ of one sweep, which atomics sum."""
    of = case_of(kind, feature, sweeps, 70, 90, batch=2, heads=2, kv_heads=1)
    one, other = of.run(), of.run()
    if sweeps == "one":
        one, other = (result._replace(dq=one.dq) for result in (one, other))
    assert_same_bits(one, other)
