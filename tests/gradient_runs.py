"""Runs the kernels of gradients on the interpreter, and judges what they write."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
from judge import assert_close, rounded_normal
from numpy.typing import NDArray

from flash.gradients.kernel import AttentionGradient, Gradients
from flash.problem.config import AttentionConfig
from flash.problem.gradient_choice import has_one_sweep
from flash.reference import attention_reference
from flash.scores.feature import summed_to
from tools.campaign.gradient_bound import GradientBound, GradientInputs

Array = NDArray[Any]
TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
KINDS: dict[str, dict[str, Any]] = {  # settings of the kinds of products
    "f16": {"dtype": "f16"},
    "bf16": {"dtype": "bf16"},
    "tf32": {"dtype": "f32", "precision": "tf32"},
    "f32_grade": {"dtype": "f32", "precision": "f32_grade"},
    "ieee": {"dtype": "f32", "precision": "ieee"},
    "wgmma_f16": {"dtype": "f16", "target": "sm_90a"},
    "wgmma_bf16": {"dtype": "bf16", "target": "sm_90a"},
    "f16 sm_75": {"dtype": "f16", "target": "sm_75"},
    "ieee sm_75": {"dtype": "f32", "precision": "ieee", "target": "sm_75"},
}
# The kinds whose products round in different ways; those of sm_75 round as another kind does.
ROUNDED = {kind: settings for kind, settings in KINDS.items() if settings.get("target") != "sm_75"}


SWEEPS = {"two": True, "one": False}  # by number: whether they are deterministic


@dataclass
class Case:
    """A call for gradients. `arrays` are those of the scores; `others` the further arguments."""

    config: AttentionConfig
    dout: Array
    q: Array
    k: Array
    v: Array
    arrays: dict[str, Array] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    dlse: Array | None = None
    bend: float = 1.0  # bound of the derivative of scores by scaled products, and of its derivative
    deterministic: bool = True
    in_order: bool = False  # whether one sweep is asked for although dq is to be deterministic

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of the reference."""
        config = self.config
        how = {"causal": config.causal, "softmax_scale": config.scale, **config.score_arguments}
        return {**how, **self.arrays, **self.others}

    def forward(self) -> tuple[Array, Array]:
        """O in the type of q, and LSE in f32."""
        out, lse = attention_reference(self.q, self.k, self.v, **self.given)
        return out.astype(self.q.dtype), lse.astype(np.float32)

    @property
    def wanted(self) -> list[str]:
        """The arrays that have gradients."""
        elements = [name for name in self.config.differentiable if name in self.config.aux_operands]
        return [*(name for name in self.config.differentiable if name in self.arrays), *elements]

    @property
    def kernel(self) -> AttentionGradient:
        """What makes the gradients: in one sweep `in_order`, or if there is one, unless `deterministic`."""
        one_sweep = self.in_order or (not self.deterministic and has_one_sweep(self.config))
        return AttentionGradient(
            self.config, deterministic=self.deterministic, sweeps=1 if one_sweep else None
        )

    def run(self, *, layout: str = "bhsd", backend: str = "interpreter", **arrays: Any) -> Gradients:
        """The gradients; `arrays` replace some of the call's. Gradients are written to memory that
        was full of NaN, so that what is not written shows.
        """
        out, lse = self.forward() if "lse" not in arrays else (arrays["out"], arrays.pop("lse"))
        named = {"dout": self.dout, "q": self.q, "k": self.k, "v": self.v, "out": out, **arrays}
        if layout == "bshd":
            named = {name: np.ascontiguousarray(a.swapaxes(1, 2)) for name, a in named.items()}
        into = {f"d{name}": np.full_like(named[name], np.nan) for name in "qkv" if f"d{name}" not in named}
        built = self.kernel
        rows = {"lse": lse, "dlse": self.dlse}
        arguments = {**named, **into, **rows, **self.arrays, **self.others}
        result = built.launch(**arguments, wanted=self.wanted, layout=layout, backend=backend)
        if layout == "bshd":
            return Gradients(*(a.swapaxes(1, 2) for a in result[:3]), result.arrays)
        return result


