"""Calls for Hopper and Blackwell drawn at random, with types, schedulers and features in any mixture:
the kernels' own PTX, run with the sanitizers on, against the reference. What no query sees is not finite.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from judge import assert_within
from kernel_runs import mostly_nightly
from numpy.typing import NDArray

from flash import AttentionConfig, AttentionKernel
from flash.error_bound import PARTS_OF_F32, Bound, arithmetic_of_config, attention_bound
from flash.families.wgmma import WgmmaTiling
from flash.operands.dtypes import FP8_DTYPES
from flash.problem.features import SCALES
from flash.problem.sequences import each_sequence
from flash.reference import visible_keys
from flash.scores.features import scored, split_by_axes
from ptxgen import interpreter
from ptxgen.interpreter import PCT

pytestmark = pytest.mark.judged

Array = NDArray[Any]
Rng = np.random.Generator

_LENGTHS = [1, 3, 16, 33, 64, 65, 80]
_SIDES = [None, 0, 1, 9, 40]
_OF_LATENTS = [(264, 128), (264, 256), (320, 256)]
_F16, _FP8, _F32, _LATENT, _TCGEN05 = "f16", "fp8", "f32", "latent", "tcgen05"  # kinds of kernels
_OF_BLACKWELL = range(200, 300)  # seeds of calls for it; those of Hopper are below
_LONGER = [1, 33, 80, 129, 200, 300]  # lengths for blocks of 128 queries and more


def _bent(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return score + 0.25 * (head + batch) + 0.0625 * (query - key)


def _banded(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query + 2 * key + head + batch) % 5 != 0


def _one_of(rng: Rng, values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


class Case(NamedTuple):
    """A call. `arrays` are those of its features, `ends` the lengths of sequences if they are packed,
    `scales` those of fp8; a persistent launch has `ctas` CTAs.
    """

    config: AttentionConfig
    q: Array
    k: Array
    v: Array
    arrays: dict[str, Array]
    ends: dict[str, Array]
    scales: dict[str, Array]
    ctas: int

    @property
    def given(self) -> dict[str, Any]:
        """The arguments of a launch beside Q, K and V."""
        seed = {"dropout_seed": 7} if self.config.dropout else {}
        return {**self.arrays, **self.ends, **self.scales, **seed}


def _settings(rng: Rng, kind: str) -> tuple[dict[str, Any], tuple[int, int]]:
    """Type, dimensions and sizes of a kernel of a kind."""
    how: dict[str, Any] = {"target": "sm_90a", "return_lse": True, "block_q": _one_of(rng, [64, 128])}
    if kind == _FP8:
        dims = _one_of(rng, [(64, 64), (16, 32), (96, 64), (64, 144)])
        types = {"dtype": _one_of(rng, [*FP8_DTYPES]), "out_dtype": _one_of(rng, ["bf16", "f16"])}
        return {**how, **types, "tile": 64}, dims
    if kind == _F32:
        dims = _one_of(rng, [(32, 32), (64, 64), (20, 128), (100, 40)])
        tile = _one_of(rng, [16, 48, 64])
        return {**how, "dtype": "f32", "precision": "f32_grade", "tile": tile}, dims
    how["dtype"] = _one_of(rng, ["f16", "bf16"])
    if kind == _TCGEN05:
        how |= {"target": _one_of(rng, ["sm_100a", "sm_103a"]), "block_q": _one_of(rng, [128, 256])}
        how |= {"tile": _one_of(rng, [16, 32]), "stages": _one_of(rng, [2, 3])}
        return how, _one_of(rng, [(16, 16), (64, 64), (40, 72), (128, 64), (64, 128)])
    if kind == _LATENT:
        return {**how, "block_q": 64, "tile": 32, "shared_kv": True}, _one_of(rng, _OF_LATENTS)
    how["scheduler"] = _one_of(rng, ["static", "mirrored", "auto"])
    how["stages"] = _one_of(rng, [2, 3])
    if rng.random() < 0.2:
        return {**how, "block_q": 192, "tile": 64}, (64, 64)
    how["tile"] = _one_of(rng, [16, 32, 48])
    dims = _one_of(rng, [(16, 16), (64, 64), (40, 72), (128, 64)])
    if dims[1] <= dims[0] and rng.random() < 0.2:
        how["shared_kv"] = True
    return how, dims


def _features(rng: Rng, kind: str, packed: bool) -> dict[str, Any]:
    """Settings of scores, and of how the work is dealt."""
    how: dict[str, Any] = {"causal": _one_of(rng, [False, True, "top_left"])}

    def maybe(probability: float, **settings: Any) -> bool:
        some = bool(rng.random() < probability)
        how.update(settings if some else {})
        return some

    sides = _one_of(rng, _SIDES), _one_of(rng, _SIDES)
    maybe(0.3, window=sides if sides != (None, None) else (7, 2))
    if not maybe(0.2, score_mod=_bent):
        maybe(0.2, softcap=2.5)
    maybe(0.2, mask_mod=_banded)
    maybe(0.25, alibi=True)
    maybe(0.25, sink=True)
    maybe(0.2, softmax_scale=_one_of(rng, [-0.4, 0.0, 0.5]))
    if kind != _FP8:
        maybe(0.2, dropout=0.25)
    if kind == _TCGEN05:
        how["pack_gqa"] = False
    else:
        maybe(0.3, pack_gqa=True)
    if packed:
        return {**how, "varlen": True}
    if not maybe(0.25, bias="f32"):
        maybe(0.25, key_bias="f32")
    maybe(0.2, mask=True)
    maybe(0.25, splits=_one_of(rng, [2, 3]))
    return how


def _array_of(rng: Rng, name: str, shape: tuple[int, ...]) -> Array:
    """An array of a feature. Masks and biases hide a fifth of the keys."""
    if name == "mask":
        return np.asarray(rng.random(shape) < 0.8)
    drawn = rng.standard_normal(shape)
    if name == "alibi_slopes":
        drawn = np.abs(drawn) / 5
    if name in ("bias", "key_bias"):
        drawn = np.where(rng.random(shape) < 0.2, -np.inf, drawn)
    return np.asarray(drawn)


def drawn(seed: int) -> Case:
    """A call."""
    rng = np.random.default_rng(seed)
    kind = _TCGEN05 if seed in _OF_BLACKWELL else (_F16, _FP8, _F32, _LATENT)[seed % 4]
    heads, kv_heads = _one_of(rng, [(1, 1), (2, 1), (2, 2), (3, 1)])
    packed = bool(rng.random() < 0.35)
    batch = int(rng.integers(1, 4)) if packed else int(rng.integers(1, 3))
    settings, dims = _settings(rng, kind)
    config = AttentionConfig(*dims, **settings, **_features(rng, kind, packed))
    least = [0] if packed else []
    usual = _LONGER if kind == _TCGEN05 else _LENGTHS
    lengths = {side: [_one_of(rng, [*least, *usual]) for _ in range(batch)] for side in "qk"}
    ends: dict[str, Array] = {}
    if packed:
        ends = {f"cu_seqlens_{side}": np.cumsum([2, *lengths[side]]).astype(np.int32) for side in "qk"}
        rows = {side: int(ends[f"cu_seqlens_{side}"][-1]) + 3 for side in "qk"}
    else:
        rows = {side: lengths[side][0] for side in "qk"}
    shapes = ((heads, rows["q"], dims[0]), (kv_heads, rows["k"], dims[0]), (kv_heads, rows["k"], dims[1]))
    items = 1 if packed else batch
    q, k, v = (rng.standard_normal((items, *shape)).astype(config.element.numpy) for shape in shapes)
    if config.shared_kv:
        v = k[..., : dims[1]]
    sizes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "seq_q": rows["q"], "seq_k": rows["k"]}
    arrays, scales = {}, {}
    for operand in config.features.operands:
        shape = tuple(sizes.get(axis, 0) for axis in operand.axes)
        if operand.name in SCALES:
            scales[operand.name] = (rng.choice([-1, 1], shape) * rng.uniform(0.5, 2, shape)).astype("f4")
        elif not operand.name.startswith("cu_seqlens"):
            arrays[operand.name] = _array_of(rng, operand.name, shape).astype(operand.dtype.numpy)
    return Case(config, q, k, v, arrays, ends, scales, int(rng.integers(1, 5)))


def _parts(of: Case) -> list[tuple[int, slice, slice]]:
    """The number, the queries and the keys of each sequence; of all at once if they are not packed."""
    if of.ends:
        return list(each_sequence(**of.ends))
    return [(0, slice(0, of.q.shape[2]), slice(0, of.k.shape[2]))]


def _numbers(x: Array, scale: Array | None, heads: int) -> Array:
    """The numbers that an array stands for, in float64 if they have scales [batch, kv_heads]."""
    if scale is None:
        return x
    wide = np.repeat(scale.astype(np.float64), heads // scale.shape[1], axis=1)
    return np.asarray(x.astype(np.float64) * wide[..., None, None])


def _judge(of: Case) -> tuple[Bound, Array, Array]:
    """What results may be; whether results are written, [batch, heads, seq_q], and which keys a query sees,
    [batch, kv_heads, seq_k].
    """
    config, (items, heads, seq_q) = of.config, of.q.shape[:3]
    kv_heads = of.k.shape[1]
    batch = len(of.ends["cu_seqlens_q"]) - 1 if of.ends else items
    of_heads, others = split_by_axes(of.arrays, (batch, heads)) if of.ends else ({}, of.arrays)
    shape = (items, heads, seq_q)
    bound = Bound(*(np.zeros(s) for s in 2 * ((*shape, config.value_dim), shape)))
    written, seen = np.zeros(shape, bool), np.zeros((items, kv_heads, of.k.shape[2]), bool)
    arithmetic = arithmetic_of_config(config, PARTS_OF_F32 if config.splits in (2, 3) else 0.0)
    how: dict[str, Any] = {"softmax_scale": config.scale, "causal": config.causal, **config.score_arguments}
    how |= {"dropout_seed": 7} if config.dropout else {}
    for b, rows, keys in _parts(of):
        own = {**{name: array[b : b + 1] for name, array in of_heads.items()}, **others}
        scales = {name: array[b : b + 1] if of.ends else array for name, array in of.scales.items()}
        arrays = (of.q[:, :, rows], of.k[:, :, keys], of.v[:, :, keys])
        q, k, v = (_numbers(x, scales.get(name), x.shape[1]) for x, name in zip(arrays, SCALES, strict=True))
        arguments = {**how, **own}
        result = attention_bound(q, k, v, config.output.numpy, arithmetic, first_batch=b, **arguments)
        for whole, part in zip(bound, result, strict=True):
            whole[:, :, rows] = part
        written[:, :, rows] = True
        sizes = (items, heads, q.shape[2], k.shape[2])
        visible = visible_keys(scored(sizes, config.causal, np.float64, b, arguments))
        visible = visible.reshape(items, kv_heads, heads // kv_heads, *sizes[2:])
        seen[:, :, keys] = visible.any(axis=(2, 3))
    return bound, written, seen


def _launched(of: Case, monkeypatch: pytest.MonkeyPatch, **how: Any) -> tuple[Array, Array]:
    """(out, lse) of a call on the interpreter, [batch, heads, seq_q, ...]; what it does not write is 7."""
    run, families = interpreter.run, ("_wgmma_", "_tcgen05_", "merge_")

    def watched(module: Any, *args: Any, **kwargs: Any) -> Any:
        (kernel,) = module.kernels
        assert any(family in kernel.name for family in families), kernel.name
        return run(module, *args, **{**kwargs, **how})

    with monkeypatch.context() as patched:
        patched.setattr("flash.launch.calls.ctas_at_once", lambda _, parts, *__: min(of.ctas, parts))
        patched.setattr(interpreter, "run", watched)
        q, k, v = (x[0].swapaxes(0, 1) if of.ends else x for x in (of.q, of.k, of.v))
        out = np.full((*q.shape[:-1], of.config.value_dim), 7, of.config.output.numpy)
        built = AttentionKernel(of.config)
        more = {} if of.config.shared_kv else {"v": v}
        result = built.launch(q, k, **more, out=out, backend="interpreter", **of.given)
    assert result[0] is out
    return (out.swapaxes(0, 1)[None], result[1][None]) if of.ends else result


def check(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw a call, put numbers that are not finite where no query sees them, run it, and judge it."""
    of = drawn(seed)
    assert isinstance(of.config.kernel().tiling, WgmmaTiling)
    bound, written, seen = _judge(of)
    bad = np.nan if of.config.dtype == "e4m3" or seed // 4 % 2 else np.inf
    of.k[~seen], of.v[~seen] = bad, bad
    out, lse = _launched(of, monkeypatch, sanitize="all,tensor_fence", schedule=PCT(seed))
    assert (out[~written].astype(np.float32) == 7).all()
    out[~written], lse[~written] = 0, 0
    assert_within(out, lse, bound)


@pytest.mark.slow
@pytest.mark.sample(1, gate=4)
@pytest.mark.parametrize("seed", mostly_nightly(range(300), [0, 1, 200, 201]))
def test_calls_drawn_at_random(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, monkeypatch)
