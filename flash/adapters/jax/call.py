"""A call of attention in two parts: arrays by name, which JAX traces, and all else, which it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

import flash
from flash.calls.backend import for_gradients_of_host
from flash.functions import kernel_of_attention, kernel_of_varlen, pages_of_varlen
from flash.host.caller import outputs_of
from flash.kernel import AttentionKernel
from flash.launch.options import OPTIONS, VARLEN
from flash.launch.rotary import rotary_of_call
from flash.launch.varlen import LENGTHS
from flash.mods.trace import AUX
from flash.operands.dtype_names import Backend, Layout
from flash.problem.outputs import OUTPUTS, Output
from flash.scores.aux_arrays import flattened, gathered
from flash.scores.features import DIFFERENTIABLE as OF_ARRAYS
from flash.scores.features import SCORES, ScoreArguments, of_launch
from ptxgen.errors import LaunchError

Array = NDArray[Any]

MATRICES: Final = ("q", "k", "v")
SEED: Final = "dropout_seed"
AXES: Final = {feature.argument: feature.axes for feature in SCORES if feature.axes}
DIFFERENTIABLE: Final = (*MATRICES, *OF_ARRAYS)
OF_RESULTS: Final = (
    "out",
    "lse",
    "dout",
    "dlse",
)  # the arrays that a backward pass has in addition to a call's
PAGES: Final = "block_table"
_MOST_KEYS: Final = "max_seqlen_k"
# The arguments for which None is refused.
_CHECKED: Final = (
    *MATRICES,
    *(of.name for of in OPTIONS if of.default is not None),
    *(of.argument for of in SCORES if of.default is not None),
)


class Call(NamedTuple):
    """A call without its arrays. `settings` are its arguments by name, without arrays and
    without those that are None.
    """

    caller: str
    settings: tuple[tuple[str, Any], ...]
    outputs: tuple[Output, ...]  # what is returned in addition to out
    backend: Backend

    @property
    def is_varlen(self) -> bool:
        """Whether sequences are packed."""
        return self.caller == VARLEN

    def arguments(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call with these arrays, without `backend` and
        those that ask for results.
        """
        arguments = dict(self.settings) | gathered(arrays)
        for option in OPTIONS:
            if not option.of_results:
                arguments.pop(option.name, None)
        if SEED in arrays:
            arguments[SEED] = int(arrays[SEED])
        return arguments

    def results(self, arrays: Mapping[str, Any], outputs: Sequence[Output], **how: Any) -> tuple[Any, ...]:
        """out and `outputs` for `arrays`, on their device; `how` are further arguments of the function."""
        function = flash.attention_varlen if self.is_varlen else flash.attention
        asked = {output.option: output in outputs for output in OUTPUTS}
        results = function(**{"backend": self.backend, **self.arguments(arrays), **asked, **how})
        return tuple(results) if outputs else (results,)

    def gradients(
        self, arrays: Mapping[str, Any], names: Sequence[str], *, on_gpu: bool, **how: Any
    ) -> tuple[Any, ...]:
        """The gradients of the arrays called `names`, on their device. `arrays` are those of the call and
        those of `OF_RESULTS`, of which dlse may be missing. `how` are further arguments of the function.
        """
        of_call = {name: array for name, array in arrays.items() if name not in OF_RESULTS}
        arguments = self.arguments(of_call) | {name: arrays[name] for name in OF_RESULTS if name in arrays}
        settings = dict(self.settings)
        for option in OPTIONS:
            arguments.pop(option.name, None)
            if option.of_gradients and option.name in settings:
                arguments[option.name] = settings[option.name]
        arguments.pop(_MOST_KEYS, None)
        if self.is_varlen and (on_gpu or _MOST_KEYS in settings):
            arguments[_MOST_KEYS] = settings.get(_MOST_KEYS, of_call["k"].shape[0])
        needed = [name for name in MATRICES if name in names]
        wanted = [name for name in names if name not in MATRICES]
        backend = self.backend
        if not on_gpu:
            backend = for_gradients_of_host(backend, settings.get("precision"))
        function = flash.attention_varlen_backward if self.is_varlen else flash.attention_backward
        gradients = function(**arguments, **how, needed=needed, wanted=wanted, backend=backend)
        named = {"q": gradients.dq, "k": gradients.dk, "v": gradients.dv, **gradients.arrays}
        return tuple([named[name] for name in names])

    def kernel(self, arrays: Mapping[str, Any]) -> AttentionKernel:
        """The kernel of a call. Raises what `flash.attention` does for its settings."""
        arguments = self.arguments(arrays)
        q, v = arguments["q"], arguments["v"]
        how: Any = {"scores": _scores(arguments)}
        how |= {option.name: arguments.get(option.name) for option in OPTIONS if option.of_config}
        if not self.is_varlen:
            return kernel_of_attention(q, v, **how)
        used = "seqused_q" in arrays, "seqused_k" in arrays
        _, page_size = self._pages(arrays)
        rotary, _ = rotary_of_call(self.caller, arguments, q, page_size)
        return kernel_of_varlen(q, v, used, page_size=page_size, rotary=rotary, **how)

    def _pages(self, arrays: Mapping[str, Any]) -> tuple[Layout, int | None]:
        """The layout of pages, and the keys of a page; None if keys are packed and not in pages."""
        return pages_of_varlen(arrays["k"], arrays.get(PAGES), dict(self.settings).get("kv_layout"))

    def shapes(self, arrays: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
        """The shapes of out and all `OUTPUTS`, of arrays of which only shapes and types count. Raises what
        `flash.attention` and `flash.attention_varlen` raise for arguments that do not fit.
        """
        # Memory that is never touched is never taken; lengths of 0 are those of some sequences.
        like = {name: np.zeros(array.shape, array.dtype) for name, array in arrays.items()}
        arguments = self.arguments(like)
        others = {n: a for n, a in arguments.items() if n in (*LENGTHS, PAGES, "max_seqlen_q", "layout")}
        if PAGES in like:
            others["layout"], page_size = self._pages(like)
            others |= rotary_of_call(self.caller, arguments, like["q"], page_size)[1]
        launched: Any = of_launch(_scores(arguments))
        q, k, v = (like[name] for name in MATRICES)
        scale = arguments.get("softmax_scale")
        return self.kernel(like).result_shapes(q, k, v, softmax_scale=scale, **launched, **others)

    @property
    def items_are_alike(self) -> bool:
        """Whether a batch item has the same results at any index of the batch."""
        named = dict(self.settings)
        return not (self.is_varlen or "score_mod" in named or "mask_mod" in named or named.get("dropout"))


def _scores(arguments: Mapping[str, Any]) -> ScoreArguments:
    scores: Any = {name: value for name, value in arguments.items() if name in ScoreArguments.__annotations__}
    return scores  # type: ignore[no-any-return]


def split(
    caller: str, arrays: Mapping[str, object], settings: Mapping[str, object], backend: Backend
) -> tuple[Call, dict[str, Any]]:
    """The two parts of a call; those of `arrays` and `settings` that are None are left out, but for those of
    `_CHECKED`. Arrays of scores are among the settings.

    Raises `LaunchError` for arguments that are no arrays, and for traced values of others.
    """
    arguments = {n: x for n, x in {**arrays, **settings}.items() if x is not None or n in _CHECKED}
    aux = flattened(caller, {AUX: arguments.pop(AUX, None)})
    traced = {name: arguments.pop(name) for name in tuple(arguments) if name in arrays or name in AXES} | aux
    if SEED in arguments and isinstance(arguments[SEED], jax.Array):
        traced[SEED] = _seed(caller, arguments.pop(SEED))
    for name, array in traced.items():
        if not isinstance(array, (jax.Array, np.ndarray)):
            raise LaunchError(
                f"{caller}: {name} must be a jax.Array, got {type(array).__name__}; convert it with "
                f"jax.numpy.asarray({name})"
            )
    for name, value in {**arguments, "backend": backend}.items():
        if isinstance(value, jax.core.Tracer):
            raise LaunchError(
                f"{caller}: {name} must be a value of Python, which is part of the kernel or its launch, got "
                f"a traced {value.dtype}; close over it, or name it in static_argnames of jax.jit"
            )
    outputs = outputs_of(caller, {output.option: arguments.pop(output.option, None) for output in OUTPUTS})
    return Call(caller, tuple(arguments.items()), outputs, backend), traced


def _seed(caller: str, seed: jax.Array) -> jax.Array:
    if seed.shape or not jax.numpy.issubdtype(seed.dtype, np.integer):  # a key has another type
        raise LaunchError(
            f"{caller}: {SEED} must be an integer, or an array of one without axes, got {seed.dtype} of "
            f"shape {list(seed.shape)}; make one with jax.random.randint(key, (), 0, 2**31 - 1)"
        )
    return seed
