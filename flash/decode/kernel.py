"""`DecodeKernel`: attention of few new queries to the keys of a KV cache, read in place."""

from __future__ import annotations

from typing import Any, Final, Literal, Unpack, overload

from flash.calls.gpu import Launcher
from flash.calls.known import Known
from flash.calls.operation import Result
from flash.decode.checks import CALLER, longest_of, problems_of, problems_of_narrow
from flash.decode.operation import Decode
from flash.decode.plan import SCALES, CacheCall, new_operands, require_cached
from flash.host import results
from flash.host.caller import Caller, outputs_of, raise_problems
from flash.launch.checks import scale as scale_of
from flash.launch.shared_kv import columns_of, require_shared
from flash.launch.signature import CacheLaunchOptions
from flash.operands.blocks import BLOCK_TYPES, BlockType, why_no_blocks
from flash.operands.dtype_names import A, AnyArray, Auto, Backend, Blocks
from flash.operands.dtypes import F32
from flash.problem.config import AttentionConfig
from flash.problem.features import LENGTHS
from flash.problem.splits import splits_of
from flash.scores.aux_arrays import flattened
from flash.scores.features import CACHE_ARRAYS, CacheLaunchArguments, require_known, takes
from ptxgen.arguments import is_one_of
from ptxgen.arrays import streams
from ptxgen.arrays.views import HOST, ArrayView
from ptxgen.errors import ConfigError, did_you_mean, shown
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.caller_arguments import cache_of, gpu_of
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.runtime.settings import AUTO

_OUT: Final = ("out",)
_CACHES: Final = ("out", "k_cache", "v_cache")  # what a call with new rows writes
_NEEDED: Final = ("q", "k_cache", "v_cache")


