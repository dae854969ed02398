"""`replace_sdpa` and torch.compile: what is compiled inside a block, outside it, and before its first use."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ptxgen.errors import LaunchError

OURS, PYTORCHS = "ptxgen_flash.attention.default", "<built-in function scaled_dot_product_attention>"


class Graphs:
    """A backend that lists which of the two functions each compiled graph calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, graph: Any, _: object) -> Any:
        targets = [str(node.target) for node in graph.graph.nodes]
        self.calls += [target for target in targets if target in (OURS, PYTORCHS)]
        return graph.forward


@pytest.fixture
def graphs(torch: Any) -> Graphs:
    torch.compiler.reset()
    return Graphs()


def functions() -> dict[str, Callable[..., Any]]:
    """PyTorch's function, as models call it."""
    from torch.nn import functional
    from torch.nn.functional import scaled_dot_product_attention as imported

    return {
        "attribute": lambda *x, **how: functional.scaled_dot_product_attention(*x, **how),
        "imported": lambda *x, **how: imported(*x, **how),
        "builtin": imported,
    }


NAMES = ("attribute", "imported", "builtin")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_function_compiled_inside(ours: Any, torch: Any, graphs: Graphs, name: str) -> None:
    q, function = torch.randn(1, 2, 5, 8), functions()[name]
    wanted = function(q, q, q)
    with ours.replace_sdpa():
        compiled = torch.compile(function, fullgraph=True, backend=graphs)
        torch.testing.assert_close(compiled(q, q, q), wanted)
        assert graphs.calls == [OURS]
    torch.testing.assert_close(compiled(q, q, q), wanted)
    assert graphs.calls == [OURS, PYTORCHS]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_function_compiled_outside_is_compiled_once_more(
    ours: Any, torch: Any, graphs: Graphs, name: str
) -> None:
    """However often blocks begin and end."""
    q = torch.randn(1, 2, 5, 8)
    compiled = torch.compile(functions()[name], fullgraph=True, backend=graphs)
    for _ in range(3):
        compiled(q, q, q)
        with ours.replace_sdpa():
            compiled(q, q, q)
    assert graphs.calls == [PYTORCHS, OURS]


def test_the_function_that_is_the_attribute_inside(ours: Any, torch: Any, graphs: Graphs) -> None:
    q = torch.randn(1, 2, 5, 8)
    with ours.replace_sdpa():
        sdpa = torch.nn.functional.scaled_dot_product_attention
        compiled = torch.compile(sdpa, fullgraph=True, backend=graphs)
        compiled(q, q, q)
    compiled(q, q, q)
    assert graphs.calls == [OURS, PYTORCHS]


def test_the_first_block_of_a_process(ours: Any, torch: Any, graphs: Graphs) -> None:
    """PyTorch lists once which functions modes replace, by the names that they have at that time."""
    from torch._dynamo.variables.torch import get_overridable_functions as of_dynamo

    for listed in (torch.overrides._get_overridable_functions, of_dynamo):
        listed.cache_clear()
    q = torch.randn(1, 2, 5, 8)
    with ours.replace_sdpa():
        torch.compile(functions()["imported"], fullgraph=True, backend=graphs)(q, q, q)
    assert graphs.calls == [OURS]


def test_arguments_of_the_block(ours: Any, torch: Any, graphs: Graphs) -> None:
    q = torch.randn(1, 2, 5, 8)
    compiled = torch.compile(functions()["attribute"], fullgraph=True, backend=graphs)
    with ours.replace_sdpa():
        with ours.replace_sdpa(splits=1):
            compiled(q, q, q)
        compiled(q, q, q)
        assert graphs.calls == [OURS, OURS]
        with pytest.raises(Exception, match="must be of one type of float32, float16, bfloat16, got float64"):
            compiled(q.double(), q.double(), q.double())
    with ours.replace_sdpa(fallback=True):
        compiled(q.double(), q.double(), q.double())
    assert graphs.calls == [OURS, OURS, PYTORCHS]


