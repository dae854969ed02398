"""`AttentionGradient`: the gradients of the attention that a config describes."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Unpack

import numpy as np

from flash.gradients.checks import WRITTEN, checked
from flash.gradients.gpu import GradientLauncher
from flash.gradients.steps import GradientCall, memory_of, run_on_cpu, steps_of
from flash.host import results
from flash.host.caller import Caller, readable_views
from flash.launch.checks import check_place
from flash.launch.checks import scale as scale_of
from flash.launch.checks import seed as seed_of
from flash.launch.gpu import GpuLauncher
from flash.launch.operands import require_operands
from flash.launch.signature import LaunchArguments
from flash.operands.dtypes import OF_ARRAYS
from flash.problem.config import DEFAULT_TARGET, AttentionConfig
from flash.scores.aux_arrays import flattened
from flash.scores.features import require_known
from ptxgen.arrays import streams
from ptxgen.arrays.views import HOST, ArrayView, view
from ptxgen.errors import ConfigError, LaunchError, did_you_mean, shown
from ptxgen.runtime.backend import check_backend
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.runtime.given import cache_of, gpu_of
from ptxgen.runtime.settings import AUTO, Settings
from ptxgen.target import target as find_target

_NAME: Final = "AttentionGradient"


class Gradients(NamedTuple):
    """The gradients of a call: of q, k and v, in their shapes and types, and by the names of their
    arguments those of arrays of scores, float32 in the shapes in which these were given.
    """

    dq: Any
    dk: Any
    dv: Any
    arrays: dict[str, Any]


class AttentionGradient:
    """The gradients of attention as `config` says, on numpy, torch, CuPy, JAX and other arrays.

    Kernels are made by the first call that needs them, and kept. `cuda` is the GPU backend and
    `cache` keeps compiled kernels; by default those of the process.

    Raises `ConfigError` if `config` is no `AttentionConfig`.
    """

    def __init__(
        self,
        config: AttentionConfig,
        *,
        cuda: CudaBackend | None = None,
        cache: ModuleCache | None = None,
        caller: Caller = Caller(f"{_NAME}.launch"),
    ) -> None:
        if not isinstance(config, AttentionConfig):
            raise ConfigError(
                f"{_NAME}: config must be an AttentionConfig, got {shown(config)}; "
                "make one with flash.AttentionConfig(head_dim=64)"
            )
        self.config = config
        self._caller = caller
        self._gpu = GpuLauncher(config, gpu_of(_NAME, cuda), cache_of(_NAME, cache), caller.name)
        self._launcher = GradientLauncher(self._gpu, caller)

    def __repr__(self) -> str:
        return f"{_NAME}({self.config!r})"

    def launch(
        self,
        dout: object,
        q: object,
        k: object,
        v: object,
        out: object,
        lse: object,
        *,
        dlse: object = None,
        dq: object = None,
        dk: object = None,
        dv: object = None,
        wanted: Iterable[str] = (),
        stream: object = None,
        backend: str = AUTO,
        layout: str = "bhsd",
        softmax_scale: float | None = None,
        max_seqlen_k: int | None = None,
        **arguments: Unpack[LaunchArguments],
    ) -> Gradients:
        """TODO"""
        caller = self._caller
        require_known(caller.name, arguments, LaunchArguments, AttentionGradient.launch)
        scale = self.config.scale
        if softmax_scale is not None:
            scale = scale_of(self.config, softmax_scale, caller)
        numbers, dropout_seed = self.config.numbers, arguments.pop("dropout_seed", None)
        if dropout_seed is not None or self.config.dropout:
            numbers = {**numbers, "dropout_seed": seed_of(self.config, dropout_seed, caller)}
        explicit = None if stream is None else streams.stream_handle(stream, caller.name)
        longest = arguments.pop("max_seqlen_q", None), max_seqlen_k
        names = [operand.name for operand in self.config.features.operands]
        given = {**dict.fromkeys(names), **flattened(arguments)}
        require_operands(self.config.features, given, caller)
        named = {
            "dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse,
            "dlse": dlse, "dq": dq, "dk": dk, "dv": dv,
        }  # fmt: skip
        views = readable_views(
            {n: a for n, a in named.items() if a is not None or n not in ("dlse", *WRITTEN)}, caller.name
        )
        operands = readable_views({n: a for n, a in given.items() if a is not None}, caller.name)
        views, operands = ({n: self._gpu.located(a) for n, a in of.items()} for of in (views, operands))
        found = checked(self.config, views, operands, layout, longest, caller)
        like = views["q"]
        name = self._choose(backend, like)
        check_place(caller.name, name, like, explicit)
        memory = self._gpu.backend
        make = functools.partial(results.empty, like, memory=memory, stream=explicit)
        made = {
            n: make(views[of].shape, self.config.element) for n, of in WRITTEN.items() if named[n] is None
        }
        views |= {n: view(array, n) for n, array in made.items()}
        on = 0
        if name == "cuda" and like.device != HOST:
            on = streams.current_stream(like) if explicit is None else explicit
        if self.config.varlen:
            for n in made:
                self._launcher.clear(views[n], on)
        of_scores = {n: make(operands[n].shape, OF_ARRAYS[operands[n].dtype]) for n in self._wanted(wanted)}
        sums = {n: view(array, n) for n, array in of_scores.items()}
        call = GradientCall(self.config, found, layout, scale, views, operands, numbers, sums)
        if name == "cpu":
            run_on_cpu(call)
        elif name == "interpreter":
            target = find_target(self.config.target or DEFAULT_TARGET)
            space = {n: view(np.zeros(m.shape, np.float32), n) for n, m in memory_of(call).items()}
            for step in steps_of(call, target, space, caller.name):
                step.interpret()
        elif like.device == HOST:
            self._launcher.launch_from_host(call, explicit or 0, memory.current_device())
        else:
            self._launcher.launch(call, on)
        dq, dk, dv = (
            results.deliver(made[n], views[of]) if n in made else named[n] for n, of in WRITTEN.items()
        )
        arrays = {n: results.deliver(array, operands[n]) for n, array in of_scores.items()}
        return Gradients(dq, dk, dv, arrays)

    def _wanted(self, names: Iterable[str]) -> list[str]:
        """The arguments whose arrays' gradients are wanted. Raises `LaunchError` for one that has none."""
        known = [f.argument for f in self.config.scores if f.gradient_of]
        found = [names] if isinstance(names, str) else list(names)
        for name in found:
            if name not in known:
                among = ", ".join(known) if known else "none, because the config asks for no such array"
                raise LaunchError(
                    f"{self._caller.name}: wanted must name arrays of the call with a gradient ({among}), "
                    f"got {shown(name)}{did_you_mean(name, known)}"
                )
        return found

    def _choose(self, backend: object, q: ArrayView) -> str:
        """The backend of a call. Raises `ConfigError` for an unknown name."""
        if not isinstance(backend, str) or backend != AUTO:
            return check_backend(backend, self._caller.name)
        if (set_by_user := Settings.from_environment().backend) != AUTO:
            return set_by_user
        if q.device != HOST:
            return "cuda"
        return "cpu" if self._gpu.backend.why_unavailable() else "cuda"
