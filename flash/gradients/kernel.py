"""`AttentionGradient`: the gradients of the attention that a config describes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Final, Generic, NamedTuple, Unpack, cast

from flash.calls.gpu import Launcher
from flash.calls.memory import ALIGNED, PlannedMemory
from flash.calls.operation import stream_of
from flash.contract.gradients import GradientBuild, gradient_build
from flash.families.request import natural_alignment
from flash.gradients.checks import WRITTEN, written_for
from flash.gradients.explain import explain
from flash.gradients.operation import Gradient
from flash.gradients.resources import GradientResources
from flash.gradients.steps import GradientCall, sum_name
from flash.host import results
from flash.host.caller import Caller
from flash.launch.checks import scale as scale_of
from flash.launch.checks import seed as seed_of
from flash.launch.signature import GradientExplainArguments, GradientLaunchArguments
from flash.operands.dtype_names import A, AnyArray, Backend, Layout
from flash.problem.config import DEFAULT_TARGET, AttentionConfig
from flash.problem.gradient_choice import gradient_config, require_differentiable, require_sweeps
from flash.problem.gradients import owners_of
from flash.scores.aux_arrays import flattened
from flash.scores.features import require_known, takes
from ptxgen.arrays import streams
from ptxgen.arrays.views import HOST, ArrayView
from ptxgen.errors import ConfigError, LaunchError, did_you_mean, shown
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.caller_arguments import cache_of, gpu_of
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.runtime.settings import AUTO, WITHOUT_KERNELS
from ptxgen.target import target as find_target

NEEDED: Final = ("q", "k", "v")  # the matrices that have gradients

_NAME: Final = "AttentionGradient"


class Gradients(NamedTuple, Generic[A]):
    """The gradients of a call: of q, k and v, in their shapes and types (with fp8 in the type of out), None
    of those that were not needed; and by the names of their arguments those of the arrays of scores that were
    wanted, of the types and shapes of these arguments.
    """

    dq: A
    dk: A
    dv: A
    arrays: dict[str, A]


class AttentionGradient:
    """The gradients of attention as `config` says, on numpy, torch, CuPy, JAX and other arrays.

    Unless `deterministic`, one sweep may make all gradients: five products for each tile of scores and not
    seven, but dq is the sum of what CTAs add by atomics, in an order that differs from run to run, and
    so do its last bits. It needs head_dim f32 more for each row of each head of q. One sweep is taken where
    a model of the target gives it fewer clocks than two (docs/backward.md), or where `sweeps` is 1, and not
    where that is 2. Where `sweeps` is 1 although `deterministic`, CTAs add in a fixed order, so that dq has
    the same bits in each call: on sm_90a, for f16 and bf16, of sizes and features that have such kernels.

    Kernels are made by the first call that needs them, and kept. `cuda` is the GPU backend and
    `cache` keeps compiled kernels; by default those of the process. Any thread may use it. `copy`
    returns the object itself; unpickling makes a new one from the config, with the backend and cache
    of its process. Tiles are those of `GRADIENT_TILES`, `SYNCHRONOUS_GRADIENT_TILES` and
    `WGMMA_GRADIENT_TILES` in `flash/problem/gradient_tiles.py`: `block_q`, `tile` and the like in the
    config, and pack_gqa, are of the forward pass alone.

    With Q, K and V of fp8, dO is of fp8, too, and has scales; the kernels, for Hopper, make two sweeps after
    launches that write Q, K and dO in bf16, and dq, dk and dv have the type of out.

    The kernels use tensor cores, but for f32 with precision "ieee", the default: its products are exact,
    and summed in f32. Those of bf16 and of f32 with another precision need
    sm_80 or later. On a Hopper GPU those of f16 and bf16 use `wgmma`, in one
    sweep for some sizes and features, and not for strides that no tensor map takes (docs/backward.md).

    Raises `ConfigError` if `config` is no `AttentionConfig`, or one of pages, and for `sweeps` of 1 if there
    are no kernels of one sweep, or none with a fixed order if dq is to be `deterministic`.
    """

    _caller: ClassVar = Caller(f"{_NAME}.launch")

    def __init__(
        self,
        config: AttentionConfig,
        *,
        deterministic: bool = True,
        sweeps: int | None = None,
        cuda: CudaBackend | None = None,
        cache: ModuleCache | None = None,
    ) -> None:
        if not isinstance(config, AttentionConfig):
            raise ConfigError(
                f"{_NAME}: config must be an AttentionConfig, got {shown(config)}; "
                "make one with flash.AttentionConfig(head_dim=64)"
            )
        if config.page_size is not None:
            raise ConfigError(
                f"{_NAME}: config must be one without pages, got page_size={config.page_size}; keys in "
                "pages have no gradients, pass them packed"
            )
        if config.is_fp8 and config.varlen:
            raise ConfigError(
                f"{_NAME}: config must be one of batches, because packed sequences of fp8 have no gradients, "
                f"got dtype={config.dtype!r} with varlen=True; use a batch for each length, or convert Q, K "
                "and V to 'bf16'"
            )
        require_differentiable(config, _NAME)
        if config.shared_kv:
            raise ConfigError(
                f"{_NAME}: config must be one with values of their own, got shared_kv=True; pass v, and add "
                "its gradients to those of the columns of k"
            )
        if not isinstance(deterministic, bool):
            raise ConfigError(f"{_NAME}: deterministic must be True or False, got {shown(deterministic)}")
        require_sweeps(config, sweeps, deterministic=deterministic, caller=_NAME)
        self.config = config
        self.deterministic = deterministic
        self.sweeps = sweeps
        gpu = Launcher(gpu_of(_NAME, cuda), cache_of(_NAME, cache))
        self._gradient = Gradient(config, gpu, self._caller, sweeps, deterministic)
        self._numbers = config.numbers

    def __repr__(self) -> str:
        how = "" if self.deterministic else ", deterministic=False"
        how += "" if self.sweeps is None else f", sweeps={self.sweeps}"
        return f"{_NAME}({self.config!r}{how})"

    def __copy__(self) -> AttentionGradient:
        return self

    def __deepcopy__(self, memo: object) -> AttentionGradient:
        return self

    def __reduce__(self) -> tuple[Callable[..., AttentionGradient], tuple[AttentionConfig]]:
        return functools.partial(AttentionGradient, deterministic=self.deterministic, sweeps=self.sweeps), (
            self.config,
        )

    @property
    def builds(self) -> dict[str, GradientBuild]:
        """The kernels by the names of what their CTAs own: "queries" and "keys", or in one sweep "deltas",
        "keys" and "sums"; for the config's target, by default sm_80, and for arrays with the largest
        alignment that head_dim allows, without the gradient of LSE and those of arrays of scores; with fp8
        for dO of the type of q, and without those that write rows in bf16. Raises `ConfigError` if no kernel
        computes the config.
        """
        target = find_target(self.config.target or DEFAULT_TARGET)
        config = self.config
        of_owner = target, natural_alignment(config.head_dim, config.value_dim, config.element)
        sweeps = self._gradient.sweeps(target)
        one_sweep, in_order = sweeps.number == 1, sweeps.in_order
        return {
            owner: gradient_build(
                gradient_config(config, owner, *of_owner, one_sweep=one_sweep, in_order=in_order)
            )
            for owner in owners_of(one_sweep=one_sweep)
        }

    @property
    def ptx(self) -> dict[str, str]:
        """The PTX text of each gradient kernel, under the same names as `builds`."""
        return {owner: build.text for owner, build in self.builds.items()}

    @property
    def resources(self) -> dict[str, GradientResources]:
        """The registers (by `ptxas` if installed), shared memory and occupancy of each of `builds`."""
        return {owner: GradientResources.of(build) for owner, build in self.builds.items()}

    @takes(GradientLaunchArguments)
    def launch(
        self,
        dout: AnyArray,
        q: A,
        k: AnyArray,
        v: AnyArray,
        out: AnyArray,
        lse: AnyArray,
        *,
        dlse: AnyArray | None = None,
        dq: AnyArray | None = None,
        dk: AnyArray | None = None,
        dv: AnyArray | None = None,
        needed: Iterable[str] = NEEDED,
        wanted: Iterable[str] = (),
        stream: object = None,
        backend: Backend = AUTO,
        layout: Layout = "bhsd",
        softmax_scale: float | None = None,
        max_seqlen_k: int | None = None,
        **arguments: Unpack[GradientLaunchArguments],
    ) -> Gradients[A]:
        """The gradients of a number for q, k and v, and for arrays of scores, from its gradients
        `dout` for out and `dlse` for lse.

        `out` and `lse` are the results of `AttentionKernel.launch` with `return_lse=True` for the
        same q, k, v and arguments: out like q, with head_dim_v columns, lse float32 [batch, heads,
        seq_q] in either layout, [heads, total_q] with varlen. `dout` has the shape and type of out,
        `dlse` those of lse; without `dlse` the gradient of lse is 0. lse and dlse are dense. q, k,
        v, the layouts, varlen with its arrays of lengths, and the arrays of scores are as in
        `AttentionKernel.launch`. A row whose lse is -inf adds 0 to every gradient.

        With fp8, as the config says, dout is of "e4m3" or "e5m2", whichever q is, and `q_scale`, `k_scale`,
        `v_scale` and `dout_scale` are what the numbers of q, k, v and dout are multiplied with: the first
        three those of the forward pass, the last of the shape of `q_scale`.

        Returns `Gradients`: dq, dk and dv, of the shapes, type and library of q, k and v, with fp8 of the
        type of out, and a dict of the gradients of those arrays of scores whose names are `wanted`, among
        "alibi_slopes", "bias", "key_bias", "sink" and "aux_" with the name of an array of numbers in aux that
        score_mod reads; in the shapes and types of the arguments: sums over all elements that an element was
        broadcast to, or over all reads of it. Gradients of keys and values are sums over the heads that
        share them. `dq`, `dk` and `dv` are arrays to write the results to instead of new ones, of any strides
        whose last dimension is dense; they share no memory with each other or the inputs. With varlen, rows
        of no sequence are 0 in new arrays, and not written in arrays of the caller.

        `needed` names the matrices among "q", "k" and "v" whose gradients are computed; the others are None.
        A call without "q" takes 4 matrix products for each tile of scores, one without "k" and "v" takes 3,
        and one with all three 7, or 5 in one sweep: a call costs less where keys and values are not trained.

        Sums run in an order that only the config, the shapes and the device determine: the same call
        gives the same bits, except in dq of an object that is not `deterministic`. `docs/backward.md`
        has the formulas, and what is rounded where.

        `backend` is as in `AttentionKernel.launch`. On a GPU the work is put on `stream` (an integer, or a
        stream object; default: the current one of q's library) and may not have run yet on return; host
        arrays are copied there and back, and complete on return. In addition to the results the kernels need
        memory for an f32 for each row of each head; unless `deterministic`, for head_dim f32 more for each of
        these rows; and for gradients of arrays of scores: for a bias an f32 for each of its elements,
        broadcast along the rows and keys, for others one for each row or key of each head; for arrays of aux
        104 bytes for each element. The memory is reused by the next calls on the stream.

        `max_seqlen_q` and `max_seqlen_k` are the most queries and keys of a packed sequence; on the
        host they are computed if they are left out, and for lengths on a GPU they must be given:
        gradients of rows beyond them are not written.

        Raises `LaunchError` with the problems of the arguments before anything is allocated, copied
        or launched, `ConfigError` for an unknown backend, or where no kernel computes the config,
        `BackendError` if the backend fails.
        """
        caller = self._caller
        require_known(caller.name, arguments, GradientLaunchArguments, AttentionGradient.launch)
        explicit = None if stream is None else streams.stream_handle(stream, caller.name)
        scale, numbers = self._scalars(softmax_scale, arguments)
        named = {
            "dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse,
            "dlse": dlse, "dq": dq, "dk": dk, "dv": dv,
        }  # fmt: skip
        gradient, names, matrices = self._gradient, self._wanted(wanted), self._needed(needed, named)
        call, name, _ = self._read(
            named, arguments, layout, max_seqlen_k, (matrices, names), backend, explicit
        )
        like = call.arrays["q"]
        declared = list(gradient.declared(call.arrays, call.operands, call.written, names))
        arrays, new = gradient.new(declared, explicit)
        sums = {n: new.pop(sum_name(n)) for n in names}
        cleared = [*(new.values() if self.config.varlen else ())]
        cleared += sums.values() if call.checked.has_no_scores else ()
        gradient.clear(cleared, stream_of(like, explicit))
        call = call._replace(arrays={**call.arrays, **new}, sums=sums, scale=scale, numbers=numbers)
        gradient.run(call, name, like, explicit)
        returned: dict[str, Any] = dict(named)
        returned |= {result.name: results.deliver(arrays[result.name], result.like) for result in declared}
        of_scores = {n: returned[sum_name(n)] for n in names}
        dq, dk, dv = (returned[f"d{matrix}"] if matrix in matrices else None for matrix in NEEDED)
        return Gradients(dq, dk, dv, of_scores)

    @takes(GradientExplainArguments)
    def explain(
        self,
        dout: AnyArray,
        q: AnyArray,
        k: AnyArray,
        v: AnyArray,
        out: AnyArray,
        lse: AnyArray,
        *,
        dlse: AnyArray | None = None,
        dq: AnyArray | None = None,
        dk: AnyArray | None = None,
        dv: AnyArray | None = None,
        needed: Iterable[str] = NEEDED,
        wanted: Iterable[str] = (),
        backend: Backend = AUTO,
        layout: Layout = "bhsd",
        max_seqlen_k: int | None = None,
        **arguments: Unpack[GradientExplainArguments],
    ) -> str:
        """What `launch` with these arguments would do, and why, as text: the kernels with their tiles,
        proofs, registers and occupancy, the arithmetic and the memory. Nothing is launched; the
        assembler, if one is installed, is asked for registers, which takes seconds for large head_dim.

        Raises what `launch` raises for arguments that do not fit.
        """
        require_known(f"{_NAME}.explain", arguments, GradientExplainArguments, AttentionGradient.explain)
        named = {
            "dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse,
            "dlse": dlse, "dq": dq, "dk": dk, "dv": dv,
        }  # fmt: skip
        names, gradient = self._wanted(wanted), self._gradient
        asked = self._needed(needed, named), names
        call, name, why = self._read(named, arguments, layout, max_seqlen_k, asked, backend, None)
        ordinal = gradient.ordinal(name, call.arrays)
        arrays = {**{n: call.arrays[WRITTEN[n]] for n in call.written}, **call.arrays}
        call = call._replace(arrays=arrays, sums={n: call.operands[n] for n in names})
        kernels = []
        if name not in WITHOUT_KERNELS:
            memory = PlannedMemory(ALIGNED, HOST)  # nothing runs
            kernels = [(step.build, step.plan.grid[0]) for step in gradient.steps(call, ordinal, memory)]
        target = gradient.target_of(ordinal)
        return explain(call, name, why, kernels, gradient.sweeps(target), target)

    def _scalars(self, softmax_scale: object, arguments: Any) -> tuple[float, Mapping[str, int | float]]:
        """The scale of a call, and the scalar arguments of its features; the seed is taken out of
        `arguments`.
        """
        scale = self.config.scale
        if softmax_scale is not None:
            scale = scale_of(self.config, softmax_scale, self._caller)
        numbers, dropout_seed = self._numbers, arguments.pop("dropout_seed", None)
        if dropout_seed is not None or self.config.dropout:
            numbers = {**numbers, "dropout_seed": seed_of(self.config, dropout_seed, self._caller)}
        return scale, numbers

    def _read(
        self,
        named: Mapping[str, object],
        arguments: Any,
        layout: str,
        max_seqlen_k: object,
        asked: tuple[Collection[str], Collection[str]],
        backend: object,
        stream: int | None,
    ) -> tuple[GradientCall, str, str]:
        """The checked call of arguments, with the config's scale and numbers; its backend, and why that
        one. `asked` are the matrices, and the arrays of scores, whose gradients are asked for.
        """
        caller, gradient, config = self._caller.name, self._gradient, self.config
        longest = arguments.pop("max_seqlen_q", None), max_seqlen_k
        views, operands = gradient.views(named, flattened(caller, arguments), stream)
        checked = gradient.checks.check(views, operands, layout, longest)
        name, why = gradient.choose(backend, views["q"], stream)
        sweeps = gradient.require_kernels(name, gradient.ordinal(name, views))
        of_scores = self._numbers, dict[str, ArrayView]()
        call = GradientCall(config, checked, layout, config.scale, views, operands, *of_scores)
        written = written_for(config, *asked)
        if sweeps.number == 1 and len(written) == len(WRITTEN):
            call = call._replace(one_sweep=True, in_order=sweeps.in_order)
        return call._replace(written=written), name, why

    def _needed(self, names: Iterable[str], arrays: Mapping[str, object]) -> tuple[str, ...]:
        """The matrices whose gradients are needed. Raises `LaunchError` for a name that is none of q, k and
        v, and for an array to write a gradient to that is not needed.
        """
        needed = _names(names)
        caller, among = self._caller.name, ", ".join(NEEDED)
        for name in needed:
            if not isinstance(name, str) or name not in NEEDED:
                raise LaunchError(f"{caller}: needed must name matrices among {among}, got {shown(name)}")
        for matrix in NEEDED:
            if matrix not in needed and arrays[f"d{matrix}"] is not None:
                raise LaunchError(
                    f"{caller}: d{matrix} is an array to write to, but needed does not name {matrix}; name "
                    f"it, or leave d{matrix} out"
                )
        return tuple(needed)

    def _wanted(self, names: Iterable[str]) -> list[str]:
        """The arguments whose arrays' gradients are wanted. Raises `LaunchError` for one that has none."""
        known = self.config.differentiable
        wanted = _names(names)
        for name in wanted:
            if not isinstance(name, str) or name not in known:
                why = "the config asks for no such array" if self._caller.has_config else "none is given"
                among = ", ".join(known) if known else f"none here, because {why}"
                raise LaunchError(
                    f"{self._caller.name}: wanted must name arrays of the call with a gradient ({among}), "
                    f"got {shown(name)}{did_you_mean(name, known)}"
                )
        return wanted


def _names(names: object) -> list[Any]:
    """The elements of an argument that lists names; a string is one name."""
    try:
        return [names] if isinstance(names, str) else list(cast(Iterable[Any], names))
    except TypeError:  # not iterable, or an array without axes
        return [names]
