"""Values that no caller should pass, and calls of every public function that work with others."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

import flash
from ptxgen.check.prove import prove, prove_global, prove_shared
from ptxgen.check.prove.contract import Axis, GlobalArray, GlobalContract
from ptxgen.check.verify import require_valid, verify
from ptxgen.dsl import KernelBuilder
from ptxgen.interpreter import PCT, run
from ptxgen.ir import Module
from ptxgen.parse import parse
from ptxgen.target import target, target_for_device
from ptxgen.tensormap import TensorMap
from ptxgen.text import render
from ptxgen.types import f32, u32, u64

HUGE_ROWS = 2**55


class Unprintable:
    """Even its repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def values() -> dict[str, Any]:
    """The hostile values, by what a test calls them; made anew, because a call may keep them."""
    row = np.zeros((1, 1, 1, 8), np.float32)
    return {
        "none": None,
        "inf": float("inf"),
        "nan": float("nan"),
        "text": "two",
        "empty text": "",
        "surrogate": "\ud800",
        "bytes": b"",
        "list": [2],
        "ragged list": [[1, 2], [3]],
        "tuple": (),
        "dict": {},
        "object": object(),
        "type": float,
        "unprintable": Unprintable(),
        "numbers": np.array([1, 2]),
        "texts": np.array(["a", "b"]),
        "objects": np.array([None, {}], object),
        "structures": np.zeros(2, [("x", "f4")]),
        "array of no dimension": np.array(1.5),
        "10**400": 10**400,
        "10**5000": 10**5000,
        "2**63": 2**63,
        "minus one": -1,
        "zero": 0,
        "true": True,
        "numpy float": np.float32(1),
        "numpy bool": np.True_,
        "complex": 1 + 2j,
        "fraction": 1.5,
        "rows without end": as_strided(row, (1, 1, HUGE_ROWS, 8), (0, 0, 0, 4)),
    }


class Case(NamedTuple):
    """A public callable, arguments by name that it takes, and the parameters that it has."""

    call: Callable[..., object]
    arguments: Callable[[], dict[str, Any]]
    parameters: tuple[str, ...]


def _case(call: Callable[..., object], like: Callable[..., object] | None = None, **arguments: Any) -> Case:
    """The case of `call`, whose parameters are those of `like`; arguments that are functions of
    nothing are made anew for each call.
    """
    names = [name for name in inspect.signature(like or call).parameters if name != "self"]
    return Case(
        call, lambda: {n: a() if inspect.isfunction(a) else a for n, a in arguments.items()}, tuple(names)
    )


def _zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