def case(
    seq_q: int = 70,
    seq_k: int = 90,
    head_dim: int = 16,
    head_dim_v: int | None = None,
    *,
    batch: int = 1,
    heads: int = 1,
    kv_heads: int = 1,
    dtype: str = "f16",
    arrays: Mapping[str, Array] | None = None,
    others: Mapping[str, Any] | None = None,
    with_dlse: bool = False,
    bend: float = 1.0,
    deterministic: bool = True,
    in_order: bool = False,
    **settings: Any,
) -> Case:
    """A case with normal numbers."""
    config = AttentionConfig(head_dim, head_dim_v=head_dim_v, dtype=dtype, **settings)
    rng = np.random.default_rng([seq_q, seq_k, head_dim])
    d_v = head_dim_v or head_dim
    shapes = (
        (heads, seq_q, d_v),
        (heads, seq_q, head_dim),
        (kv_heads, seq_k, head_dim),
        (kv_heads, seq_k, d_v),
    )
    drawn = [rounded_normal(rng, (batch, *shape), TYPES[dtype]) for shape in shapes]
    dlse = rounded_normal(rng, (batch, heads, seq_q)) if with_dlse else None
    seed = {"dropout_seed": 7} if config.dropout else {}
    how = dlse, bend, deterministic, in_order
    return Case(config, *drawn, dict(arrays or {}), {**seed, **(others or {})}, *how)


def by_name(found: Gradients) -> dict[str, Array]:
    """The gradients by the names of the arguments."""
    return {"q": found.dq, "k": found.dk, "v": found.dv, **found.arrays}


def assert_same_bits(found: Gradients, wanted: Gradients) -> None:
    """Every gradient has the same bits."""
    for (name, a), b in zip(by_name(found).items(), by_name(wanted).values(), strict=True):
        assert np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes(), name


def check(of: Case, **how: Any) -> Gradients:
    """Run a case, and judge it against the reference in float64."""
    result = of.run(**how)
    out, lse = of.forward()
    judge(of, by_name(result), out, lse)
    return result


def judge(of: Case, found: Mapping[str, Array], out: Array, lse: Array) -> None:
    """Each gradient is within its bound in every element."""
    within = bounds(of, out, lse)
    assert list(found) == list(within)
    for name, bound in within.items():
        assert_close(name, found[name], *bound)


def bounds(of: Case, out: Array, lse: Array) -> dict[str, GradientBound]:
    """The bounds of the gradients of a case: each errs, in every element, by no more than its roundings
    explain (`tools/campaign/gradient_bound.py`).
    """
    call = GradientInputs(of.config, of.dout, of.q, of.k, of.v, out, lse, of.dlse, of.given, of.bend)
    result = call.bounds(of.wanted)
    return {name: result[name] for name in ("q", "k", "v", *of.wanted)}


# ------------------------------------------------------------------------------------------
# features


def _normal(*shape: int) -> Array:
    return np.random.default_rng([1, *shape]).standard_normal(shape, np.float32)


def _some_hidden(*shape: int) -> Array:
    """Numbers of which one in five is -inf."""
    return np.where(np.random.default_rng(2).random(shape) < 0.2, np.float32(-np.inf), _normal(*shape))


def _mask(*shape: int) -> Array:
    """A mask that hides three keys of ten, and all keys of query 3."""
    mask = np.random.default_rng(3).random(shape) < 0.7
    mask[..., 3 % shape[-2], :] = False
    return mask


