"""The kernels that calls with default settings launch, by family and target: those of which
`tools/silicon.py --missing` and docs/gpu.md say whether they ran on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from typing import Any, Final

from flash import cache_kernels
from flash.cache_kernels import CacheConfig
from flash.contract.built_kernel import BuiltKernel
from flash.contract.catalogue import emit
from flash.contract.gradients import emit_gradient
from flash.families.choice import WORKLOADS
from flash.launch.checks import check
from flash.launch.kernel_choice import kernel_of
from flash.launch.scheduler_choice import USUAL_DEVICE, Device
from flash.operands.dtype_names import DTypeLike
from flash.operands.dtypes import BLOCK_FORMATS, FP8_DTYPES, DType
from flash.problem.config import AttentionConfig
from flash.problem.gradient_choice import gradient_config
from flash.problem.gradients import KEYS, QUERIES
from flash.problem.kernel_config import KernelConfig
from ptxgen import ir
from ptxgen.arrays.dlpack import dense_strides
from ptxgen.arrays.views import HOST, ArrayView
from ptxgen.errors import ConfigError, UnsupportedTargetError
from ptxgen.target import target as find_target
from ptxgen.text import render

TARGETS: Final = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")
HEAD_DIMS: Final = (64, 96, 128, 192, 256)
SEQS: Final = (512, 1024, 2048, 4096, 16384)
TOKENS: Final = 16384  # of all sequences together, as in docs/gpu.md
WIDTH: Final = 2048  # columns of all heads together
PAGE: Final = 64
GROUP: Final = 8  # heads of Q for each head of K and V, of calls that decode
_ALIGNED: Final = 16  # bytes
_GRADIENTS: Final = "gradients"  # a family


@dataclass(frozen=True, slots=True)
class Shipped:
    """A kernel: its family, its target, the name of its entry, and what emits it."""

    family: str
    target: str
    name: str
    emit: Callable[[], ir.Module]

    @property
    def words(self) -> str:
        """The kernel in the words of the ledger."""
        return f"{self.name} for {self.target}"

    def text(self) -> str:
        """The PTX text of the kernel."""
        return render(self.emit())


_Named = tuple[str, Callable[[], ir.Module]]


def chosen(config: AttentionConfig, seq: int, device: Device = USUAL_DEVICE) -> KernelConfig:
    """The kernel of a launch of `TOKENS` tokens in sequences of `seq` queries and keys, with heads that have
    `WIDTH` columns together.
    """
    heads = max(WIDTH // config.head_dim, 1)

    def array(columns: int, dtype: DType) -> ArrayView:
        """A dense array with a shape and a type, but without memory."""
        shape = (TOKENS // seq, heads, seq, columns)
        return ArrayView(0, shape, dense_strides(shape), dtype.array_name, HOST, False, "numpy", None)

    q, k, v = (array(columns, config.element) for columns in (*[config.head_dim] * 2, config.value_dim))
    geometry = check(config, q, k, v, array(config.value_dim, config.output))
    return kernel_of(config, geometry, device=device)


def of_launch(config: AttentionConfig, seq: int, target: str) -> Shipped:
    """The kernel of that launch on a target."""
    kernel = chosen(replace(config, target=target), seq)
    return Shipped("forward", target, kernel.name, partial(emit, kernel))


def of_gradients(config: AttentionConfig, owner: str, target: str) -> Shipped:
    """The kernel of gradients of a config whose CTAs own rows of `owner`, on a target."""
    kernel = gradient_config(config, owner, find_target(target), _ALIGNED)
    return Shipped(_GRADIENTS, target, kernel.name, partial(emit_gradient, kernel))


def _configs(target: str, dtypes: Iterable[Any], **settings: Any) -> Iterator[AttentionConfig]:
    """Configs of all head_dims, full and causal, that the target has."""
    for dtype, head_dim, causal in product(dtypes, HEAD_DIMS, (False, True)):
        try:
            config = AttentionConfig(head_dim, dtype=dtype, causal=causal, target=target, **settings)
            config.kernel()
        except (ConfigError, UnsupportedTargetError):
            continue
        yield config


def _forward(configs: Iterator[AttentionConfig]) -> Iterator[_Named]:
    for config in configs:
        for seq in SEQS:
            kernel = chosen(config, seq)
            yield kernel.name, partial(emit, kernel)


def _of_halves(target: str) -> Iterator[_Named]:
    return _forward(_configs(target, ("f16", "bf16")))


def _of_f32(target: str) -> Iterator[_Named]:
    for precision in ("ieee", "tf32", "f32_grade"):
        yield from _forward(_configs(target, ("f32",), precision=precision))


def _of_fp8(target: str) -> Iterator[_Named]:
    in_blocks = (_configs(target, FP8_DTYPES, scale_block=word) for word in BLOCK_FORMATS)
    return _forward(chain(_configs(target, FP8_DTYPES), *in_blocks))


def _of_problem(settings: Mapping[str, Any], target: str) -> Iterator[_Named]:
    """Kernels of 16-bit types for a problem that a family names."""
    halves: tuple[DTypeLike, ...] = ("f16", "bf16")
    for dtype, causal in product(halves, (False, True)):
        try:
            config = AttentionConfig(dtype=dtype, causal=causal, target=target, **settings)
            kernel = config.kernel()
        except (ConfigError, UnsupportedTargetError):
            continue
        yield kernel.name, partial(emit, kernel)


def _of_caches(target: str) -> Iterator[_Named]:
    for head_dim, page_size, splits in product((64, 128), (None, PAGE), (False, True)):
        config = AttentionConfig(head_dim, dtype="f16", target=target)
        cache = CacheConfig(page_size)
        yield _named(cache_kernels.decode(config, cache, splits=splits, group=GROUP))
        yield _named(cache_kernels.append(head_dim, dtype="f16", cache=cache, target=target))
        yield _named(cache_kernels.merge(head_dim, dtype="f16", target=target))


def _named(build: BuiltKernel) -> _Named:
    return build.kernel.name, lambda: build.module


def _of_gradients(target: str) -> Iterator[_Named]:
    configs = chain(_configs(target, ("f16", "bf16")), _configs(target, ("f32",), precision="f32_grade"))
    for config, owner in product(configs, (QUERIES, KEYS)):
        kernel = of_gradients(config, owner, target)
        yield kernel.name, kernel.emit


_FAMILIES: Final[dict[str, Callable[[str], Iterator[_Named]]]] = {
    "forward, f16 and bf16": _of_halves,
    "forward, f32, tf32 and f32_grade": _of_f32,
    f"forward, {' and '.join(FP8_DTYPES)}": _of_fp8,
    **{f"forward, {name}": partial(_of_problem, settings) for name, settings in WORKLOADS.items()},
    "KV cache: decode, append, merge": _of_caches,
    _GRADIENTS: _of_gradients,
}
FAMILIES: Final = tuple(_FAMILIES)


def shipped(targets: Sequence[str] = TARGETS) -> Iterator[Shipped]:
    """The kernels for these targets, each once."""
    seen = set()
    for target in targets:
        for family, kernels in _FAMILIES.items():
            for name, emitted in kernels(target):
                one = Shipped(family, target, name, emitted)
                if one.words not in seen:
                    seen.add(one.words)
                    yield one