def _flash() -> Iterator[tuple[str, Case]]:
    config = flash.AttentionConfig
    q, k = _zeros(1, 2, 3, 8), _zeros(1, 1, 4, 8)
    three = {"q": q, "k": k, "v": k, "backend": "cpu"}
    scores = {
        "alibi_slopes": _zeros(1, 2),
        "bias": _zeros(1, 2, 3, 4),
        "mask": np.ones((1, 2, 3, 4), bool),
        "sink": _zeros(1, 2),
    }
    ends = np.array([0, 2, 6], np.int32)
    lengths = {
        "cu_seqlens_q": ends,
        "cu_seqlens_k": ends,
        "seqused_q": np.array([1, 2], np.int32),
        "seqused_k": np.array([1, 2], np.int32),
    }
    packed = {"q": _zeros(6, 2, 8), "k": _zeros(6, 1, 8), "v": _zeros(6, 1, 8), "backend": "cpu"}
    by_key = flash.AttentionKernel(config(8, key_bias="f32"))
    every = flash.AttentionKernel(config(8, alibi=True, bias="f32", mask=True, sink=True, dropout=0.5))
    varlen = flash.AttentionKernel(config(8, varlen=True, seqused_q=True, seqused_k=True))
    yield "AttentionConfig", _case(config, head_dim=8)
    yield "AttentionConfig of packed sequences", _case(config, head_dim=8, varlen=True)
    yield "AttentionConfig.kernel", _case(config(8).kernel)
    yield "AttentionKernel", _case(flash.AttentionKernel, config=config(8))
    yield "AttentionKernel.launch", _case(every.launch, **three, **scores, dropout_seed=1)
    yield "AttentionKernel.explain", _case(every.explain, **three, **scores)
    yield "AttentionKernel.launch by key", _case(by_key.launch, **three, key_bias=_zeros(1, 2, 4))
    back = {"dout": q, "out": q, "lse": _zeros(1, 2, 3), "dlse": _zeros(1, 2, 3)}
    gradient = flash.AttentionGradient(config(8, alibi=True, bias="f32", mask=True, sink=True, dropout=0.5))
    of_scores = {**scores, "wanted": ("bias", "sink")}
    yield "AttentionGradient", _case(flash.AttentionGradient, config=config(8))
    yield "AttentionGradient.launch", _case(gradient.launch, **three, **back, **of_scores, dropout_seed=1)
    yield "AttentionGradient.explain", _case(gradient.explain, **three, **back, **of_scores)
    yield "attention_backward", _case(flash.attention_backward, **three, **back, **of_scores)
    yield "attention_weights", _case(flash.attention_weights, q=q, k=k, backend="cpu", **scores)
    of_rows = {"dout": packed["q"], "out": packed["q"], "lse": _zeros(2, 6), "dlse": _zeros(2, 6)}
    yield "attention_varlen_backward", _case(flash.attention_varlen_backward, **packed, **of_rows, **lengths)
    yield "launch of packed sequences", _case(varlen.launch, **packed, **lengths)
    paged = flash.AttentionKernel(config(8, varlen=True, seqused_q=True, page_size=4))
    in_pages = {
        **packed,
        "k": _zeros(3, 1, 4, 8),
        "v": _zeros(3, 1, 4, 8),
        **{n: a for n, a in lengths.items() if n != "cu_seqlens_k"},
        "block_table": np.array([[0, 1], [2, 0]], np.int32),
    }
    of_pages = {"varlen": True, "page_size": 4, "rotary_dim": 8, "rotary_interleaved": True}
    yield "AttentionConfig of pages", _case(config, head_dim=8, **of_pages)
    yield "launch over pages", _case(paged.launch, **in_pages)
    angles = {"rotary_cos": _zeros(8, 4), "rotary_sin": _zeros(8, 4), "rotary_interleaved": True}
    yield "explain over pages", _case(paged.explain, **in_pages)
    yield "attention_varlen over pages", _case(flash.attention_varlen, **in_pages, **angles, kv_layout="HND")
    csr = {
        "paged_kv_indptr": np.array([0, 1, 3], np.int32),
        "paged_kv_indices": np.array([4, 2, 0], np.int32),
        "paged_kv_last_page_len": np.array([1, 4], np.int32),
    }
    yield "block_table_from_csr", _case(flash.block_table_from_csr, **csr, page_size=4)
    yield "lse_to_log2", _case(flash.lse_to_log2, lse=_zeros(2, 6))
    yield "lse_from_log2", _case(flash.lse_from_log2, lse=_zeros(6, 2))
    yield from (
        ("quantize_mx", _case(flash.quantize_mx, x=_zeros(3, 40), dtype="e5m2", axis=0, cu_seqlens=ends)),
        ("quantize_nvfp4", _case(flash.quantize_nvfp4, x=_zeros(3, 48))),
        ("quantize_rows", _case(flash.quantize_rows, x=_zeros(3, 64), dtype="q4_0")),
    )
    yield "explain of packed sequences", _case(varlen.explain, **packed, **lengths)
    yield "attention", _case(flash.attention, **three, **scores)
    yield "attention_varlen", _case(flash.attention_varlen, **packed, **lengths)
    parts = {"outs": [q, q], "lses": [q[..., 0], q[..., 0]]}
    stacked = {"outs": np.stack([q, q]), "lses": np.stack([q, q])[..., 0]}
    yield "merge_partials", _case(flash.merge_partials, **parts)
    yield ("merge_partials of one array", _case(flash.merge_partials, **stacked, backend="interpreter"))
    yield "rotary_tables", _case(flash.rotary_tables, positions=3, rotary_dim=4)
    yield "to_device", _case(flash.to_device, array=q)