def _squared(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return score + 0.1 * score * score


def _of_tables(
    score: Any, _: Any, head: Any, query: Any, key: Any, near: Any, scales: Any, tables: Any
) -> Any:
    """Elements of each kind: of a head, a query, a key, of their distance, and of any index."""
    of_rows = tables[head, query] + tables[head, key + 3]
    any_index = tables[head, (query - key) * key % 60]
    return score * scales[head] + of_rows + near[query - key + 9] * any_index


def _striped(batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return (query - key) % 3 != 0


def features_of(seq_q: int = 70, seq_k: int = 90, heads: int = 2) -> dict[str, dict[str, Any]]:
    """Arguments of `case` for each feature, whose arrays are for these sizes."""
    slopes, sinks = {"alibi_slopes": 0.1 * np.abs(_normal(heads))}, {"sink": _normal(heads)}
    of_keys = {"key_bias": _some_hidden(1, seq_k)}
    mask = {"mask": _mask(1, heads, seq_q, seq_k)}
    aux = {"near": _normal(20), "scales": _normal(heads), "tables": _normal(heads, 70).astype(np.float16)}
    declared = {name: ("f16" if name == "tables" else "f32", array.ndim) for name, array in aux.items()}
    return {
        "nothing": {},
        "negative scale": {"softmax_scale": -0.7, "causal": True},
        "scale 0": {"softmax_scale": 0.0, "causal": True},
        "bottom_right": {"causal": True},
        "top_left": {"causal": "top_left"},
        "left": {"window": (20, None)},
        "right": {"window": (None, 4)},
        "window": {"window": (20, 7)},
        "both_sides": {"window": (30, 9), "causal": "top_left"},
        "softcap": {"softcap": 1.5, "causal": "top_left"},
        "alibi": {"alibi": True, "arrays": slopes},
        "bias": {"bias": "f32", "arrays": {"bias": _some_hidden(heads, seq_q, seq_k)}},
        "bias of keys": {"bias": "f32", "causal": True, "arrays": {"bias": _some_hidden(1, seq_k)}},
        "bias_f16": {"bias": "f16", "arrays": {"bias": _normal(seq_q, seq_k).astype(np.float16)}},
        "key_bias": {"key_bias": "f32", "causal": True, "arrays": of_keys},
        "mask": {"mask": True, "others": mask},
        "sink": {"sink": True, "causal": True, "arrays": sinks},
        "sink, alibi": {"sink": True, "alibi": True, "causal": True, "arrays": {**sinks, **slopes}},
        "dropout": {"dropout": 0.3, "causal": True},
        "score_mod": {"score_mod": _squared, "causal": True, "bend": 3.0},
        "mask_mod": {"mask_mod": _striped},
        "aux": {
            "score_mod": _of_tables,
            "aux": declared,
            "causal": True,
            "others": {"aux": aux},
            "bend": 3.0,
        },
        "several": {
            "softcap": 2.0,
            "dropout": 0.2,
            "window": (40, 25),
            "alibi": True,
            "sink": True,
            "key_bias": "f32",
            "mask": True,
            "others": mask,
            "arrays": {**slopes, **sinks, "key_bias": _normal(1, seq_k)},
        },
    }


# The settings of configs alone, without features whose kernels are those of others.
_SAME_KERNELS = ("negative scale", "scale 0", "left", "right", "both_sides", "bias of keys", "bias_f16")
SETTINGS: dict[str, dict[str, Any]] = {
    name: {n: x for n, x in how.items() if n not in ("arrays", "others", "bend")}
    for name, how in features_of().items()
    if name not in _SAME_KERNELS
}
SETTINGS["varlen"] = {"varlen": True, "causal": True, "seqused_q": True, "seqused_k": True}
# With a mask as well, kernels of keys spill.
SETTINGS["several"] = {"softcap": 2.0, "dropout": 0.1, "window": (20, 7), "alibi": True, "sink": True}


# ------------------------------------------------------------------------------------------
# hard inputs


def _times(of: Case, factor: float, *names: str) -> Case:
    """A case of which some arrays are larger."""
    changed: dict[str, Any] = {}
    for name in names:
        array = getattr(of, name)
        changed[name] = (np.float32(factor) * array.astype(np.float32)).astype(array.dtype)
    return replace(of, **changed)


def _one_hot(of: Case) -> Case:
    """Each row has nearly all of its weight on one key."""
    keys = np.random.default_rng(5).choice([-1.0, 1.0], of.k.shape)
    kind = TYPES[of.config.dtype]
    return replace(of, k=keys.astype(kind), q=(6 * keys[:, :, : of.q.shape[2]]).astype(kind))


def _equal_keys(of: Case) -> Case:
    return replace(of, k=np.broadcast_to(of.k[:, :, :1], of.k.shape).copy())


def _equal_values(of: Case) -> Case:
    """All gradients of scores are small differences of large numbers."""
    v = np.ascontiguousarray(np.broadcast_to(of.v[:, :, :1], of.v.shape), np.float32)
    return replace(of, v=(100 * v).astype(of.v.dtype))


def _subnormal(of: Case) -> Case:
    """Gradients of the size of the smallest numbers of the type."""
    return _times(of, {"f16": 2.0**-16, "bf16": 2.0**-128}.get(of.config.dtype, 2.0**-100), "dout")


def _outlier(of: Case) -> Case:
    """One column of keys is large, as in models with few large features."""
    k = of.k.astype(np.float32)
    k[..., 0] = 30
    return replace(of, k=k.astype(of.k.dtype))


HARD: dict[str, Callable[[Case], Case]] = {
    "one-hot rows": _one_hot,
    "large scores": lambda of: _times(of, 20, "q"),
    "large values": lambda of: _times(of, 300, "v"),
    "large dout": lambda of: _times(of, 500, "dout"),
    "small dout": lambda of: _times(of, 2.0**-12, "dout"),
    "subnormal dout": _subnormal,
    "equal keys": _equal_keys,
    "equal values": _equal_values,
    "outlier": _outlier,
}


# ------------------------------------------------------------------------------------------
# packed sequences

Part = tuple[slice, slice, Case]


def _parts(of: Case, ends: dict[str, Array]) -> list[Part]:
    """The sequences of a call, as calls of one batch item each, and their rows and keys."""
    plain = replace(of.config, varlen=False, seqused_q=False, seqused_k=False)
    heads = of.q.shape[1]
    spans = {}
    for side in "qk":
        result = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends[f"cu_seqlens_{side}"])]
        used = ends.get(f"seqused_{side}")
        if used is not None:
            result = [slice(s.start, s.start + int(n)) for s, n in zip(result, used, strict=True)]
        spans[side] = result
    batch = len(spans["q"])
    built = []
    for b, (r, c) in enumerate(zip(spans["q"], spans["k"], strict=True)):
        arrays = {name: np.broadcast_to(a, (batch, heads))[b : b + 1] for name, a in of.arrays.items()}
        dlse = None if of.dlse is None else of.dlse[:, :, r]
        rows = of.dout[:, :, r], of.q[:, :, r], of.k[:, :, c], of.v[:, :, c]
        built.append((r, c, Case(plain, *rows, arrays, {**of.others, "first_batch": b}, dlse, of.bend)))
    return built


