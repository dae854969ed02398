"""PyTorch and projects that ask it for a GPU, on the emulated one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ptxgen.errors import BackendError

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROJECT = """
import numpy as np
import ptxgen as px
import pytest
import torch
import triton
import triton.language as tl
from ptxgen import Pointer, f32

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
DEVICE = triton.runtime.driver.active.get_active_torch_device()

@triton.jit
def scale_kernel(x, out, n, by, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n if MASKED else None)
    tl.store(out + at, v * by, mask=at < n)

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by, masked):
        ctx.by = by
        return scaled(x, by, masked)

    @staticmethod
    def backward(ctx, gradient):
        assert gradient.device == DEVICE
        return scaled(gradient.contiguous(), ctx.by), None, None

def scaled(x, by, masked=True):
    assert x.is_cuda
    out = torch.empty(x.shape, device=x.device)
    scale_kernel[lambda meta: (triton.cdiv(len(x), meta["BLOCK"]),)](x, out, len(x), by, 64, masked)
    return out

@px.kernel(threads=32)
def doubled(k, X: Pointer[f32]):
    i = k.block_id() * 32 + k.thread_id()
    X[i] = X[i] * 2

def test_triton_forward_and_backward():
    x = torch.randn(100, device="cuda", requires_grad=True)
    y = Scale.apply(x, 3.0, True)
    torch.testing.assert_close(y, x * 3)
    y.sum().backward()
    assert x.grad.cpu().tolist() == [3] * 100
    assert torch.cuda.get_device_capability() == (9, 0)
    with pytest.raises(triton.CompilationError):
        scale_kernel.warmup(x, x, 100, x, 64, True, grid=(1,))  # a product with a pointer

def test_kernel_of_ptxgen():
    x = torch.ones(64, device=torch.cuda.current_device())
    doubled[2](x)
    assert x.tolist() == [2] * 64

def test_out_of_bounds():
    Scale.apply(torch.randn(100, device="cuda"), 3.0, False)

def test_out_of_bounds_and_caught():
    try:
        Scale.apply(torch.randn(100, device="cuda"), 3.0, False)
    except Exception:
        pass

def test_out_of_bounds_of_ptxgen():
    doubled[3](torch.ones(64, device="cuda"))

def test_tensor_of_the_host():
    with pytest.raises(ValueError, match=r"Pointer argument \\(at 0\\) cannot be accessed from Triton"):
        scale_kernel[1,](torch.ones(64), torch.empty(64, device="cuda"), 64, 1.0, 64, True)

def test_without_an_answer():
    torch.cuda.CUDAGraph()