def _caches() -> Iterator[tuple[str, Case]]:
    q, k, table = _zeros(2, 2, 1, 8), _zeros(2, 1, 1, 8), np.ones((16, 4), np.float32)
    scores = {
        "alibi_slopes": _zeros(2, 2),
        "mask": np.ones((1, 2), bool),
        "sink": _zeros(2, 2),
        "rotary_cos": table,
        "rotary_sin": table,
    }

    def cache(**how: Any) -> flash.KVCache:
        return flash.KVCache(2, 2, 1, 8, 16, **how)

    def method(name: str, how: dict[str, Any] | None = None, **arguments: Any) -> Case:
        of_class = getattr(flash.KVCache, name)
        return _case(lambda **given: getattr(cache(**how or {}), name)(**given), of_class, **arguments)

    sizes = {"layers": 2, "batch": 2, "kv_heads": 1, "head_dim": 8, "capacity": 16}
    yield "KVCache", _case(flash.KVCache, **sizes)
    yield "KVCache of pages", _case(flash.KVCache, **sizes, page_size=4)
    yield "KVCache.append", method("append", layer=0, k=k, v=k, sequences=[0, 1], counts=[1, 0])
    yield "KVCache.grow", method("grow", rows=1)
    yield "KVCache.truncate", method("truncate", length=0)
    yield "KVCache.reset", method("reset")
    yield "KVCache.fork", method("fork", source=0)
    yield "KVCache.keys", method("keys", layer=0, sequence=0)
    yield "KVCache.values", method("values", layer=0, sequence=0)
    yield "KVCache.set_scales", method("set_scales", {"dtype": "e4m3"}, k_scale=1.0, v_scale=1.0)
    new = {"q": q, "cache": lambda: cache(), "k": k, "v": k, "layer": 0}
    yield "attention_with_kvcache", _case(flash.attention_with_kvcache, **new, **scores)
    yield "DecodeStep", _case(flash.DecodeStep, **new, **scores)
    kernel = flash.DecodeKernel(flash.AttentionConfig(8, alibi=True, mask=True, sink=True))
    yield "DecodeKernel", _case(flash.DecodeKernel, config=flash.AttentionConfig(8))
    yield (
        "DecodeKernel.launch",
        _case(
            kernel.launch,
            q=q,
            k_cache=lambda: _zeros(4, 1, 4, 8),
            v_cache=lambda: _zeros(4, 1, 4, 8),
            k=k,
            v=k,
            seqused_k=np.array([2, 3], np.int32),
            leftpad_k=np.array([0, 1], np.int32),
            block_table=np.array([[0, 1], [2, 3]], np.int32),
            cache_batch_idx=np.array([0, 1], np.int32),
            **scores,
        ),
    )


def _copied() -> Module:
    """A kernel that writes one number for each of n threads."""
    k = KernelBuilder("k", target="sm_80", threads=32)
    out, n, thread = k.pointer("P"), k.param("n", u32), k.thread_id()
    with k.when(thread < n):
        k.store(out.plus(k.cvt(thread * 4, dtype=u64)), 1.0)
    return k.build()


def _toolkit() -> Iterator[tuple[str, Case]]:
    module = _copied()
    contract = GlobalContract((GlobalArray("P", (Axis("n", 4),), 4),), (), {"n": (0, 32)}, (1, 1, 1))
    yield "run", _case(run, ptx_or_module=module, grid=1, block=32, args=lambda: [_zeros(32), 32])
    yield "PCT", _case(PCT, seed=0)
    yield "prove", _case(prove, ptx=module, block=32, contract=contract)
    yield "prove_shared", _case(prove_shared, ptx=module, block=32, params={"n": 3})
    yield "prove_global", _case(prove_global, ptx=module, block=32, contract=contract)
    yield "verify", _case(verify, module=module)
    yield "require_valid", _case(require_valid, module=module)
    yield "parse", _case(parse, text=render(module))
    yield "render", _case(render, module=module)
    yield "target", _case(target, name="sm_80")
    yield "target_for_device", _case(target_for_device, major=8, minor=0)
    yield "TensorMap of an array", _case(TensorMap, base=_zeros(8, 16), box=(4, 4))
    yield (
        "TensorMap of an address",
        _case(TensorMap, base=0, box=(4, 4), dtype="f32", dims=(16, 8), strides=(64,)),
    )


def _entered(block: Any) -> None:
    with block:
        pass


def _words(inside: Callable[..., Case]) -> Iterator[tuple[str, Case]]:
    """Words that are called alike, of which `inside` calls each in a kernel."""
    for word in ("strided", "grid_strided"):
        yield word, inside(lambda p, n, word=word: _entered(getattr(p.k, word)(n)), n=4)
    for word in ("thread_id", "block_id", "blocks"):
        yield word, inside(lambda p, axis, word=word: getattr(p.k, word)(axis), axis="x")
    for group, words in (("warp", ("sum", "max", "min", "scan")), ("block", ("sum", "max", "min"))):
        for word in words:
            together = operator.attrgetter(f"{group}.{word}")
            yield (
                f"{group}.{word}",
                inside(lambda p, of=together, **a: of(p.k)(**{"value": p.n, **a}), "value"),
            )
    for word in ("any", "all"):
        vote = operator.attrgetter(f"warp.{word}")
        yield (
            f"warp.{word}",
            inside(lambda p, of=vote, **a: of(p.k)(**{"condition": p.n < 4, **a}), "condition"),
        )
    for word in ("exp", "log"):
        yield (
            word,
            inside(
                lambda p, word=word, **a: getattr(p.k, word)(**{"value": p.k.mov(1.0, type=f32), **a}),
                "value",
            ),
        )