def check_packed(of: Case, ends: dict[str, Array], backend: str, bad: float) -> None:
    """Run packed sequences with `bad` in rows of none of them, and judge the gradients of each."""
    out, lse = np.full_like(of.dout, bad), np.full(of.q.shape[:3], bad, np.float32)
    filled = {name: np.full_like(getattr(of, name), bad) for name in ("dout", "q", "k", "v")}
    dlse = None if of.dlse is None else np.full_like(of.dlse, bad)
    parts, within = _parts(of, ends), []
    for r, c, one in parts:
        out[:, :, r], lse[:, :, r] = one.forward()
        within.append(bounds(one, out[:, :, r], lse[:, :, r]))
        for name, span in {"dout": r, "q": r, "k": c, "v": c}.items():
            filled[name][:, :, span] = getattr(of, name)[:, :, span]
        if dlse is not None:
            dlse[:, :, r] = of.dlse[:, :, r]  # type: ignore[index]  # there is one
    flat = {n: np.ascontiguousarray(a[0].swapaxes(0, 1)) for n, a in {**filled, "out": out}.items()}
    into = {f"d{name}": np.full_like(flat[name], np.nan) for name in "qkv"}
    result = of.kernel.launch(
        **flat,
        lse=lse[0],
        dlse=None if dlse is None else dlse[0],
        **into,
        **of.arrays,
        **of.others,
        **ends,
        wanted=of.wanted,
        backend=backend,  # type: ignore[arg-type]
    )
    again = {name: array.swapaxes(0, 1)[None] for name, array in zip("qkv", result[:3], strict=True)}
    for (r, c, _), bound in zip(parts, within, strict=True):
        for name, span in {"q": r, "k": c, "v": c}.items():
            assert_close(name, again[name][:, :, span], *bound[name])
            again[name][:, :, span] = np.nan
    for name, array in again.items():  # what belongs to no sequence is as before
        assert np.isnan(array.astype(np.float32)).all(), name
    for name in of.wanted:
        every = [bound[name] for bound in within]
        shape, (batch, heads) = of.arrays[name].shape, (len(parts), of.q.shape[1])
        total, error = (
            summed_to(np.concatenate([b[which] for b in every]).reshape(batch, heads), shape)
            for which in range(2)
        )
        assert_close(name, result.arrays[name], total, error)