def test_a_thread_outside_compiles_pytorchs(ours: Any, torch: Any, graphs: Graphs) -> None:
    from torch.nn.attention.bias import causal_lower_right

    q, k, bias = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8), causal_lower_right(5, 7)
    compiled = torch.compile(functions()["attribute"], fullgraph=True, backend=graphs)
    results: list[Any] = []
    other = threading.Thread(target=lambda: results.append(compiled(q, k, k, attn_mask=bias)))
    with ours.replace_sdpa():
        other.start()
        other.join()
    assert graphs.calls == [PYTORCHS]
    torch.testing.assert_close(results[0], functions()["imported"](q, k, k, attn_mask=bias))


def test_a_block_within_compiled_code(ours: Any, torch: Any, graphs: Graphs) -> None:
    """Graphs end at the block."""

    def block(x: Any) -> Any:
        with ours.replace_sdpa():
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    q = torch.randn(1, 2, 5, 8)
    torch.compile(block, backend=graphs)(q)
    assert graphs.calls == [OURS]
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(block, fullgraph=True, backend=graphs)(q)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_modules_of_torch(
    ours: Any, torch: Any, graphs: Graphs, monkeypatch: pytest.MonkeyPatch, backend: str, training: bool
) -> None:
    from flash.adapters.torch import sdpa

    assert graphs.calls == []
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).train(training)
    x, attention = torch.randn(2, 5, 16), sdpa.attention
    wanted, calls = layer(x), []

    def counted(*x: Any, **how: Any) -> Any:
        calls.append(how)
        return attention(*x, **how)

    monkeypatch.setattr(sdpa, "attention", counted)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    with ours.replace_sdpa():
        torch.testing.assert_close(compiled(x), wanted, atol=2e-5, rtol=2e-5)
    assert calls
    calls.clear()
    torch.testing.assert_close(compiled(x), wanted, atol=2e-5, rtol=2e-5)
    assert not calls


@pytest.mark.parametrize("variant", ["upper_left", "lower_right"])
@pytest.mark.parametrize(
    ("backend", "name"),
    [
        *(("aot_eager", name) for name in NAMES),
        pytest.param("inductor", NAMES[0], marks=pytest.mark.slow),
        *(pytest.param("inductor", name, marks=pytest.mark.nightly) for name in NAMES[1:]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")  # by inductor itself
def test_causal_biases(ours: Any, torch: Any, graphs: Graphs, backend: str, name: str, variant: str) -> None:
    """Results and gradients inside a block beside those of PyTorch outside."""
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor compiles for the CPU by g++, which is not installed")
    from torch.nn.attention import bias as biases

    bias = getattr(biases, f"causal_{variant}")(5, 7)
    q, k = torch.randn(1, 2, 5, 8, requires_grad=True), torch.randn(1, 2, 7, 8, requires_grad=True)
    weights, function = torch.randn(1, 2, 5, 8), functions()[name]

    def results(function: Callable[..., Any]) -> list[Any]:
        out = function(q, k, k, attn_mask=bias)
        return [out, *torch.autograd.grad(out, (q, k), weights)]

    wanted = results(function)
    with ours.replace_sdpa():
        result = results(torch.compile(function, fullgraph=True, backend=backend))
        torch.compiler.reset()
        torch.compile(function, fullgraph=True, backend=graphs)(q, k, k, attn_mask=bias)
    assert graphs.calls == [OURS]
    for ours_of, theirs in zip(result, wanted, strict=True):
        torch.testing.assert_close(ours_of, theirs, atol=2e-6, rtol=2e-5)


# ------------------------------------------------------------------------------ errors


@pytest.mark.parametrize("fallback", [False, True])
def test_arguments_that_do_not_fit_name_the_function(ours: Any, torch: Any, fallback: bool) -> None:
    q = torch.randn(1, 2, 5, 8)
    with ours.replace_sdpa(fallback=fallback):
        for sdpa in (torch.nn.functional.scaled_dot_product_attention, functions()["builtin"]):
            with pytest.raises(TypeError) as caught:
                sdpa(q, q, q, mask=q)
            assert str(caught.value) == (
                "scaled_dot_product_attention() got an unexpected keyword argument 'mask'"
            )
            with pytest.raises(TypeError) as caught:
                sdpa(q, q)
            assert str(caught.value) == (
                "scaled_dot_product_attention() missing 1 required positional argument: 'value'"
            )
    assert not isinstance(caught.value, LaunchError)