"""


def test_a_project_that_asks_for_a_gpu_runs_unchanged(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, torch: Any, triton: Any
) -> None:
    assert torch
    assert triton
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(test_project=PROJECT)
    command = ["-p", "ptxgen.pytest_plugin", "-p", "no:cacheprovider"]
    pytester.runpytest_subprocess(*command).assert_outcomes(skipped=1)
    result = pytester.runpytest_subprocess(*command, "--gpu=interpreter", "--gpu-target=sm_90")
    result.assert_outcomes(passed=3, failed=4)
    result.stdout.fnmatch_lines(
        [
            "*FoundError: scale_kernel: 1 problem found:",
            "*test_project.py:16: v = tl.load(*after the end of x *",
            "*_ test_out_of_bounds_and_caught _*",
            "kernel scale_kernel on the PTX interpreter:",
            "*FoundError: doubled: 1 problem found:",
            "*BackendError: torch.cuda.CUDAGraph is not answered under --gpu=interpreter: *",
            "scale_kernel * 4 runs * 2 findings",
            "doubled      * 2 runs * 1 finding",
        ]
    )


@pytest.fixture
def t(torch: Any) -> Iterator[Any]:
    """PyTorch with an emulated GPU."""
    from ptxgen.frontends.emulated.gpu import emulated_gpu

    with emulated_gpu(target="sm_90"):
        yield torch
    assert not torch.cuda.is_available()
    assert torch.ones(1).device.type == "cpu"


def in_a_thread(t: Any) -> Any:
    tensors: list[Any] = []
    thread = threading.Thread(target=lambda: tensors.append(t.ones(3, device="cuda")))
    thread.start()
    thread.join()
    return tensors[0]


def by_default(t: Any) -> Any:
    with t.device("cuda"):
        return t.ones(3)


def gradient(t: Any, device: str) -> Any:
    """The gradient of a leaf on a device, of a sum on the other."""
    leaf = t.ones(3, device=device, requires_grad=True)
    (leaf.to("cuda" if device == "cpu" else "cpu") * 2).sum().backward()
    return leaf.grad


ON: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a factory": ("cuda", lambda t: t.zeros(3, device="cuda")),
    "a factory of the host": ("cpu", lambda t: t.zeros(3)),
    "numbers": ("cuda", lambda t: t.tensor([1.0], device=t.device("cuda", 0))),
    "numbers from a GPU": ("cpu", lambda t: t.tensor([t.ones((), device="cuda"), 2.0])),
    "a view": ("cuda", lambda t: t.zeros(3, 4, device="cuda").t()[1:]),
    "like one": ("cuda", lambda t: t.zeros_like(t.zeros(3, device="cuda"))),
    "like one, elsewhere": ("cpu", lambda t: t.zeros_like(t.zeros(3, device="cuda"), device="cpu")),
    "new numbers": ("cuda", lambda t: t.zeros(3, device="cuda").new_tensor([1, 2])),
    "a copy": ("cuda", lambda t: t.ones(3).cuda()),
    "a copy of another type": ("cuda", lambda t: t.ones(3).to(device="cuda", dtype=t.float16)),
    "as another": ("cuda", lambda t: t.ones(3).to(t.ones(1, device="cuda"))),
    "a copy back": ("cpu", lambda t: t.ones(3, device="cuda").cpu()),
    "a composite function": ("cuda", lambda t: t.nn.functional.one_hot(t.tensor([1], device="cuda"), 3)),
    "a number of the host": ("cuda", lambda t: t.ones(3, device="cuda") * t.tensor(2.0)),
    "indices of the host": ("cuda", lambda t: t.ones(3, device="cuda")[t.tensor([0, 2])]),
    "a module": ("cuda", lambda t: t.nn.Linear(3, 3).to("cuda").weight),
    "a module's result": ("cuda", lambda t: t.nn.Linear(3, 3).cuda()(t.ones(2, 3, device="cuda"))),
    "a gradient": ("cuda", lambda t: gradient(t, "cuda")),
    "a gradient of the host": ("cpu", lambda t: gradient(t, "cpu")),
    "a default": ("cuda", by_default),
    "a thread": ("cuda", in_a_thread),
    "vmap": ("cuda", lambda t: t.func.vmap(lambda x: x * t.ones(3, device="cuda"))(t.ones(2, 3).cuda())),
    "random": ("cuda", lambda t: t.rand(3, device="cuda", generator=t.Generator("cuda").manual_seed(1))),
}  # fmt: skip


@pytest.mark.parametrize("what", ON)
def test_tensors_say_where_they_are(t: Any, what: str) -> None:
    device, make = ON[what]
    tensor = make(t)
    where = t.device("cuda", 0) if device == "cuda" else t.device("cpu")
    said = tensor.device, tensor.is_cuda, tensor.is_cpu, tensor.untyped_storage().device
    assert said == (where, device == "cuda", device == "cpu", where)
    assert (device == "cuda") == ("device='cuda:0'" in repr(tensor))


def test_memory_is_shared_and_copied_as_on_a_gpu(t: Any) -> None:
    host = t.ones(3)
    there = host.to("cuda")
    assert there.to("cuda") is there
    assert host.to("cpu") is host
    there.cpu().zero_()
    there[1:].add_(1)
    assert (host.tolist(), there.tolist()) == ([1, 1, 1], [1, 2, 2])


def test_memory_is_counted(t: Any) -> None:
    before = t.cuda.memory_allocated()
    t.cuda.reset_peak_memory_stats()
    x = t.ones(1000, device="cuda")
    assert t.cuda.memory_allocated() - before == 4096
    del x
    assert (t.cuda.memory_allocated(), t.cuda.max_memory_allocated()) == (before, before + 4096)


REFUSED: dict[str, tuple[type[Exception], str, Callable[[Any], Any]]] = {
    "two devices": (
        RuntimeError,
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (in "
        "aten.add.Tensor)",
        lambda t: t.ones(3) + t.ones(3, device="cuda"),
    ),
    "a second GPU": (
        RuntimeError,
        "CUDA error: invalid device ordinal (cuda:1; the interpreter is one GPU, cuda:0)",
        lambda t: t.ones(3, device="cuda:1"),
    ),
    "numpy": (
        TypeError,
        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
        "memory first.",
        lambda t: t.ones(3, device="cuda").numpy(),
    ),
    "a generator of the host": (
        RuntimeError,
        "Expected a 'cuda' device type for generator but found 'cpu'",
        lambda t: t.rand(3, device="cuda", generator=t.Generator()),
    ),
}
UNANSWERED: dict[str, Callable[[Any], Any]] = {
    "torch.cuda.memory_summary": lambda t: t.cuda.memory_summary(),
    "torch.cuda.graph": lambda t: t.cuda.graph(None),
    "torch.autocast('cuda') within torch.autocast('cpu')": lambda t: _nested(t, "cpu", "cuda"),
    "torch.autocast('cpu') within torch.autocast('cuda')": lambda t: _nested(t, "cuda", "cpu"),
    "a tensor of layout torch.sparse_coo on CUDA": lambda t: t.eye(3, device="cuda").to_sparse(),
    "Tensor.__dlpack__": lambda t: t.ones(3, device="cuda").__dlpack__(),
    "Tensor.type('torch.cuda.FloatTensor')": lambda t: t.ones(3).type("torch.cuda.FloatTensor"),
}


def _nested(t: Any, outer: str, inner: str) -> None:
    with t.autocast(outer, t.bfloat16), t.autocast(inner, t.bfloat16):
        pass


def test_autocast_gives_operators_the_types_that_a_gpu_gives_them(t: Any) -> None:
    x = t.randn(4, 4, device="cuda", requires_grad=True)
    layer, host = t.nn.Linear(4, 4).cuda(), t.randn(4, 4)
    labels = t.arange(4, device="cuda")
    with t.autocast("cuda", t.float16):
        y = layer(x)
        types = {
            "linear": y,
            "einsum": t.einsum("ij,jk", x, x),
            "softmax": y.softmax(-1),
            "sum, of a type": y.sum(dtype=t.float16),
            "sum": y.sum(),
            "cross_entropy": t.nn.functional.cross_entropy(y, labels),
            "layer_norm": t.nn.functional.layer_norm(y, (4,)),
            "addcmul": t.addcmul(x, y, y),
            "dot": t.dot(y[0], y[1]),
            "cat": t.cat([y, y]),
            "abs": y.abs(),
            "f64": x.double() @ x.double(),
            "host": host @ host,
        }
        with t.autocast("cuda", enabled=False):
            types["disabled"] = x @ x
        with pytest.raises(RuntimeError, match="are unsafe to autocast"):
            t.nn.functional.binary_cross_entropy(y.sigmoid(), y.sigmoid())
    assert {name: str(value.dtype).removeprefix("torch.") for name, value in types.items()} == {
        **dict.fromkeys(("linear", "einsum", "sum, of a type", "dot", "cat", "abs"), "float16"),
        **dict.fromkeys(("softmax", "sum", "cross_entropy", "layer_norm", "addcmul"), "float32"),
        "f64": "float64",
        "host": "float32",
        "disabled": "float32",
    }
    t.testing.assert_close(y, (x.half() @ layer.weight.half().T + layer.bias.half()), rtol=1e-3, atol=1e-3)
    types["softmax"].sum().backward()
    assert (x.grad.dtype, layer.weight.grad.device) == (t.float32, t.device("cuda", 0))
    assert (x @ x).dtype == t.float32
    with t.autocast("cpu", t.bfloat16):
        assert (host @ host).dtype == t.bfloat16


def test_autocast_knows_the_operators_that_pytorch_casts_on_cuda(torch: Any) -> None:
    from ptxgen.frontends.emulated.autocast import casts

    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    registered = {name.removeprefix("aten::") for name in names if has(name, "AutocastCUDA")}
    of_libraries = {name for name in registered if name.startswith("cudnn_")}
    assert set(casts()) & {name.removeprefix("aten::") for name in names} == registered - of_libraries


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_gpu_refuses_is_refused(t: Any, what: str) -> None:
    kind, message, call = REFUSED[what]
    with pytest.raises(kind) as caught:
        call(t)
    assert str(caught.value) == message


@pytest.mark.parametrize("call", UNANSWERED)
def test_what_has_no_answer_is_refused_by_name(t: Any, call: str) -> None:
    with pytest.raises(BackendError) as caught:
        UNANSWERED[call](t)
    assert str(caught.value).startswith(f"{call} is not answered under --gpu=interpreter: ")


def test_the_page_lists_what_is_answered(torch: Any) -> None:
    from ptxgen.frontends.emulated import answers
    from ptxgen.target import target

    page = (ROOT / "docs" / "other-languages.md").read_text()
    for module, of in ((torch.cuda, answers.of_cuda), (torch.accelerator, answers.of_accelerator)):
        row = next(line for line in page.splitlines() if line.startswith(f"| `{module.__name__}`"))
        missing = [name for name in of(target("sm_80")) if name[0] != "_" and f"`{name}`" not in row]
        assert missing == []
