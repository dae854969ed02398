"""A default device of PyTorch, such as the meta device in which large models are made, is that of no tensor
of a call: results are those without one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import flash
import ptxgen

WORLD = 2
ROWS = 16  # of each rank
CALLS = (
    *("ring", "gather", "ulysses", "gradients", "packed", "array of numpy", "no elements", "unshard"),
    "cache",
)

_SEEN = np.arange(4) != 2


def _of_a_global(batch: Any, head: Any, query: Any, key: Any) -> Any:  # noqa: ARG001
    return _SEEN[key % 4]


def calls_of(torch: Any, what: str) -> Callable[[int], Any]:
    """A call of each rank, whose tensors are on the host; it gives lists."""
    from flash.distributed import ContextParallel, ShardedKVCache

    def rows(*shape: int) -> Any:
        return torch.arange(int(np.prod(shape)), dtype=torch.float32, device="cpu").reshape(shape).sin()

    x, token = rows(1, 2, ROWS, 8), rows(1, 2, 1, 8)
    ends = torch.tensor([0, 3, 7, 8, 19, 2 * ROWS], dtype=torch.int32, device="cpu")

    def call(rank: int) -> Any:
        own = x + rank
        if what in ("ring", "gather", "ulysses"):
            result = ContextParallel(None, "zigzag", what).attention(own, own, own, causal=True)  # type: ignore[arg-type]
        elif what == "gradients":
            leaf = own.clone().requires_grad_()
            ContextParallel(None, "zigzag", "ring").attention(leaf, leaf, leaf).sum().backward()
            result = leaf.grad
        elif what == "packed":
            documents = own[0].transpose(0, 1)
            cp = ContextParallel(None, "zigzag", "ring")
            result = cp.attention(documents, documents, documents, cu_seqlens_q=ends, causal=True)
        elif what == "array of numpy":
            cp = ContextParallel(None, "contiguous", "ring")
            result = cp.attention(own, own, own, mask_mod=_of_a_global)
        elif what == "no elements":
            result = ContextParallel(None, "contiguous", "ring").attention(*[own[..., :0, :]] * 3)
        elif what == "unshard":
            result = ContextParallel(None, "striped", "ring").unshard(own)
        else:
            cache = ShardedKVCache(ContextParallel(None, "striped", "ring"), 1, 3, 2, 8, 64, page_size=4)
            cache.append(0, token, token, [0])
            result = cache.attention(token, 0, token, token, sequences=[0])
        return result.tolist()

    return call


@pytest.mark.parametrize("what", CALLS)
def test_the_default_device_changes_no_result(torch: ModuleType, what: str) -> None:
    from thread_ranks import ThreadRanks, one_thread

    call = calls_of(torch, what)

    def elsewhere(rank: int) -> Any:
        with torch.device("meta"):
            return call(rank)

    with one_thread():
        wanted, result = (ThreadRanks(WORLD).run(one) for one in (call, elsewhere))
    for ours, theirs in zip(result, wanted, strict=True):
        assert (ours.error, theirs.error) == (None, None)
        assert ours.gave == theirs.gave


@pytest.mark.slow
@pytest.mark.usefixtures("torch")
def test_each_tensor_of_the_product_names_its_device() -> None:
    from torch.utils._device import _device_constructors

    of_default = {function.__name__ for function in _device_constructors()}
    calls, without = 0, []
    for package in (flash, ptxgen):
        for path in sorted(Path(str(package.__file__)).parent.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                if not isinstance(node, ast.Call) or not name.startswith("torch."):
                    continue
                if name.removeprefix("torch.") in of_default:
                    calls += 1
                    if all(keyword.arg != "device" for keyword in node.keywords):
                        without.append(f"{path}:{node.lineno}: {name}")
    assert calls > 10
    assert without == []