def _builder() -> Iterator[tuple[str, Case]]:
    class Parts(NamedTuple):
        k: Any
        n: Any
        out: Any
        tile: Any

    def inside(work: Callable[..., object], *names: str, **arguments: Any) -> Case:
        def call(**given: Any) -> object:
            k = KernelBuilder("k", target="sm_80", threads=32)
            return work(Parts(k, k.param("n", u32), k.pointer("P"), k.shared("S", (4, 4))), **given)

        return Case(call, lambda: dict(arguments), (*arguments, *names))

    yield (
        "KernelBuilder",
        _case(
            lambda **given: KernelBuilder(**given).build(),
            KernelBuilder,
            name="k",
            target="sm_80",
            threads=32,
        ),
    )
    yield "param", inside(lambda p, **a: p.k.param(**a), name="m", type=u32)
    yield "pointer", inside(lambda p, **a: p.k.pointer(**a), name="Q", dtype=f32)
    yield "special", inside(lambda p, **a: p.k.special(**a), name="tid.x")
    yield (
        "shared",
        inside(lambda p, **a: p.k.shared(**a), "pitch", "align", name="T", shape=(4, 4), dtype=f32),
    )
    yield ("fragment", inside(lambda p, **a: p.k.fragment(**a), "initial", rows=1, columns=2, dtype=f32))
    yield "var", inside(lambda p, **a: p.k.var(**a), type=u32, initial=0)
    yield "Var.set", inside(lambda p, **a: p.k.var(u32, 0).set(**a), value=0)
    yield "note", inside(lambda p, **a: p.k.note(**a), text="words")
    yield "build", inside(lambda p, **a: p.k.build(**a), header=("words",))
    yield "barrier", inside(lambda p, **a: p.k.barrier(**a), "threads", number=0)
    yield "loop", inside(lambda p, **a: _entered(p.k.loop(**a)), start=0, stop=4, step=1, type=u32)
    yield ("when", inside(lambda p, **a: _entered(p.k.when(**{"condition": p.n < 4, **a})), "condition"))
    yield (
        "only_if",
        inside(lambda p, **a: _entered(p.k.only_if(**{"condition": p.n < 4, **a})), "condition"),
    )
    yield "load", inside(lambda p, **a: p.k.load(**{"at": p.out, **a}), "at", "into", count=1)
    yield "store", inside(lambda p, **a: p.k.store(**{"at": p.out, **a}), "at", values=1.0)
    yield (
        "copy_async",
        inside(
            lambda p, **a: p.k.copy_async(**{"to": p.tile.pointer(), "source": p.out, **a}),
            "to",
            "source",
            "valid_bytes",
            nbytes=16,
        ),
    )
    yield ("butterfly", inside(lambda p, **a: p.k.butterfly(**{"value": p.n, **a}), "value", distance=1))
    yield "divide_up", inside(lambda p, **a: p.k.divide_up(**{"value": p.n, **a}), "value", by=4)
    yield "signed", inside(lambda p, **a: p.k.signed(**{"value": p.n, **a}), "value")
    yield (
        "accumulate",
        inside(lambda p, **a: p.k.accumulate(**{"total": p.k.var(f32, 0.0), **a}), "total", a=1.0, b=1.0),
    )
    yield from _words(inside)
    yield "k.add", inside(lambda p, other, **a: p.k.add(p.n, other, **a), "into", "type", other=1)
    for apply in (operator.add, operator.sub, operator.mul, operator.mod, operator.lt):
        yield apply.__name__, inside(lambda p, other, apply=apply: apply(p.n, other), other=1)
    yield "truediv", inside(lambda p, other: p.k.mov(1.0, type=f32) / other, other=2.0)
    yield "Value.as_", inside(lambda p, **a: p.n.as_(**a), type=u32)
    yield "Pointer.at", inside(lambda p, **a: p.out.at(**a), elements=1)
    yield "Pointer.element", inside(lambda p, **a: p.out.element(**a), index=1)
    yield "P[i]", inside(lambda p, index: p.out[index], index=1)
    yield (
        "P[i] = v",
        inside(lambda p, index, value: operator.setitem(p.out, index, value), index=1, value=1.0),
    )
    yield "tile[row, column]", inside(lambda p, place: p.tile[place], place=(1, 1))
    yield (
        "tile[row, column] = v",
        inside(lambda p, place, value: operator.setitem(p.tile, place, value), place=(1, 1), value=1.0),
    )
    yield "Pointer.plus", inside(lambda p, **a: p.out.plus(**a), nbytes=4)
    yield "SharedTile.pointer", inside(lambda p, **a: p.tile.pointer(**a), row=1, column=1)
    yield "TilePointer.step", inside(lambda p, **a: p.tile.pointer().step(**a), rows=1, columns=1)


def cases() -> dict[str, Case]:
    """Every public callable by its name, with a call that works."""
    return {**dict(_flash()), **dict(_caches()), **dict(_toolkit()), **dict(_builder())}
