"""Context-parallel attention on ranks of gloo, against one device."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import pytest
from distributed_ranks import Ranks

pytestmark = pytest.mark.slow

# Sums of f32 in another order, and the merges: each of up to 2 * 4 parts of a row is weighed, added and
# normalised. Results of 16 bits are rounded once more, and gradients are sums of rounded parts.
BOUNDS = {"float32": 64 * 2.0**-24, "float16": 8 * 2.0**-11, "bfloat16": 8 * 2.0**-8}

QUICK: dict[str, dict[str, Any]] = {
    "zigzag ring": {"layout": "zigzag", "causal": True},
    "striped two dimensions": {"layout": "striped", "scheme": "2d", "causal": True, "scores": ("sink",)},
    "ulysses of shared heads": {"layout": "zigzag", "scheme": "ulysses", "causal": True},
    "window, neighbours only": {
        "layout": "contiguous",
        "scheme": "gather",
        "causal": True,
        "window": (9, None),
    },
    "no row on some ranks": {"layout": "zigzag", "causal": True, "queries": 3},
    "rows that see no key": {"layout": "contiguous", "causal": True, "queries": 50, "keys": 20},
}
SLOW: dict[str, dict[str, Any]] = {
    "two ranks, unequal lengths": {
        "world": 2, "layout": "zigzag", "scheme": "auto", "queries": 33, "keys": 71, "causal": True,
        "tensors": "bshd", "dim_v": 24,
    },
    "bias, softcap and sink": {"layout": "zigzag", "window": (20, 5), "scores": ("bias", "sink", "softcap")},
    "mask and ALiBi in stripes": {
        "layout": "striped", "causal": True, "window": (20, 0), "scores": ("mask", "alibi_slopes", "sink"),
    },
    "functions of scores": {
        "layout": "zigzag", "causal": "top_left", "queries": 60, "keys": 30,
        "scores": ("score_mod", "mask_mod"),
    },
    "a function that closes over a tensor": {
        "layout": "zigzag", "causal": True, "queries": 40, "scores": ("closure", "mask_mod"),
    },
    "dropout and a bias": {
        "layout": "striped", "scheme": "gather", "causal": True, "scores": ("dropout", "bias", "sink"),
    },
    "dropout in two dimensions": {
        "layout": "zigzag", "scheme": "2d", "causal": True, "scores": ("dropout", "alibi_slopes", "key_bias"),
    },
    "float16": {"layout": "zigzag", "causal": True, "dtype": "float16"},
    "bfloat16 and dropout": {"layout": "zigzag", "causal": True, "dtype": "bfloat16", "scores": ("dropout",)},
    "documents": {
        "layout": "zigzag", "batch": 1, "causal": True, "queries": 90, "cuts": (0, 3, 40, 40, 41, 90),
        "scores": ("sink",),
    },
    "documents in stripes": {
        "layout": "striped", "batch": 1, "causal": True, "queries": 90, "cuts": (0, 30, 40, 85),
        "scores": ("alibi_slopes", "dropout"),
    },
    "bias and mask by heads": {
        "layout": "zigzag", "scheme": "ulysses", "causal": True, "scores": ("bias:bhqk", "mask:b1qk", "sink"),
    },
    "bias of one head, slopes and dropout": {
        "layout": "striped", "scheme": "2d", "window": (20, 3),
        "scores": ("bias:11qk", "mask:1hqk", "alibi_slopes:bh", "dropout", "softcap"), "keys": 90,
    },
    "slopes in small tiles": {
        "layout": "zigzag", "world": 2, "causal": True, "scores": ("alibi_slopes", "key_bias"),
        "most_scores": 2000,
    },
    "slopes and sinks of documents": {
        "layout": "zigzag", "scheme": "ulysses", "batch": 1, "causal": True, "queries": 90,
        "cuts": (0, 30, 40, 85), "scores": ("alibi_slopes:b1", "sink:b1", "score_mod"),
    },
    "documents in two dimensions": {
        "layout": "zigzag", "scheme": "2d", "batch": 1, "window": (7, 3), "queries": 90,
        "cuts": (0, 30, 40, 85), "scores": ("mask_mod", "softcap"),
    },
}  # fmt: skip


def _check(ranks: Ranks, case: dict[str, Any]) -> None:
    options = {"world": 4, **case}
    for rank, result in enumerate(ranks.run("compare", **options)[: options["world"]]):
        assert result.keys() >= {"out", "lse", "max_logit", "dq", "dk", "dv"}
        for name in ("bytes", "work", "gradient bytes"):
            counted, planned = result.pop(name)
            assert counted == planned, (rank, name)
        assert result.pop("tile", 0) <= options.get("most_scores", 0)
        assert max(result.values()) <= BOUNDS[options.get("dtype", "float32")], (rank, result)


@pytest.mark.judged
@pytest.mark.parametrize("name", QUICK)
def test_results_and_gradients_are_those_of_one_device(ranks: Ranks, name: str) -> None:
    _check(ranks, QUICK[name])


@pytest.mark.judged
@pytest.mark.parametrize("name", SLOW)
def test_features_count_positions_instead_of_rows(ranks: Ranks, name: str) -> None:
    _check(ranks, SLOW[name])


# Axes of a bias. The gradients of all keys of a row cancel but for that of the row's LSE: a bias of one
# column is compared with rows and heads of its own only.
_AXES = [b + h + rest for b in "1b" for h in "1h" for rest in ("qk", "1k")]
_SCHEMES = [
    ("ulysses", "zigzag"), ("ulysses", "striped"), ("2d", "zigzag"), ("2d", "striped"), ("ring", "zigzag"),
]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.judged
@pytest.mark.parametrize("axes", [*_AXES, "1hq1", "bhq1", "hqk", "qk", "k"])
def test_a_bias_and_a_mask_may_have_any_axis_for_all(ranks: Ranks, axes: str) -> None:
    for scheme, layout in _SCHEMES:
        case = {"layout": layout, "scheme": scheme, "causal": layout != "striped"}
        _check(ranks, {**case, "scores": (f"bias:{axes}", f"mask:{axes}", "sink:b1")})
        _check(ranks, {**case, "queries": 3, "keys": 9, "scores": (f"bias:{axes}", "mask:bhqk")})


@pytest.mark.nightly
@pytest.mark.judged
@pytest.mark.parametrize("axes", ["bh", "1h", "b1", "11", "h"])
def test_slopes_may_have_any_axis_for_all(ranks: Ranks, axes: str) -> None:
    documents = {"batch": 1, "queries": 90, "cuts": (0, 3, 40, 40, 41, 85)}
    for scheme, layout in _SCHEMES[1:]:
        case = {"layout": layout, "scheme": scheme, "causal": layout == "zigzag"}
        slopes = f"alibi_slopes:{axes}"
        _check(ranks, {**case, "scores": (slopes, "bias:b1qk", "softcap")})
        _check(ranks, {**case, "scores": (slopes, "key_bias", "dropout"), "dtype": "bfloat16"})
        _check(ranks, {**case, **documents, "scores": (slopes, f"sink:{axes}", "dropout")})


@pytest.mark.nightly
@pytest.mark.judged
def test_eight_ranks_have_the_results_of_one_device(torch: ModuleType) -> None:  # noqa: ARG001
    ranks = Ranks(8)
    try:
        for layout, scheme in itertools.product(
            ("zigzag", "striped", "contiguous"), ("ring", "gather", "2d")
        ):
            _check(ranks, {"world": 8, "layout": layout, "scheme": scheme, "queries": 131, "causal": True})
        sizes = {"heads": 8, "kv_heads": 2}
        _check(ranks, {"world": 8, "layout": "zigzag", "scheme": "ulysses", "causal": True, **sizes})
        _check(ranks, {"world": 8, "layout": "striped", "window": (9, 2), "scores": ("alibi_slopes", "sink")})
        arrays = {"scores": ("alibi_slopes", "bias:1hqk", "mask:b1qk"), **sizes}
        for degree in (2, 4):
            _check(ranks, {"world": 8, "layout": "zigzag", "scheme": "2d", "degree": degree, **arrays})
    finally:
        ranks.close()


@pytest.mark.nightly
@pytest.mark.judged
@pytest.mark.parametrize(("causal", "balanced"), [(False, False), (True, False), (True, True)])
def test_results_are_those_of_pytorchs_ring(ranks: Ranks, causal: bool, balanced: bool) -> None:
    for errors in ranks.run("pytorchs_ring", 4, causal, balanced):
        assert max(errors) <= BOUNDS["float32"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("scheme", "heads", "scores"),
    [
        ("ring", 1, ()),
        ("ring", 1, ("alibi_slopes", "key_bias")),
        ("ulysses", 2, ("bias:1hqk", "mask:11qk", "sink")),
    ],
)
def test_kernels_run_on_shards(ranks: Ranks, scheme: str, heads: int, scores: tuple[str, ...]) -> None:
    case = {"world": 2, "layout": "zigzag", "causal": True, "backend": "interpreter", "scheme": scheme}
    _check(ranks, {**case, "queries": 9, "batch": 1, "heads": heads, "kv_heads": 1, "scores": scores})


@pytest.mark.parametrize(("layout", "scheme"), [("zigzag", "ring")])
def test_a_transformer_of_two_layers_has_the_gradients_of_one_device(
    ranks: Ranks, layout: str, scheme: str
) -> None:
    for result in ranks.run("transformer", 4, layout, scheme):
        assert result["loss"] <= BOUNDS["float32"]
        assert result["gradient"] <= BOUNDS["float32"]


def test_a_transformer_in_two_dimensions_has_the_gradients_of_one_device(ranks: Ranks) -> None:
    for result in ranks.run("transformer", 4, "striped", "2d"):
        assert max(result.values()) <= BOUNDS["float32"]


@pytest.mark.parametrize(
    ("layout", "scheme", "scores"),
    [("zigzag", "ring", ("alibi_slopes", "sink")), ("striped", "ulysses", ("bias:11qk", "alibi_slopes"))],
)
def test_the_same_call_has_the_same_bits(
    ranks: Ranks, layout: str, scheme: str, scores: tuple[str, ...]
) -> None:
    case = {"layout": layout, "scheme": scheme, "causal": True, "scores": scores}
    assert ranks.run("repeated", 4, **case) == [True] * 4


def test_dtensors_go_in_and_out(ranks: Ranks) -> None:
    for errors in ranks.run("dtensors", 4):
        assert max(errors) <= BOUNDS["float32"]


def test_explain_says_the_scheme_the_bytes_and_the_work(ranks: Ranks) -> None:
    said = ranks.run("explained", 4, "ring")
    assert said[0] == said[3]
    assert said[0].splitlines()[:3] == [
        "2048 queries and 2048 keys on 4 ranks, zigzag: 4 heads of q, 2 of k",
        "scheme ring, as asked",
        # The last rank sends its first chunk to 3 others, and the second as well.
        "  ring          1,572,864 bytes sent by a rank at most, 33.8 us estimated",
    ]


def _named(ranks: Ranks, different: dict[int, dict[str, Any]], **options: Any) -> list[str]:
    result: list[str] = ranks.run("refused", 4, different, **options)
    return result


def test_calls_that_differ_are_refused_on_every_rank_before_anything_is_sent(ranks: Ranks) -> None:
    caller = "ContextParallel.attention: all ranks must make the same call, and nothing was sent"
    assert (
        _named(ranks, {2: {"softmax_scale": 0.5}, 1: {"causal": True}})
        == [
            f"{caller}: causal is False on ranks 0, 2, 3, but True on rank 1; softmax_scale is None on ranks "
            "0, 1, 3, but 0.5 on rank 2"
        ]
        * 4
    )
    assert (
        _named(ranks, {1: {"layout": "striped"}})
        == [f"{caller}: layout of shards is zigzag on ranks 0, 2, 3, but striped on rank 1"] * 4
    )


def test_rows_that_are_no_shards_are_refused_on_every_rank(ranks: Ranks) -> None:
    assert (
        _named(ranks, {2: {"rows": 9}})
        == [
            "ContextParallel.attention: with layout 'zigzag' the 33 rows of q are [9, 8, 8, 8] on ranks 0 to "
            "3, got [8, 8, 9, 8]; make shards with ContextParallel.shard"
        ]
        * 4
    )


def test_a_call_that_one_rank_refuses_is_refused_by_all(ranks: Ranks) -> None:
    of_rank = (
        "attention: softcap must be a number from 9.53674e-07 to 1.04858e+06, or None or 0 for no cap, got "
        "-2.0"
    )
    others = f"ContextParallel.attention: rank 1 refused its call, and nothing was sent: {of_rank}"
    assert _named(ranks, {1: {"softcap": -2.0}}) == [others, of_rank, others, others]


def test_arrays_that_no_scheme_takes_are_refused_by_name(ranks: Ranks) -> None:
    caller = "ContextParallel.attention:"
    of_documents = (
        "cannot be combined with cu_seqlens_q, as in flash.attention_varlen: documents of their own lengths "
        "have no such array; use"
    )
    want = {
        "bias of documents": f"{caller} bias {of_documents} score_mod with aux",
        "mask of documents": f"{caller} mask {of_documents} mask_mod with aux",
        "key_bias of documents": f"{caller} key_bias {of_documents} score_mod with aux",
        "rows of a bias": (
            f"{caller} bias must have the rows of q on every rank, [8, 8, 8, 8], or 1 row on every rank, got "
            "[1, 8, 8, 8]"
        ),
        "heads of a mask": (
            f"{caller} mask must broadcast to [batch, heads, rows, keys] (batch 1, heads 4, rows 8, keys of "
            "all ranks), got shape [1, 2, 8, 32]"
        ),
        "columns of a mask": (
            f"{caller} mask must have a column for each of the 32 keys of all ranks, or 1, got 8"
        ),
        "type of a mask": f"{caller} mask must be bool, got float32; convert it with mask.bool()",
        "type of slopes": (
            f"{caller} alibi_slopes must be float32, got float64; convert it with alibi_slopes.float()"
        ),
        "type of sinks": f"{caller} sink must be float32, got float16; convert it with sink.float()",
        "a bias and a key bias": (
            "attention: key_bias cannot be combined with bias; add its elements to those of bias"
        ),
        "gradients of aux": (
            f"{caller} aux['slopes'] requires gradients, but functions of scores are not differentiated by "
            "the arrays that they index; call inside torch.no_grad(), or pass aux['slopes'].detach()"
        ),
        "aux without names": f"{caller} aux must be a mapping of names to tensors, or None, got [1.0]",
    }
    assert ranks.run("refused_arrays", 4) == [want] * 4


def test_gradients_are_summed_in_the_order_of_the_ranks(ranks: Ranks) -> None:
    caller = "ContextParallel.sum_gradients:"
    for result in ranks.run("summed", 4):
        assert result.pop("sums") == [True] * 4
        assert result == {
            "differing": (
                f"{caller} all ranks must make the same call, and nothing was sent: gradient of tensor 0 is "
                "float32 [] on ranks 0, 1, 3, but None on rank 2"
            ),
            "none": "nothing was raised",
        }


def test_dropout_needs_a_seed(ranks: Ranks) -> None:
    assert set(_named(ranks, {}, dropout=0.5)) == {
        "ContextParallel.attention: dropout needs a dropout_seed, an integer from 0 to 2**64 - 1 that is the "
        "same on all ranks, got None"
    }
