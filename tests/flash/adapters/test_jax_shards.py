"""`jax.shard_map` around attention, beside the formula, with and without JAX's check of what varies over
the axes of a mesh.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

BATCH, HEADS, ROWS, DIM = 4, 2, 6, 8
SLOPES = (0.5, 0.25)


def formula(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    import jax

    numpy = jax.numpy
    at = numpy.arange(ROWS)
    bias = slopes[:, None, None] * (at - at[:, None]).astype(np.float32)
    scores = numpy.where(at <= at[:, None], q @ k.mT / DIM**0.5 + bias, -np.inf)
    return jax.nn.softmax(scores) @ v


def attended(q: Any, k: Any, v: Any, slopes: Any) -> Any:
    from flash.adapters.jax import attention

    return attention(q, k, v, alibi_slopes=slopes, causal=True)


Attend = Callable[[Any, Any, Any, Any], Any]
# The axes of q, k, v and slopes that are sharded, and what runs in each shard.
SHARDED: dict[str, tuple[tuple[int | None, ...], Callable[[Attend], Attend]]] = {
    "batch": ((0, 0, 0, None), lambda f: f),
    "heads": ((1, 1, 1, 0), lambda f: f),
    "queries alone": ((0, None, None, None), lambda f: lambda q, k, v, s: f(q, k[: len(q)], v[: len(q)], s)),
    "mapped": ((0, 0, 0, None), lambda f: lambda q, k, v, s: map_over(f, q, k, v, s)),
    "in a loop": ((0, 0, 0, None), lambda f: lambda q, k, v, s: loop(f, q, k, v, s)),
    "gradients inside": ((0, 0, 0, None), lambda f: lambda q, k, v, s: gradient(f, q, k, v, s)),
}


def map_over(f: Attend, q: Any, k: Any, v: Any, slopes: Any) -> Any:
    import jax

    return jax.vmap(f, (0, None, 0, None))(q, k[0], v, slopes)


def loop(f: Attend, q: Any, k: Any, v: Any, slopes: Any) -> Any:
    import jax

    return jax.lax.scan(lambda q, _: (f(q, k, v, slopes), None), q, None, length=2)[0]


def gradient(f: Attend, q: Any, k: Any, v: Any, slopes: Any) -> Any:
    import jax

    return jax.grad(lambda q: jax.numpy.sin(f(q, k, v, slopes)).sum())(q)


def compare(name: str, check: bool, devices: int, *, eagerly: bool = False) -> None:
    """A result, or gradients of all arrays, is that of the formula."""
    import jax
    from jax.sharding import Mesh, PartitionSpec

    axes, inside = SHARDED[name]
    specs = tuple(PartitionSpec() if n is None else PartitionSpec(*[None] * n, "x") for n in axes)
    mesh = Mesh(np.array(jax.devices()[:devices]), ("x",))
    random = np.random.default_rng(0)
    arrays = [*random.standard_normal((3, BATCH, HEADS, ROWS, DIM), np.float32), np.array(SLOPES, np.float32)]

    def found(attend: Attend, check: bool, eagerly: bool) -> Any:
        f = jax.shard_map(inside(attend), mesh=mesh, in_specs=specs, out_specs=specs[0], check_vma=check)
        if name != "gradients inside" and not eagerly:  # of first order
            f = jax.grad(lambda *arrays, f=f: jax.numpy.sin(f(*arrays)).sum(), (0, 1, 2, 3))
        return (f if eagerly else jax.jit(f))(*map(jax.numpy.asarray, arrays))

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5),
        found(attended, check, eagerly),
        found(formula, True, False) if not eagerly else found(formula, False, True),
    )


@pytest.mark.usefixtures("jax")
@pytest.mark.parametrize(
    "name", [n if n == "batch" else pytest.param(n, marks=pytest.mark.slow) for n in SHARDED]
)
def test_gradients_reach_through_shards(name: str) -> None:
    compare(name, check=True, devices=1)


@pytest.mark.slow
@pytest.mark.usefixtures("jax")
@pytest.mark.parametrize("name", ["batch", "mapped"])
def test_shards_are_computed_outside_of_jit(name: str) -> None:
    compare(name, check=True, devices=1, eagerly=True)


@pytest.mark.slow
@pytest.mark.usefixtures("jax")
def test_gradients_of_what_shards_share_are_sums_over_them() -> None:
    script = (
        "import test_jax_shards as of\n"
        "for name in of.SHARDED:\n"
        "    for check in (True, False):\n"
        "        of.compare(name, check, devices=2)\n"
        "print('compared')"
    )
    paths = [os.path.dirname(__file__), *sys.path]
    more = {"JAX_NUM_CPU_DEVICES": "2", "PYTHONPATH": os.pathsep.join(paths)}
    result = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | more, capture_output=True, text=True, check=False
    )
    assert result.stdout.endswith("compared\n"), result.stderr
