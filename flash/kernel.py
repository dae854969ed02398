"""`AttentionKernel`: launches the attention that a config describes on arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, Unpack, overload

from flash.calls.gpu import Launcher
from flash.contract.catalogue import Build, proved_build
from flash.contract.resources import KernelResources
from flash.host import results
from flash.host.caller import LAUNCH, outputs_of
from flash.launch.calls import Call
from flash.launch.checks import scale as scale_of
from flash.launch.checks import seed as seed_of
from flash.launch.explain import explain
from flash.launch.forward import Forward
from flash.launch.signature import ForwardArguments, ForwardExplainArguments, LaunchKeywords
from flash.operands.dtype_names import A, AnyArray, Backend, Layout
from flash.problem.config import AttentionConfig
from flash.problem.outputs import OUTPUTS, Output
from flash.scores.aux_arrays import flattened
from flash.scores.features import require_known, takes
from ptxgen import ir
from ptxgen.arrays import streams
from ptxgen.arrays.views import ArrayView
from ptxgen.check.prove.global_verdicts import GlobalProof
from ptxgen.check.prove.verdicts import Proof
from ptxgen.errors import ConfigError, shown
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.caller_arguments import cache_of, gpu_of
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.runtime.settings import AUTO

_NAME: Final = "AttentionKernel"
_SEED: Final = "dropout_seed"  # the only number that is not the config's
_NO_ARRAYS: Final[dict[str, object]] = {}
_NO_VIEWS: Final[dict[str, ArrayView]] = {}


class AttentionKernel:
    """Attention as `config` says, on numpy, torch, CuPy, JAX and other arrays.

    Making an `AttentionKernel` is cheap: kernels are generated, verified, assembled and loaded by
    the first call that needs them, and kept. `cuda` is the GPU backend and `cache` keeps compiled
    kernels; by default those of the process. Any thread may use it. `copy` returns the object
    itself; unpickling makes a new one from the config, with the backend and cache of its process.

    Raises `ConfigError` if `config` is no `AttentionConfig`.
    """

    _caller: ClassVar = LAUNCH

    def __init__(
        self, config: AttentionConfig, *, cuda: CudaBackend | None = None, cache: ModuleCache | None = None
    ) -> None:
        if not isinstance(config, AttentionConfig):
            raise ConfigError(
                f"{_NAME}: config must be an AttentionConfig, got {shown(config)}; "
                "make one with flash.AttentionConfig(head_dim=64)"
            )
        self.config = config
        gpu = Launcher(gpu_of(_NAME, cuda), cache_of(_NAME, cache))
        self._forward = Forward(config, gpu, self._caller)
        self._scale, self._numbers = config.scale, config.numbers
        self._outputs = config.outputs

    def __repr__(self) -> str:
        return f"AttentionKernel({self.config!r})"

    def __copy__(self) -> AttentionKernel:
        return self

    def __deepcopy__(self, memo: object) -> AttentionKernel:
        return self

    def __reduce__(self) -> tuple[type[AttentionKernel], tuple[AttentionConfig]]:
        return AttentionKernel, (self.config,)

    @property
    def ptx(self) -> str:
        """The PTX for the config's target, by default sm_80, and for arrays with the largest
        alignment that head_dim allows.
        """
        return self.build.text

    @property
    def module(self) -> ir.Module:
        """The verified PTX module of which `ptx` is the text."""
        return self.build.module

    @property
    def build(self) -> Build:
        """The built kernel whose PTX text is `ptx`, with the contract that a launch must meet."""
        return proved_build(self.config.kernel())

    @property
    def resources(self) -> KernelResources:
        """Registers, shared memory, arithmetic and memory traffic of the kernel whose text is `ptx`."""
        return self.build.resources

    @property
    def proof(self) -> Proof:
        """The proof about shared memory of the kernel whose text is `ptx`, for any arguments."""
        return self.build.proof

    @property
    def global_proof(self) -> GlobalProof:
        """The proof about global memory of the kernel whose text is `ptx`, for each checked launch."""
        return self.build.global_proof

    @overload
    def launch(
        self,
        q: A,
        k: AnyArray,
        v: AnyArray | None = ...,
        *,
        return_lse: Literal[False],
        **how: Unpack[LaunchKeywords],
    ) -> A: ...
    @overload
    def launch(
        self,
        q: A,
        k: AnyArray,
        v: AnyArray | None = ...,
        *,
        return_lse: Literal[True],
        **how: Unpack[LaunchKeywords],
    ) -> tuple[A, A]: ...
    @overload
    def launch(
        self,
        q: A,
        k: AnyArray,
        v: AnyArray | None = ...,
        *,
        return_lse: bool | None = ...,
        return_max_logit: bool | None = ...,
        **how: Unpack[LaunchKeywords],
    ) -> Any: ...
    @takes(ForwardArguments)
    def launch(
        self,
        q: AnyArray,
        k: AnyArray,
        v: AnyArray | None = None,
        *,
        out: AnyArray | None = None,
        stream: object = None,
        backend: Backend = AUTO,
        return_lse: bool | None = None,
        return_max_logit: bool | None = None,
        layout: Layout = "bhsd",
        softmax_scale: float | None = None,
        **arguments: Unpack[ForwardArguments],
    ) -> Any:
        """`softmax(scale Q Kᵀ + mask) V`: out, or a tuple of out and of what else is asked for: lse with
        `return_lse`, then max_logit with `return_max_logit` (default: what the config says).

        q [batch, heads, seq_q, head_dim], k [batch, kv_heads, seq_k, head_dim], v [batch, kv_heads,
        seq_k, head_dim_v]; heads is a multiple of kv_heads. `layout="bshd"` swaps heads and seq in
        q, k, v and the result. 3-D arrays are [batch * heads, seq, dim]. All are of the config's
        dtype (float32, float16 or bfloat16) on one device, with a dense last dimension and
        otherwise any strides, zero and negative ones included. The result is a new array of q's
        library and dtype, or `out`: the shape of q with head_dim_v, no memory shared with the
        inputs. lse is the natural logarithm of each row's sum, float32, [batch, heads, seq_q] in
        either layout. A row that sees no key gives 0 and -inf. max_logit is the largest score of each head
        that a row sees, float32 [batch, heads], or of 3-D arrays [batch * heads]: after the scale and
        whatever changes or hides scores, before the sink and dropout; -inf where there is none, NaN if one
        of them is NaN.

        q, k and v of fp8, as the config says, come with `q_scale`, `k_scale` and `v_scale`, float32 of a
        shape that broadcasts to [batch, kv_heads]: what their numbers are multiplied with, q's for all heads
        that share a head of k and v; they may be negative or 0, and must be finite, which is checked on the
        host only. With a config of a `scale_block` each block of that many rows of a head has a scale: they
        broadcast to [batch, heads, ceil(seq_q / scale_block)], k's and v's to [batch, kv_heads, ceil(seq_k /
        scale_block)]. out is then of the config's out_dtype, and the GPU is one of Hopper or Blackwell.
        With a config of `shared_kv` there is no v: V is the first head_dim_v columns of k.

        The arrays of scores, which the list below names, may have any shape that broadcasts to
        theirs, with any strides, in either layout. Each is given if, and only if, the config asks
        for it; `bias` and `key_bias` are of the type that the config says. A mask of False or a
        bias of -inf hides a key; a bias of -2.3587e38 or less, such as the least float32, also
        gives the key weight 0, on every backend (`docs/numerics.md`, "Ranges", says which numbers
        give right results). Which weights dropout makes 0 is the same on every backend and for all
        tiles (`flash/scores/philox.py`).

        With a varlen config the sequences of a batch have different lengths and are packed: q
        [total_q, heads, head_dim], k and v [total_k, kv_heads, ...], out like q, lse [heads,
        total_q], max_logit [batch, heads]. The queries of sequence b are the rows cu_seqlens_q[b] to
        cu_seqlens_q[b + 1] - 1, of which only the first seqused_q[b] count if the config says seqused_q; the
        keys likewise.
        `cu_seqlens_q` and `cu_seqlens_k` are int32 [batch + 1] and never decrease, `seqused_q` and
        `seqused_k` int32 of a shape that broadcasts to [batch]. Causality, windows and ALiBi use
        the lengths of each sequence. Sequences may be empty. Rows of out and lse that are no
        counted query of a sequence are not written. `max_seqlen_q` is at least the most queries of
        a sequence; on the host it is computed if it is left out. The contents of these four arrays
        are checked on the host only: on a GPU, whatever they hold, nothing outside the arrays is
        accessed, and queries beyond max_seqlen_q are left out.

        `backend`: "cuda"; "interpreter", which runs the kernel's PTX on the CPU; "cpu", which is
        numpy; "compiled", which is numpy with loops that Numba compiles (`docs/numerics.md`); or
        "auto", which is the value of PTXGEN_BACKEND, else "cuda" for arrays on a GPU or if a GPU
        opens, else "cpu". On a GPU the work is put on `stream` (an integer, or a stream
        object of torch, CuPy or cuda.core; default: the current one of q's library) and may not
        have run yet on return; host arrays are copied there and back, and complete on return.
        `AttentionGradient` computes gradients; torch's autograd does not go through a launch: inputs
        that require gradients are refused, except in `torch.no_grad()`.

        With a config of a `page_size`, k is [pages, kv_heads, page_size, head_dim] and v likewise,
        `layout="bshd"` swapping kv_heads and page_size: key r of sequence b is row r % page_size of page
        block_table[b, r // page_size]. `block_table` is int32, of a shape that broadcasts to [batch, n],
        `seqused_k` is the number of keys of each sequence, and there is no `cu_seqlens_k`. Entries of the
        table after the last key are not read; on the host all others are checked, and on a GPU, whatever they
        hold, nothing outside k and v is accessed. Functions of scores get the positions of queries among the
        keys, as over any cache. With a config of a `rotary_dim` the rows of q are rotated on the way, and
        rounded once, to their dtype (`flash/problem/rotary.py`): the last query of a sequence by the angles
        of its last key's position, seqused_k - 1. `rotary_cos` and `rotary_sin`, float32 [positions,
        rotary_dim / 2] with dense rows, have a row for each position up to that, which is checked on the host
        only: on a GPU the last row serves positions after it, as on any backend the first row serves
        positions before the first key.

        Raises `LaunchError` with every problem of the arguments before anything is allocated,
        copied or launched, `ConfigError` for an unknown backend or tiles that the device cannot
        hold, `BackendError` if the backend fails or is missing.
        """
        forward, caller = self._forward, self._caller
        if arguments:
            require_known(f"{_NAME}.launch", arguments, ForwardArguments, AttentionKernel.launch)
        outputs, scale, numbers = self._scalars((return_lse, return_max_logit), softmax_scale, arguments)
        explicit = None if stream is None else streams.stream_handle(stream, caller.name)
        max_seqlen_q = arguments.pop("max_seqlen_q", None)
        operands = flattened(caller.name, arguments) if arguments else _NO_ARRAYS
        views = forward.views(q, k, v, out, operands, explicit)
        like = views["q"]
        of = layout, scale, numbers.get(_SEED)
        # What is no str may equal a known layout all the same, as some arrays do.
        may_repeat = out is not None and not outputs and max_seqlen_q is None and type(layout) is str
        if may_repeat and forward.repeats.put(of, views, backend, explicit):
            return out
        checked = forward.checked(views, layout, max_seqlen_q)
        name = forward.choose(backend, like, explicit)[0]
        if checked.is_empty and outputs:
            like = forward.placed(like, views.values())
        results_by_name, new = _NO_ARRAYS, _NO_VIEWS
        if out is None or outputs:
            declared = forward.declared(like, checked.geometry, outputs, out=out)
            results_by_name, new = forward.new(declared, explicit)
            if checked.is_empty:
                forward.fill(declared, new, explicit)
        if not checked.is_empty:
            arrays = {**views, **new} if new else views
            call = Call(self.config, checked.geometry, layout, scale, arrays, numbers, checked.launches)
            forward.run(call, name, like, explicit)
            if may_repeat:
                forward.keep(of, call)
        result = out if out is not None else results.deliver(results_by_name["out"], like)
        if not outputs:
            return result
        return (result, *[results.deliver(results_by_name[output.name], like) for output in outputs])

    @takes(ForwardArguments)
    def result_shapes(
        self,
        q: object,
        k: object,
        v: object = None,
        *,
        return_lse: bool | None = None,
        return_max_logit: bool | None = None,
        layout: str = "bhsd",
        softmax_scale: float | None = None,
        **arguments: Unpack[ForwardArguments],
    ) -> tuple[tuple[int, ...], ...]:
        """The shapes of out, lse and max_logit that `launch` makes for these arguments. Nothing is launched,
        and of arrays other than those of lengths no element is read: their addresses may be any.

        Raises what `launch` raises for arguments that do not fit, but for their addresses and device.
        """
        require_known(f"{_NAME}.result_shapes", arguments, ForwardArguments, AttentionKernel.result_shapes)
        self._scalars((return_lse, return_max_logit), softmax_scale, arguments)
        max_seqlen_q = arguments.pop("max_seqlen_q", None)
        views = self._forward.views(q, k, v, None, flattened(self._caller.name, arguments))
        geometry = self._forward.geometry(views, layout, max_seqlen_q)
        return (geometry.out_shape, *[geometry.shape_of(output) for output in OUTPUTS])

    @takes(ForwardExplainArguments)
    def explain(
        self,
        q: AnyArray,
        k: AnyArray,
        v: AnyArray | None = None,
        *,
        out: AnyArray | None = None,
        backend: Backend = AUTO,
        layout: Layout = "bhsd",
        **arguments: Unpack[ForwardExplainArguments],
    ) -> str:
        """What `launch` with these arguments would do, and why, as text; nothing is launched.

        Raises what `launch` raises for arguments that do not fit.
        """
        require_known(f"{_NAME}.explain", arguments, ForwardExplainArguments, AttentionKernel.explain)
        max_seqlen_q = arguments.pop("max_seqlen_q", None)
        forward = self._forward
        views = forward.views(q, k, v, out, flattened(self._caller.name, arguments))
        geometry = forward.geometry(views, layout, max_seqlen_q)
        forward.check_contents(views, geometry)
        name, why = forward.choose(backend, views["q"], None)
        return explain(forward, geometry, views, name, why)

    def _scalars(
        self, flags: tuple[object, ...], softmax_scale: object, arguments: ForwardArguments
    ) -> tuple[tuple[Output, ...], float, Mapping[str, int | float]]:
        """The outputs of a call in addition to out, its scale, and the scalar arguments of its features; the
        seed is taken out of `arguments`. `flags` are those of `OUTPUTS`.
        """
        caller = self._caller
        outputs = self._outputs
        if outputs or [flag for flag in flags if flag is not None and flag is not False]:
            options = {output.option: flag for output, flag in zip(OUTPUTS, flags, strict=True)}
            outputs = outputs_of(caller.name, options, outputs)
        scale = self._scale
        if softmax_scale is not None:
            scale = scale_of(self.config, softmax_scale, caller)
        numbers = self._numbers
        dropout_seed = arguments.pop("dropout_seed", None) if arguments else None
        if dropout_seed is not None or self.config.dropout:
            numbers = {**numbers, "dropout_seed": seed_of(self.config, dropout_seed, caller)}
        return outputs, scale, numbers