class DecodeKernel:
    """Attention as `config` says, of new queries to caches of keys and values.

    The last query of a sequence is at the position of its last key. The config must not ask for
    varlen, bias, dropout or top-left causality. Kernels are made by the first call that needs them,
    and kept. `cuda` is the GPU backend and `cache` keeps compiled kernels; by default those of the
    process.

    `kv_dtype`: "q8_0" or "q4_0" if the caches are of the bytes of such blocks, as llama.cpp stores them
    (`docs/kv-cache.md`); None if their arrays have the type of their elements.

    Raises `ConfigError` for a config with one of these features, and for another `kv_dtype`.
    """

    def __init__(
        self,
        config: AttentionConfig,
        *,
        kv_dtype: Blocks | None = None,
        cuda: CudaBackend | None = None,
        cache: ModuleCache | None = None,
    ) -> None:
        require_cached(config)
        self.config = config
        self.kv_dtype = kv_dtype
        self._blocks = _blocks_of(config, kv_dtype)
        gpu = Launcher(gpu_of("DecodeKernel", cuda), cache_of("DecodeKernel", cache))
        self._decode = Decode(config, gpu, Caller(CALLER))
        self._checked = Known[bool]()

    def __repr__(self) -> str:
        stored = "" if self.kv_dtype is None else f", kv_dtype={self.kv_dtype!r}"
        return f"DecodeKernel({self.config!r}{stored})"

    @overload
    def launch(
        self,
        q: A,
        k_cache: AnyArray,
        v_cache: AnyArray | None = ...,
        k: AnyArray | None = ...,
        v: AnyArray | None = ...,
        *,
        return_lse: Literal[True],
        **options: Unpack[CacheLaunchOptions],
    ) -> tuple[A, A]: ...
    @overload
    def launch(
        self,
        q: A,
        k_cache: AnyArray,
        v_cache: AnyArray | None = ...,
        k: AnyArray | None = ...,
        v: AnyArray | None = ...,
        *,
        return_lse: bool | None = ...,
        return_max_logit: bool | None = ...,
        **options: Unpack[CacheLaunchOptions],
    ) -> Any: ...
    @takes(CacheLaunchArguments)
    def launch(
        self,
        q: AnyArray,
        k_cache: AnyArray,
        v_cache: AnyArray | None = None,
        k: AnyArray | None = None,
        v: AnyArray | None = None,
        *,
        seqused_k: AnyArray,
        block_table: AnyArray | None = None,
        cache_batch_idx: AnyArray | None = None,
        leftpad_k: AnyArray | None = None,
        k_scale: AnyArray | None = None,
        v_scale: AnyArray | None = None,
        rotary_cos: AnyArray | None = None,
        rotary_sin: AnyArray | None = None,
        rotary_interleaved: bool = False,
        softmax_scale: float | None = None,
        return_lse: bool | None = None,
        return_max_logit: bool | None = None,
        out: AnyArray | None = None,
        splits: int | Auto = AUTO,
        max_seqlen_k: int | None = None,
        backend: Backend = AUTO,
        stream: object = None,
        **scores: Unpack[CacheLaunchArguments],
    ) -> Any:
        """`softmax(scale Q Kᵀ + mask) V`: out, or a tuple of out and the other results of the call: lse with
        `return_lse`, then max_logit with `return_max_logit` (default: what the config says).

        q [batch, heads, seq_q, head_dim]. Without `block_table` k_cache is [sequences, kv_heads,
        capacity, head_dim]; with it, int32 [sequences, n], k_cache is [pages, kv_heads, page_size,
        head_dim], and key r of sequence s is row r % page_size of page block_table[s, r //
        page_size]. v_cache likewise, with head_dim_v; heads are a multiple of kv_heads. All are of
        the config's dtype, with a dense last dimension and otherwise any strides. Or both caches are
        of fp8 or int8: then `k_scale` and `v_scale`, float32 of a shape that broadcasts to
        [kv_heads], above 0, are what their numbers are multiplied by; or one for each token, of the shape
        of the caches without the last dimension, finite and at least 0 where there are keys. Kernels take
        e4m3 from sm_89 on, and these types with queries of 16 bits, dimensions that are multiples of 8,
        and rows at multiples of 8 bytes.

        Int32 arrays, of a shape that broadcasts to [batch]: `seqused_k`, the number of rows in the
        sequence of each item; `cache_batch_idx`, the sequence of each item, by default the item's
        index, so that there are `batch` sequences; `leftpad_k`, the number of rows at the beginning
        of each sequence that are no keys. The kernels read them, so that a launch waits for nothing
        and may be captured in a graph: whatever they hold, nothing outside of the arrays is
        accessed, and rows that are no keys never reach a result.

        New rows k [batch, kv_heads, n, head_dim] and v, of the config's dtype, are first written to
        the caches, divided by the scales if there are any; those of tokens are written, too: the largest
        finite magnitude of a row / the largest number of the type. Row i of n becomes row seqused_k - n + i
        of its sequence, so `seqused_k` must include the new rows. With `rotary_cos` and `rotary_sin`,
        float32 [positions, rotary_dim / 2] with dense rows, the first rotary_dim columns of k and q are
        rotated by the positions of their rows, neighbouring columns together if `rotary_interleaved`
        (`flash/problem/rotary.py`); without k and v those of q alone. The kernel that attends writes up
        to 16 new rows, if one CTA, or one CTA for each of `splits`, has all queries of a head of K;
        otherwise a launch before it writes them. A new row must belong to one item only: each item with
        new rows needs its own sequence, and its own pages for the new rows.

        With a config of `shared_kv` there is no v_cache: V is the first head_dim_v columns of k_cache, to
        which the caller writes new rows.

        `splits`: into how many parts the keys are divided, 1 to 32768; each part has its own CTAs.
        "auto" is a rule (`flash.decode.plan.choose_splits`) that depends on the device, the batch
        and `max_seqlen_k`, the most keys that a sequence may have, by default the capacity. With a
        fixed number of splits the bits of a result depend neither on the batch nor on
        `max_seqlen_k`.

        `mask`, bool, broadcasts to [batch, heads, seq_q, m] and covers the last m keys of each
        sequence: whether a query sees them. If a sequence has fewer than m keys, the first columns
        are ignored; keys before the last m are visible; causality and windows hide more. With
        `leftpad_k`, columns for padding rows are ignored.

        `alibi_slopes`, `sink`, `softmax_scale`, `out`, `stream`, `backend` and results are as in
        `AttentionKernel.launch`; on a GPU all arrays must be on the GPU.

        Raises `LaunchError` with every problem of the arguments before anything is allocated or
        asked of a device, `ConfigError` for an unknown backend or tiles that the device cannot
        hold, `BackendError` if the backend fails.
        """
        if not isinstance(rotary_interleaved, bool):
            raise ConfigError(
                f"{CALLER}: rotary_interleaved must be True or False, got {shown(rotary_interleaved)}"
            )
        options = {"return_lse": return_lse, "return_max_logit": return_max_logit}
        outputs = outputs_of(CALLER, options, self.config.outputs)
        explicit = None if stream is None else streams.stream_handle(stream, CALLER)
        require_known(CALLER, scores, CacheLaunchArguments, DecodeKernel.launch)
        arrays = {
            "q": q,
            "k_cache": k_cache,
            "v_cache": v_cache,
            "k": k,
            "v": v,
            "rotary_cos": rotary_cos,
            "rotary_sin": rotary_sin,
            "seqused_k": seqused_k,
            "block_table": block_table,
            "cache_batch_idx": cache_batch_idx,
            "leftpad_k": leftpad_k,
            "k_scale": k_scale,
            "v_scale": v_scale,
            "out": out,
            **flattened(CALLER, scores),
        }
        decode = self._decode
        if self.config.shared_kv:
            require_shared(self.config, CALLER, v_cache=v_cache, k=k, v=v)
            arrays["v_cache"] = k_cache
        views = decode.read({n: a for n, a in arrays.items() if a is not None or n in _NEEDED}, explicit)
        if self.config.shared_kv:
            views["v_cache"] = columns_of(self.config, views["k_cache"])
        self._check(views)
        # An empty q may not have its device.
        like = views["q"]._replace(device=views["k_cache"].device)
        name = decode.choose(backend, like, explicit)[0]
        if name == "cuda":
            decode.require_located(views.values())
        raise_problems(problems_of_narrow(self.config, views, name, self._blocks), CALLER)
        number = splits_of(CALLER, splits)
        longest = longest_of(views, max_seqlen_k)
        scale = scale_of(self.config, softmax_scale, Caller(CALLER))
        shape = (*like.shape[:3], self.config.value_dim)
        declared = [Result("out", like, shape, self.config.element)] if out is None else []
        for output in outputs:
            of_output = output.shape(*shape[:3], packed=False)
            declared.append(Result(output.name, like, of_output, F32, output.initial))
        new_arrays, new = decode.new(declared, explicit)
        if 0 not in shape[:3]:
            names = (*_OPERANDS, *self.config.aux_operands)
            call = CacheCall(
                self.config,
                like,
                views["k_cache"],
                views["v_cache"],
                views["out"] if out is not None else new["out"],
                {output.name: new[output.name] for output in outputs},
                {n: a for n, a in views.items() if n in names} | new_operands(views),
                views["k_cache"].shape[2] if "block_table" in views else 0,
                longest,
                scale,
                number,
                rotary_interleaved,
                self._blocks,
            )
            decode.run(call, name, like, explicit)
        else:
            decode.fill(declared, new, explicit)
        returned = [results.deliver(array, like) for array in new_arrays.values()]
        if out is not None:
            returned.insert(0, out)
        return tuple(returned) if outputs else returned[0]

    def _check(self, views: dict[str, ArrayView]) -> None:
        """Raise `LaunchError` with all problems of the arrays of a call. On a GPU, calls whose
        addresses differ only in ways that no check depends on are checked once.
        """
        if views["q"].device != HOST and self._checked.get((), views):
            return
        if not self._decode.gpu.backend.why_unavailable():
            self._decode.require_located(views.values())
        raise_problems(problems_of(self.config, views, self._blocks), CALLER)
        self._checked.keep((), views, _CACHES if "k" in views else _OUT, True)


_OPERANDS: Final = (*LENGTHS, *SCALES, "block_table", *CACHE_ARRAYS)


def _blocks_of(config: AttentionConfig, kv_dtype: object) -> BlockType | None:
    """The block type of a cache, such as q8_0; None for None. Raises `ConfigError` for another name."""
    if kv_dtype is None:
        return None
    if not is_one_of(kv_dtype, tuple(BLOCK_TYPES)):
        raise ConfigError(
            f"DecodeKernel: kv_dtype must be {' or '.join(map(repr, BLOCK_TYPES))}, or None for caches whose "
            f"arrays have the type of their elements, got {shown(kv_dtype)}"
            f"{did_you_mean(kv_dtype, BLOCK_TYPES)}"
        )
    blocks = BLOCK_TYPES[str(kv_dtype)]
    why_not = why_no_blocks(blocks, config.head_dim, config.value_dim)
    if why_not:
        raise ConfigError(f"DecodeKernel: {why_not}")
    return blocks
