"""The errors of calls for gradients, whole, and before anything is done on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from device_arrays import on_device, without_assembler
from fake_driver import FakeDevice, FakeDriver
from gradient_calls import call_of
from refusals import refusal

import flash
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend

Array = np.ndarray[Any, Any]
Change = Callable[[dict[str, Any]], dict[str, Any]]

CONFIG = flash.AttentionConfig(head_dim=8, dtype="f16")
NO_WORK = {"cuMemAlloc", "cuMemcpyHtoDAsync", "cuModuleLoadDataEx", "cuLaunchKernel", "cuMemsetD8Async"}


def arrays_of(**how: Any) -> dict[str, Any]:
    return call_of(CONFIG, seq_q=3, seq_k=4, **how)


def half(*shape: int) -> Array:
    return np.zeros(shape, np.float16)


def frozen(array: Array) -> Array:
    array.flags.writeable = False
    return array


CASES: dict[str, tuple[Change, str]] = {
    "dout of another shape": (
        lambda a: {"dout": a["dout"][:, :, :2]},
        "dout must be [batch, heads, seq_q, head_dim_v] = [1, 2, 3, 8], got [1, 2, 2, 8]",
    ),
    "dout of another type": (
        lambda a: {"dout": a["dout"].astype(np.float32)},
        "dout must be float16, as out is, got float32; convert with dout.astype('float16')",
    ),
    "dout with steps between columns": (
        lambda a: {"dout": np.repeat(a["dout"], 2, axis=3)[..., ::2]},
        "dout must be dense in its last dimension (stride 1), got strides [96, 48, 16, 2] for shape "
        "[1, 2, 3, 8]; copy it with dout.copy()",
    ),
    "out of another shape": (
        lambda a: {"out": a["out"][..., :7]},
        "out must be [batch, heads, seq_q, head_dim_v] = [1, 2, 3, 8], got [1, 2, 3, 7]",
    ),
    "out of another type": (
        lambda a: {"out": a["out"].astype(np.float32)},
        "out must be float16, {said}, got float32; convert with out.astype('float16')",
    ),
    "lse of another shape": (
        lambda a: {"lse": a["lse"].swapaxes(1, 2).copy()},
        "lse must be [batch, heads, seq_q] = [1, 2, 3], got [1, 3, 2]",
    ),
    "lse of another type": (
        lambda a: {"lse": a["lse"].astype(np.float64)},
        "lse must be float32, got float64; convert with lse.astype('float32')",
    ),
    "lse with gaps": (
        lambda a: {"lse": np.repeat(a["lse"], 2, axis=2)[..., ::2]},
        "lse must be dense, as `attention` returns it, got strides [12, 6, 2] for shape [1, 2, 3]; copy it "
        "with lse.copy()",
    ),
    "dlse of another shape": (
        lambda a: {"dlse": a["lse"][0]},
        "dlse must be [batch, heads, seq_q] = [1, 2, 3], got [2, 3]",
    ),
    "dlse of another type": (
        lambda a: {"dlse": a["lse"].astype(np.float16)},
        "dlse must be float32, got float16; convert with dlse.astype('float32')",
    ),
    "dq of another shape": (
        lambda _: {"dq": half(1, 2, 3, 9)},
        "dq must be [batch, heads, seq_q, head_dim] = [1, 2, 3, 8], got [1, 2, 3, 9]",
    ),
    "dk of another type": (
        lambda _: {"dk": np.zeros((1, 1, 4, 8), np.float32)},
        "dk must be float16, as k is, got float32; convert with dk.astype('float16')",
    ),
    "dv that cannot be written": (
        lambda _: {"dv": frozen(half(1, 1, 4, 8))},
        "dv must be writable, got a read-only array; pass a writable one",
    ),
    "dk whose rows are one": (
        lambda _: {"dk": np.lib.stride_tricks.as_strided(half(8), (1, 1, 4, 8), (0, 0, 0, 2))},
        "dk must have an element of its own for each index, got strides [0, 0, 0, 1] for shape [1, 1, 4, 8]; "
        "copy it with dk.copy()",
    ),
    "dq that is q": (
        lambda a: {"dq": a["q"]},
        "dq must not share memory with q; leave dq=None, or pass an array of its own",
    ),
    "dk that is dv": (
        lambda _: dict.fromkeys(("dk", "dv"), half(1, 1, 4, 8)),
        "dk must not share memory with dv; leave dk=None, or pass an array of its own",
    ),
    "several": (
        lambda a: {"dout": a["dout"][0], "lse": a["lse"][0], "dv": half(2)},
        "3 problems\n"
        "  dout must be [batch, heads, seq_q, head_dim_v] = [1, 2, 3, 8], got [2, 3, 8]\n"
        "  dv must be [batch, kv_heads, seq_k, head_dim_v] = [1, 1, 4, 8], got [2]\n"
        "  lse must be [batch, heads, seq_q] = [1, 2, 3], got [2, 3]",
    ),
    "no arrays": (
        lambda _: {"dout": None, "lse": "lse"},
        "2 problems\n"
        "  dout must be an array (numpy, torch, or with __cuda_array_interface__ or __dlpack__), got "
        "NoneType; convert with numpy.asarray(dout, numpy.float32)\n"
        "  lse must be an array (numpy, torch, or with __cuda_array_interface__ or __dlpack__), got str; "
        "convert with numpy.asarray(lse, numpy.float32)",
    ),
    "another layout": (
        lambda _: {"layout": "bsdh"},
        "layout must be one of bhsd, bshd, got 'bsdh'; did you mean 'bshd'?",
    ),
    "a stream without a GPU": (
        lambda _: {"stream": 0},
        "stream is for a GPU, but the backend is 'cpu'; leave out the stream",
    ),
    "wanted without such an array": (
        lambda _: {"wanted": ["bias"]},
        "wanted must name arrays of the call with a gradient (none here, because {none}), got 'bias'",
    ),
    "wanted that is no name": (
        lambda _: {"wanted": 3},
        "wanted must name arrays of the call with a gradient (none here, because {none}), got 3",
    ),
    "a scale that is none": (
        lambda _: {"softmax_scale": "big"},
        "softmax_scale must be a number of at most 1.70141e+38 either way, or None for {scale}, got 'big'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("by_class", [False, True], ids=["function", "class"])
@pytest.mark.parametrize("name", CASES)
def test_a_wrong_argument_is_named_with_what_was_wanted(name: str, by_class: bool) -> None:
    change, said = CASES[name]
    arrays = arrays_of()
    arrays |= change(arrays)
    call = flash.AttentionGradient(CONFIG).launch if by_class else flash.attention_backward
    refused = refusal(call, **arrays, backend="cpu")
    caller = "AttentionGradient.launch" if by_class else "attention_backward"
    none = "the config asks for no such array" if by_class else "none is given"
    scale = "the config's 0.353553" if by_class else "1/sqrt(head_dim)"
    why = "as the config says" if by_class else "as q is"
    assert refused == f"{caller}: {said.format(none=none, said=why, scale=scale)}"


def test_unknown_names_are_python_errors() -> None:
    assert refusal(flash.attention_backward, error=TypeError, **arrays_of(), windw=(1, 1)) == (
        "attention_backward() got an unexpected keyword argument 'windw'; did you mean 'window'?"
    )
    assert refusal(flash.AttentionGradient(CONFIG).launch, error=TypeError, **arrays_of(), sinks=1) == (
        "AttentionGradient.launch() got an unexpected keyword argument 'sinks'; did you mean 'sink'?"
    )


def test_arrays_that_the_config_wants_or_not() -> None:
    sink = np.zeros(2, np.float32)
    assert refusal(flash.AttentionGradient(CONFIG).launch, **arrays_of(), sink=sink) == (
        "AttentionGradient.launch: sink is given, but the config does not say so; use "
        "AttentionConfig(sink=True, ...)"
    )
    config = flash.AttentionConfig(8, dtype="f16", sink=True)
    assert refusal(flash.AttentionGradient(config).launch, **arrays_of()) == (
        "AttentionGradient.launch: sink must be given, because the config says sink=True"
    )
    assert refusal(flash.AttentionGradient(config).launch, **arrays_of(), sink=sink, wanted=["snk"]) == (
        "AttentionGradient.launch: wanted must name arrays of the call with a gradient (sink), got 'snk'; "
        "did you mean 'sink'?"
    )


@pytest.mark.parametrize("side", ["q", "k"])
def test_longest_sequences_are_for_packed_ones(side: str) -> None:
    assert refusal(flash.AttentionGradient(CONFIG).launch, **arrays_of(), **{f"max_seqlen_{side}": 3}) == (
        f"AttentionGradient.launch: max_seqlen_{side} is given, but the config does not say varlen; use "
        "AttentionConfig(varlen=True, ...)"
    )


def packed() -> dict[str, Any]:
    lengths = {f"cu_seqlens_{side}": np.array([0, 2, 5], np.int32) for side in "qk"}
    dense = {n: half(5, 2, 8) for n in ("dout", "q", "k", "v", "out")}
    return {**dense, "lse": np.zeros((2, 5), np.float32), **lengths}


def test_a_longest_sequence_that_is_too_long_takes_no_ctas() -> None:
    """The lengths on the host say how many rows there are."""
    arrays = {**packed(), "backend": "interpreter"}
    kernel = flash.AttentionGradient(flash.AttentionConfig(8, dtype="f16", varlen=True))
    most = {"max_seqlen_q": 2**29, "max_seqlen_k": 2**29}
    assert kernel.explain(**arrays, **most) == kernel.explain(**arrays)
    for result, wanted in zip(kernel.launch(**arrays, **most)[:3], kernel.launch(**arrays)[:3], strict=True):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        *[
            (
                {f"max_seqlen_{side}": 2},
                f"max_seqlen_{side} must be at least 3, the {what} of sequence 1, got 2; leave it out to "
                "have it found",
            )
            for side, what in (("q", "queries"), ("k", "keys"))
        ],
        ({"lse": np.zeros((5, 2), np.float32)}, "lse must be [heads, total_q] = [2, 5], got [5, 2]"),
        (
            {"cu_seqlens_k": np.array([0, 2, 6], np.int32)},
            "cu_seqlens_k[2] must be from 2, which is cu_seqlens_k[1], to 5, the rows of k, got 6",
        ),
        ({"cu_seqlens_k": None}, "cu_seqlens_k must be given"),
    ],
)
def test_lengths_and_rows_of_packed_sequences(how: dict[str, Any], message: str) -> None:
    refused = refusal(flash.attention_varlen_backward, **{**packed(), **how}, backend="cpu")
    assert refused == f"attention_varlen_backward: {message}"


def test_configs_without_gradients() -> None:
    in_pages = flash.AttentionConfig(8, varlen=True, page_size=4)
    assert refusal(flash.AttentionGradient, 64, error=ConfigError) == (
        "AttentionGradient: config must be an AttentionConfig, got 64; make one with "
        "flash.AttentionConfig(head_dim=64)"
    )
    assert refusal(flash.AttentionGradient, in_pages, error=ConfigError) == (
        "AttentionGradient: config must be one without pages, got page_size=4; keys in pages have no "
        "gradients, pass them packed"
    )


def test_kernels_that_shared_memory_does_not_hold_are_refused() -> None:
    config = flash.AttentionConfig(200, target="sm_75")
    arrays = call_of(config, seq_q=3, seq_k=4)
    kernel = flash.AttentionGradient(config)
    said = (
        "head_dim=200, head_dim_v=200 needs 72704 bytes of shared memory, but sm_75 allows 65536 bytes per "
        "block; only backend 'cpu' computes these gradients"
    )
    refused = refusal(kernel.launch, error=ConfigError, **arrays, backend="interpreter")
    assert refused == f"AttentionGradient.launch: {said}"
    assert refusal(lambda: kernel.builds, error=ConfigError) == f"AttentionGradient: {said}"
    kernel.launch(**arrays, backend="cpu")


@pytest.mark.parametrize("dims", [(8, 264), (264, 8)])
def test_rows_that_are_too_wide_before_sm_80_are_refused(dims: tuple[int, int]) -> None:
    config = flash.AttentionConfig(dims[0], head_dim_v=dims[1], dtype="f16", target="sm_75")
    kernel, arrays = flash.AttentionGradient(config), call_of(config, seq_q=3, seq_k=4)
    assert refusal(kernel.launch, error=ConfigError, **arrays, backend="interpreter") == (
        "AttentionGradient.launch: head_dim and head_dim_v must be at most 256 in kernels of gradients on "
        f"sm_75, got {dims[0]} and {dims[1]}; only backend 'cpu' computes gradients of wider rows"
    )
    kernel.launch(**arrays, backend="cpu")


def test_gradients_of_elements_of_aux_with_wider_rows_are_refused() -> None:
    config = flash.AttentionConfig(
        264, dtype="f16", target="sm_80", score_mod=_of_head, aux={"slopes": ("f32", 1)}
    )
    arrays = call_of(config, seq_q=3, seq_k=4, aux={"slopes": np.ones(2, np.float32)})
    arrays |= {"aux": {"slopes": np.ones(2, np.float32)}, "wanted": ["aux_slopes"]}
    kernel = flash.AttentionGradient(config)
    assert refusal(kernel.launch, error=ConfigError, **arrays, backend="interpreter") == (
        "AttentionGradient.launch: head_dim and head_dim_v must be at most 256 in kernels of gradients on "
        "sm_80, got 264 and 264; only backend 'cpu' computes gradients of wider rows"
    )
    kernel.launch(**arrays, backend="cpu")


def _of_head(score: Any, batch: Any, head: Any, query: Any, key: Any, slopes: Any) -> Any:  # noqa: ARG001
    return score * slopes[head]


@pytest.mark.parametrize("precision", ["tf32", "f32_grade"])
def test_tensor_cores_without_room_for_f32_are_refused(precision: str) -> None:
    config = flash.AttentionConfig(264, precision=precision, target="sm_86")
    kernel, arrays = flash.AttentionGradient(config), call_of(config, seq_q=3, seq_k=4)
    assert refusal(kernel.launch, error=ConfigError, **arrays, backend="interpreter") == (
        "AttentionGradient.launch: head_dim=264, head_dim_v=264 needs 103424 bytes of shared memory, but "
        "sm_86 allows 101376 bytes per block; use precision='ieee', whose tiles may be smaller, or backend "
        "'cpu'"
    )


@pytest.mark.parametrize("backend", ["gpu", 3])
def test_an_unknown_backend(backend: Any) -> None:
    with pytest.raises(ConfigError, match=r"^attention_backward: backend must be one of "):
        flash.attention_backward(**arrays_of(), backend=backend)


def test_a_setting_that_is_none_names_the_function() -> None:
    with pytest.raises(ConfigError) as caught:
        flash.attention_backward(**arrays_of(), softcap=-1.0)
    assert str(caught.value).startswith("attention_backward: softcap must be ")
    assert refusal(flash.attention_backward, **{**arrays_of(), "q": np.zeros((1, 2, 3, 8))}) == (
        "attention_backward: q must be one of float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, got "
        "float64; convert q, k and v, such as with q.astype('float32')"
    )


@pytest.mark.parametrize("name", ["dout", "q", "out", "lse"])
def test_gradients_of_gradients_are_refused(name: str, torch: ModuleType) -> None:
    arrays = {n: torch.from_numpy(a) for n, a in arrays_of().items()}
    arrays[name].requires_grad_()
    assert refusal(flash.attention_backward, **arrays, backend="cpu") == (
        f"attention_backward: {name} requires gradients, but gradients of gradients are not computed: they "
        f"would be lost without a word; call inside torch.no_grad(), or pass {name}.detach()"
    )


def test_a_result_that_requires_gradients_is_refused(torch: ModuleType) -> None:
    arrays = {n: torch.from_numpy(a) for n, a in arrays_of().items()}
    dq = torch.zeros_like(arrays["q"]).requires_grad_()
    assert refusal(flash.attention_backward, **arrays, dq=dq, backend="cpu") == (
        "attention_backward: dq must be writable, got a tensor that requires gradients; pass dq.detach()"
    )


# --------------------------------------------------------------------------- with a fake GPU


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    without_assembler(monkeypatch)
    return FakeDriver(FakeDevice(), FakeDevice())


def kernel_on(driver: FakeDriver, config: flash.AttentionConfig = CONFIG) -> flash.AttentionGradient:
    return flash.AttentionGradient(config, cuda=CudaBackend(driver), cache=ModuleCache(None))


def refused(driver: FakeDriver, call: Callable[..., object], **given: Any) -> str:
    """The error of a call, before which nothing is allocated, copied or launched."""
    driver.calls.clear()
    with pytest.raises((LaunchError, ConfigError)) as caught:
        call(**given)
    assert not NO_WORK & set(driver.names())
    return str(caught.value)


def test_an_array_on_another_device(driver: FakeDriver) -> None:
    arrays = arrays_of()
    there = {n: on_device(driver, a) for n, a in arrays.items()}
    kernel = kernel_on(driver)
    said = refused(driver, kernel.launch, **{**there, "dout": arrays["dout"]})
    assert said == (
        "AttentionGradient.launch: all arrays must be on one device, got dout on cpu, q on cuda:0, k on "
        "cuda:0, v on cuda:0, out on cuda:0, lse on cuda:0; move them to that of q"
    )
    said = refused(driver, kernel.launch, **{**there, "lse": on_device(driver, arrays["lse"], 1)})
    assert said.endswith("out on cuda:0, lse on cuda:1; move them to that of q")


def test_arrays_on_a_gpu_for_a_backend_of_the_host(driver: FakeDriver) -> None:
    there = {n: on_device(driver, a) for n, a in arrays_of().items()}
    assert refused(driver, kernel_on(driver).launch, **there, backend="cpu") == (
        "AttentionGradient.launch: backend 'cpu' computes on the host, but q is on cuda:0; copy the arrays "
        "to the host, or use backend='cuda'"
    )


@pytest.mark.parametrize("side", ["q", "k"])
def test_lengths_on_a_gpu_need_the_longest(side: str, driver: FakeDriver) -> None:
    config = flash.AttentionConfig(8, dtype="f16", varlen=True)
    there = {n: on_device(driver, a) for n, a in packed().items()}
    other = "k" if side == "q" else "q"
    said = refused(driver, kernel_on(driver, config).launch, **there, **{f"max_seqlen_{other}": 3})
    what = {"q": "queries", "k": "keys"}[side]
    assert said == (
        f"AttentionGradient.launch: max_seqlen_{side} must be given, because cu_seqlens_{side} is on cuda:0, "
        f"which a launch does not wait for; pass the most {what} of a sequence"
    )


def test_a_stream_that_is_none(driver: FakeDriver) -> None:
    said = refused(driver, kernel_on(driver).launch, **arrays_of(), stream="s")
    assert said == (
        "AttentionGradient.launch: stream must be None, the integer of a CUstream, or an object with "
        "__cuda_stream__, cuda_stream or ptr, got 's'"
    )


def test_what_no_kernel_computes_is_refused_before_work(driver: FakeDriver) -> None:
    config = flash.AttentionConfig(200, target="sm_75")
    said = refused(
        driver, kernel_on(driver, config).launch, **call_of(config, seq_q=3, seq_k=4), backend="cuda"
    )
    assert said.startswith("AttentionGradient.launch: head_dim=200, head_dim_v=200 needs 72704 bytes")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"dtype": "bf16"},
            "dtype='bf16' needs sm_80 or later, before which tensor cores multiply f16 alone, got sm_75; use "
            "dtype='f16' or 'f32'",
        ),
        (
            {"precision": "tf32"},
            "precision='tf32' needs sm_80 or later, whose tensor cores and asynchronous copies the kernel "
            "uses, got sm_75; use precision='ieee'",
        ),
    ],
)
def test_elements_that_early_tensor_cores_do_not_multiply_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    config = flash.AttentionConfig(8, **settings)
    driver = FakeDriver(FakeDevice(sm=75))
    message = refused(driver, kernel_on(driver, config).launch, **call_of(config, seq_q=3, seq_k=4))
    assert message == f"AttentionGradient.launch: {said}"


def test_a_device_that_does_not_hold_a_kernel_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    without_assembler(monkeypatch)
    driver = FakeDriver(FakeDevice(sm=86, shared_per_block_optin=1000))
    config = flash.AttentionConfig(8, dtype="f16", target="sm_80")
    said = refused(driver, kernel_on(driver, config).launch, **arrays_of(), backend="cuda")
    assert said == (
        "AttentionGradient.launch: a kernel for sm_80 needs 24576 bytes of shared memory per block, but "
        "device 0 (Fake H100, sm_86) allows 1000; leave target=None"
    )
