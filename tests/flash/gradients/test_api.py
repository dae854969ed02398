"""The gradients as a caller gets them, on backends of the CPU."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gradient_calls import assert_near, call_of, packed_call, reference, three
from judge import rounded_normal

import flash
from flash.families.precision import HALF
from flash.operands.dtypes import DTYPES, F16, F32
from flash.problem.gradient_tiles import (
    ADDING_KEYS,
    CLOCKS_OF_ONE_SWEEP,
    GRADIENT_TILES,
    SYNCHRONOUS_GRADIENT_TILES,
    WGMMA_ADDING_TILES,
    WGMMA_CLOCKS_OF_ONE_SWEEP,
)
from ptxgen.arrays.views import host_array, view
from ptxgen.errors import ConfigError, LaunchError
from ptxgen.runtime.settings import backend_setting

pytestmark = [pytest.mark.judged, pytest.mark.usefixtures("unproved")]

CONFIG = flash.AttentionConfig(head_dim=16, dtype="f16", causal=True)
RECORD_OF_CLOCKS = Path(__file__).parents[3] / "benchmarks/results/gradient-sweeps.txt"
BACKENDS = pytest.mark.parametrize("backend", ["cpu", "interpreter"])
SLOWLY = pytest.mark.parametrize("backend", ["cpu", pytest.param("interpreter", marks=pytest.mark.slow)])
FEATURES: dict[str, dict[str, Any]] = {
    "bias": {"bias": "f32"},
    "key_bias": {"key_bias": "f32"},
    "alibi_slopes": {"alibi": True},
    "sink": {"sink": True},
}
SHAPES = {"bias": (2, 1, 1, 24), "key_bias": (2, 24), "alibi_slopes": (2,), "sink": (2, 2)}


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PTXGEN_BACKEND is read anew."""
    monkeypatch.delenv("PTXGEN_BACKEND", raising=False)
    backend_setting.cache_clear()
    yield
    backend_setting.cache_clear()


@SLOWLY
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
def test_the_function_gives_the_gradients_of_attention(backend: str, dtype: Any) -> None:
    arrays = call_of(flash.AttentionConfig(16, head_dim_v=8, dtype=dtype.name, causal=True))
    result = flash.attention_backward(**arrays, causal=True, backend=backend)
    assert [a.dtype for a in three(result)] == [dtype.numpy] * 3
    assert result.arrays == {}
    assert_near(result, reference(arrays, causal=True), dtype)


@BACKENDS
def test_the_class_gives_them_in_the_other_layout_and_for_three_dimensions(backend: str) -> None:
    arrays, kernel = call_of(CONFIG, batch=2), flash.AttentionGradient(CONFIG)
    exact = reference(arrays, causal=True)
    rotation = {n: a if n == "lse" else np.ascontiguousarray(a.swapaxes(1, 2)) for n, a in arrays.items()}
    result = kernel.launch(**rotation, backend=backend, layout="bshd")
    for got, wanted in zip(three(result), three(exact), strict=True):
        np.testing.assert_allclose(got.swapaxes(1, 2).astype(float), wanted, atol=2e-2)
    flat = {n: a.reshape(-1, *a.shape[2:]) for n, a in arrays.items()}
    for got, wanted in zip(three(kernel.launch(**flat, backend=backend)), three(exact), strict=True):
        np.testing.assert_allclose(got.reshape(wanted.shape).astype(float), wanted, atol=2e-2)


@SLOWLY
@pytest.mark.parametrize("name", FEATURES)
def test_gradients_of_arrays_of_scores_come_when_they_are_wanted(name: str, backend: str) -> None:
    config = flash.AttentionConfig(16, dtype="f16", **FEATURES[name])
    arguments = {name: rounded_normal(np.random.default_rng(1), SHAPES[name])}
    if name == "key_bias":
        arguments[name] = arguments[name][:, None]
    arrays = call_of(config, batch=2, **arguments)
    kernel = flash.AttentionGradient(config)
    exact = reference(arrays, **arguments)
    assert kernel.launch(**arrays, **arguments, backend=backend).arrays == {}
    for wanted in ([name], name):
        result = kernel.launch(**arrays, **arguments, wanted=wanted, backend=backend)
        assert result.arrays.keys() == {name}
        assert result.arrays[name].dtype == np.float32
        assert result.arrays[name].shape == arguments[name].shape
        assert_near(result, exact, F16)


@SLOWLY
@pytest.mark.parametrize("name", FEATURES)
def test_gradients_that_are_not_needed_are_not_computed(name: str, backend: str) -> None:
    """Gradients that are needed have the bits that a call for all of them gives."""
    config = flash.AttentionConfig(16, dtype="f16", **FEATURES[name])
    argument = {name: rounded_normal(np.random.default_rng(1), SHAPES[name])}
    if name == "key_bias":
        argument[name] = argument[name][:, None]
    kernel, arrays = flash.AttentionGradient(config), call_of(config, batch=2, **argument)
    whole = kernel.launch(**arrays, **argument, wanted=name, backend=backend)
    for needed in ((), "q", ["k"], ["v", "k"]):
        for wanted in ((), name):
            few = kernel.launch(**arrays, **argument, needed=needed, wanted=wanted, backend=backend)
            for matrix in "qkv":
                got, exact = getattr(few, f"d{matrix}"), getattr(whole, f"d{matrix}")
                assert (got is None) if matrix not in needed else np.array_equal(got, exact)
            assert few.arrays.keys() == {*([wanted] if wanted else [])}
            for array in few.arrays.values():
                np.testing.assert_array_equal(array, whole.arrays[name])


@pytest.mark.parametrize(
    ("needed", "wanted", "kernels", "sweeps", "work"),
    [
        ("q", (), ["queries"], "one, because only dq is needed: three products for each tile, and ", "three"),
        (
            ("k",),
            (),
            ["deltas", "keys"],
            "one, because only dk and dv are needed: four products for each tile, and ",
            "four",
        ),
        ((), "bias", ["deltas", "scores"], "none, because no gradient of a matrix is needed", "two"),
    ],
    ids=["queries", "keys", "bias"],
)
def test_explain_says_which_kernels_make_what_is_needed(
    needed: Any, wanted: Any, kernels: list[str], sweeps: str, work: str
) -> None:
    """One sweep, which makes all, is not taken."""
    config = flash.AttentionConfig(16, dtype="f16", bias="f32")
    kernel, bias = flash.AttentionGradient(config, sweeps=1, deterministic=False), np.zeros(24, np.float32)
    arrays = call_of(config, bias=bias)
    lines = kernel.explain(
        **arrays, bias=bias, needed=needed, wanted=wanted, backend="interpreter"
    ).splitlines()
    names = [name.removeprefix("attention_gradient_") for name, _ in _kernels_in(lines)]
    assert [name for name in names if not name.startswith("sum_terms")] == kernels
    (of_sweeps,) = [line[10:] for line in lines if line.startswith("sweeps:")]
    assert of_sweeps.startswith(sweeps)
    assert f"GFLOP needed by {work} products, " in lines[-2]


def test_the_names_of_needed_gradients_are_checked() -> None:
    arrays = call_of(CONFIG)

    def refused(**how: Any) -> str:
        with pytest.raises(LaunchError) as raised:
            flash.attention_backward(**arrays, causal=True, backend="cpu", **how)
        return str(raised.value)

    assert refused(needed=["q", "out"]) == (
        "attention_backward: needed must name matrices among q, k, v, got 'out'"
    )
    assert refused(needed=3) == "attention_backward: needed must name matrices among q, k, v, got 3"
    assert refused(needed="q", dv=arrays["v"].copy()) == (
        "attention_backward: dv is an array to write to, but needed does not name v; name it, or leave dv out"
    )


@BACKENDS
def test_the_gradient_of_lse_counts(backend: str) -> None:
    arrays = call_of(CONFIG)
    dlse = rounded_normal(np.random.default_rng(2), arrays["lse"].shape)
    result = flash.attention_backward(**arrays, dlse=dlse, causal=True, backend=backend)
    assert_near(result, reference(arrays, dlse=dlse, causal=True), F16)
    without = flash.attention_backward(**arrays, causal=True, backend=backend)
    assert not np.array_equal(result.dq, without.dq)


@SLOWLY
def test_scale_and_seed_are_arguments(backend: str) -> None:
    config = flash.AttentionConfig(16, dtype="f16", dropout=0.3)
    how: dict[str, Any] = {"softmax_scale": 0.7, "dropout_seed": 11}
    arrays = call_of(config, **how)
    result = flash.AttentionGradient(config).launch(**arrays, **how, backend=backend)
    assert_near(result, reference(arrays, dropout=0.3, **how), F16)


@pytest.mark.slow
@BACKENDS
def test_given_arrays_of_any_strides_are_written_and_returned(backend: str) -> None:
    arrays = call_of(CONFIG)
    result = flash.attention_backward(**arrays, causal=True, backend=backend)
    room = {n: np.full((*a.shape[:-1], a.shape[-1] + 3), 7, a.dtype) for n, a in zip("qkv", three(result))}  # noqa: B905
    arguments = {f"d{n}": a[..., :-3] for n, a in room.items()}
    written = flash.attention_backward(**arrays, causal=True, backend=backend, **arguments)
    for name, plain in zip(arguments, three(result), strict=True):
        assert getattr(written, name) is arguments[name]
        np.testing.assert_allclose(arguments[name].astype(float), plain.astype(float), atol=1e-2)
    assert all((a[..., -3:] == 7).all() for a in room.values())


LENGTHS: dict[str, Any] = {
    "cu_seqlens_q": np.array([0, 9, 9, 30], np.int32),
    "cu_seqlens_k": np.array([0, 12, 17, 40], np.int32),
    "seqused_k": np.array([10, 5, 23], np.int32),
}


PACKED = flash.AttentionConfig(16, dtype="f16", causal=True, varlen=True, seqused_k=True, sink=True)


@SLOWLY
def test_packed_sequences_and_their_sinks(backend: str) -> None:
    arrays, exact = packed_call(PACKED, 33, 44, LENGTHS)
    result = flash.attention_varlen_backward(
        **arrays, **LENGTHS, causal=True, wanted=["sink"], backend=backend
    )
    assert_near(result, exact, F16)
    assert not result.dq[30:].any()  # of no sequence
    assert not result.dk[10:12].any()  # not used


@SLOWLY
def test_rows_of_no_sequence_are_not_written_in_given_arrays(backend: str) -> None:
    arrays, _ = packed_call(PACKED, 33, 44, LENGTHS)
    arguments = {f"d{n}": np.full_like(arrays[n], 7) for n in "qkv"}
    flash.attention_varlen_backward(**arrays, **LENGTHS, **arguments, causal=True, backend=backend)
    assert (arguments["dq"][30:] == 7).all()
    assert (arguments["dq"][:30] != 7).any()
    for name in ("dk", "dv"):
        assert (arguments[name][40:] == 7).all()
        assert (arguments[name][:10] != 7).any()


@SLOWLY
@pytest.mark.parametrize("sizes", [{"batch": 0}, {"seq_q": 0}, {"seq_k": 0}], ids=str)
def test_calls_without_scores_have_gradients_of_zero(sizes: dict[str, int], backend: str) -> None:
    config = flash.AttentionConfig(16, dtype="f16", bias="f32")
    arrays, bias = call_of(config, bias=np.ones((1, 1, 1, 1), np.float32), **sizes), np.ones((1, 1, 1, 1))
    bias = bias.astype(np.float32)
    result = flash.AttentionGradient(config).launch(**arrays, bias=bias, wanted="bias", backend=backend)
    for array, like in zip(three(result), "qkv", strict=True):
        assert array.shape == arrays[like].shape
        assert not array.any()
    assert result.arrays["bias"].tolist() == [[[[0.0]]]]


def test_results_are_of_the_library_of_the_call(torch: ModuleType) -> None:
    arrays = call_of(CONFIG)
    result = flash.attention_backward(**arrays, causal=True, backend="cpu")
    tensors = {n: torch.from_numpy(a) for n, a in arrays.items()}
    tensors["q"].requires_grad_()
    with torch.no_grad():
        got = flash.attention_backward(**tensors, causal=True, backend="cpu")
    for one, other in zip(three(got), three(result), strict=True):
        assert isinstance(one, torch.Tensor)
        assert one.dtype == torch.float16
        np.testing.assert_array_equal(host_array(view(one, "gradient")), other)


def test_results_of_jax_are_of_jax(jax: ModuleType) -> None:
    with jax.default_device(jax.devices("cpu")[0]):
        arrays = {n: jax.numpy.asarray(a) for n, a in call_of(CONFIG).items()}
        result = flash.attention_backward(**arrays, causal=True, backend="cpu")
    assert all(isinstance(a, jax.Array) for a in three(result))


def test_kernels_of_calls_of_the_same_sizes_are_kept() -> None:
    from flash.gradients import functions

    arrays = call_of(CONFIG)
    flash.attention_backward(**arrays, causal=True, backend="cpu")
    before = functions._kernel.cache_info()
    flash.attention_backward(**arrays, causal=True, backend="cpu")
    after = functions._kernel.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)


def test_copies_and_pickles_compute_the_same() -> None:
    kernel = flash.AttentionGradient(CONFIG)
    assert copy.copy(kernel) is kernel
    assert copy.deepcopy(kernel) is kernel
    again = pickle.loads(pickle.dumps(kernel))
    assert (again.config, again.deterministic) == (CONFIG, True)
    assert repr(again) == repr(kernel) == f"AttentionGradient({CONFIG!r})"
    ways: list[dict[str, Any]] = [
        {"deterministic": False},
        {"deterministic": False, "sweeps": 1},
        {"sweeps": 2},
    ]
    for how in ways:
        other = pickle.loads(pickle.dumps(flash.AttentionGradient(CONFIG, **how)))
        assert (other.deterministic, other.sweeps) == (how.get("deterministic", True), how.get("sweeps"))
        asked = ", ".join(f"{name}={value}" for name, value in how.items())
        assert repr(other) == f"AttentionGradient({CONFIG!r}, {asked})"


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_kernels_can_be_read(deterministic: bool) -> None:
    kernel = flash.AttentionGradient(CONFIG, deterministic=deterministic, sweeps=None if deterministic else 1)
    owners = ["queries", "keys"] if deterministic else ["deltas", "keys", "sums"]
    assert [*kernel.builds] == [*kernel.ptx] == [*kernel.resources] == owners
    for owner, text in kernel.ptx.items():
        assert f".entry {kernel.builds[owner].kernel.name}(" in text
        cost = kernel.resources[owner]
        assert (cost.threads, cost.target.name) == (128, "sm_80")
        assert cost.shared_bytes == kernel.builds[owner].kernel.dynamic_shared_bytes
        assert (cost.shared_bytes > 0) == (owner in ("queries", "keys"))
        by_shared = cost.target.shared_per_sm // (cost.shared_bytes + 1024)
        most = min(by_shared, cost.target.warps_per_sm // 4)
        assert cost.registers is None or cost.registers > 0
        assert 0 < cost.ctas_per_sm <= most
        assert cost.occupancy == cost.ctas_per_sm * 4 / cost.target.warps_per_sm


def test_explain_says_what_a_call_would_do() -> None:
    config = flash.AttentionConfig(16, dtype="f16", causal=True, sink=True)
    sink = np.zeros(2, np.float32)
    arrays = call_of(config, sink=sink)
    kernel = flash.AttentionGradient(config)
    text = kernel.explain(**arrays, sink=sink, wanted=["sink"], backend="interpreter")
    lines = text.splitlines()
    assert lines[:6] == [
        "backend:  interpreter (as asked)",
        "problem:  batch 1, heads 2, kv_heads 1, seq_q 20, seq_k 24, head_dim 16, head_dim_v 16, f16",
        f"causal:   {_causal()}",
        "scores:   sink (f32)",
        "data:     numpy arrays on cpu, used in place",
        "wanted:   dq, dk, dv, sink",
    ]
    assert lines[6] == (
        "sweeps:   two, because deterministic is True: seven products for each tile, and the same call gives "
        "the same bits"
    )
    assert _kernels_in(lines) == [
        ("attention_gradient_queries", "writes dQ and D, 2 CTAs"),
        ("attention_gradient_keys", "writes dK and dV, 1 CTAs"),
        ("sum_terms_f32", "sums terms, 1 CTAs"),
    ]
    assert [line[10:] for line in lines if line.startswith("tiles:")] == [
        "128 queries by 32 keys, 2 stages, 128 threads, 16 bytes at once",
        "64 keys by 64 queries, 2 stages, 128 threads, 16 bytes at once",
    ]
    assert [line[10:] for line in lines if line.startswith("products:")] == [
        "by mma.sync, because wgmma is of sm_90a alone"
    ] * 2
    needs = [line[10:] for line in lines if line.startswith("needs:")]
    assert all(" on sm_80: 128 threads, " in line for line in needs)
    proved = [line for line in lines if line.startswith("proved:")]
    assert len(proved) == len(needs) == 3
    assert all("global accesses in bounds" in line and "all but" not in line for line in proved)
    # 290 of 20 x 24 pairs are seen: row i sees 5 + i keys.
    assert lines[-2] == (
        f"work:     {2 * 2 * 290 * 5 * 16 / 1e9:.3g} GFLOP needed by five products, "
        f"{2 * 2 * (128 * 32 * 3 + 64 * 64 * 4) * 16 / 1e9:.3g} by the kernels' whole tiles"
    )
    # D and a term for each of 40 rows; dout, q, out and dq, k, v, dk and dv, LSE, and sink twice.
    assert lines[-1] == (
        f"memory:   {(4 * 40 + 4 * 24) * 16 * 2 / 1024 + (160 + 16) / 1024:.1f} KiB of arrays and results, "
        "320 bytes beside them (D 160 bytes, row_sink 160 bytes); P and dS of all scores would be 7.5 KiB"
    )
    of_cpu = kernel.explain(**arrays, sink=sink, backend="cpu").splitlines()
    assert of_cpu[-2:] == ["wanted:   dq, dk, dv", "kernel:   none: numpy computes it"]


@pytest.mark.parametrize(
    ("settings", "products"),
    [
        ({"dtype": "f16"}, "by wgmma, of tiles that TMA copies"),
        ({"precision": "ieee"}, "by fma, because kernels of gradients with wgmma are for f16 and bf16"),
        (
            {"precision": "f32_grade"},
            "by mma.sync, because kernels of gradients with wgmma are for f16 and bf16",
        ),
        (
            {"dtype": "f16", "head_dim": 20},
            "by mma.sync, because tensor maps take rows of multiples of 16 bytes",
        ),
    ],
)
def test_explain_says_by_which_instructions_a_kernel_for_hopper_multiplies(
    settings: dict[str, Any], products: str
) -> None:
    config = flash.AttentionConfig(**{"head_dim": 16, "target": "sm_90a", **settings})
    text = flash.AttentionGradient(config).explain(**call_of(config), backend="interpreter")
    assert [line[10:] for line in text.splitlines() if line.startswith("products:")] == [products] * 2


def test_explain_says_how_a_kernel_for_turing_multiplies_and_copies() -> None:
    config = flash.AttentionConfig(64, dtype="f16", target="sm_75")
    lines = flash.AttentionGradient(config).explain(**call_of(config), backend="interpreter").splitlines()
    assert [line[10:] for line in lines if line.startswith("products:")] == [
        "by mma.sync of m16n8k8, because wgmma is of sm_90a alone"
    ] * 2
    assert [line[10:] for line in lines if line.startswith("tiles:")] == [
        f"64 {owned} by 16 {walked}, the next in registers, 64 threads, 16 bytes at once"
        for owned, walked in (("queries", "keys"), ("keys", "queries"))
    ]


def test_explain_says_of_which_array_no_tensor_map_is() -> None:
    config = flash.AttentionConfig(16, dtype="f16", target="sm_90a")
    arrays = call_of(config)
    arrays["dout"] = np.broadcast_to(arrays["dout"][:, :, :1], arrays["dout"].shape)
    text = flash.AttentionGradient(config).explain(**arrays, backend="interpreter")
    lines = [line[10:] for line in text.splitlines() if line.startswith("products:")]
    assert lines == ["by mma.sync, because a stride of dO is 0 elements"] * 2


def _kernels_in(lines: list[str]) -> list[tuple[str, str]]:
    """The kernels that a text names, without what their names say of the config, and what they do."""
    result = []
    for line in lines:
        if line.startswith("kernel:"):
            name, role = line.split()[1], line.partition("verified, ")[2]
            result.append((name.split("_f16")[0], role))
    return result


_IN_ONE = (
    ": five products for each tile, of which dQ is added to f32 sums by atomics; the last bits of dq may "
    "differ from call to call"
)
_IN_TWO = ": seven products for each tile, and the same call gives the same bits"


def test_explain_says_which_kernels_make_one_sweep() -> None:
    arrays = call_of(CONFIG, seq_q=70, seq_k=80)
    kernel = flash.AttentionGradient(CONFIG, deterministic=False, sweeps=1)
    of_one = kernel.explain(**arrays, backend="interpreter").splitlines()
    assert of_one[5] == f"sweeps:   one, as asked{_IN_ONE}"
    assert _kernels_in(of_one) == [
        ("attention_gradient_deltas", "writes D, 4 CTAs"),
        ("attention_gradient_keys", "writes dK and dV, 2 CTAs"),
        ("attention_gradient_sums", "writes dQ from its sums, 4 CTAs"),
    ]
    assert f"{2 * 70 * 4 * 17} bytes beside them (D 560 bytes, dQ_sums 8.8 KiB)" in of_one[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_dim", "on", "clocks"), [(64, "sm_90", 1.16), (64, "sm_120", 0.75), (128, "sm_80", 0.88)]
)
def test_the_model_says_which_sweeps_are_faster(head_dim: int, on: str, clocks: float) -> None:
    config = flash.AttentionConfig(head_dim, dtype="f16", target=on)
    kernel = flash.AttentionGradient(config, deterministic=False)
    is_one = clocks < 1
    assert [*kernel.builds] == (["deltas", "keys", "sums"] if is_one else ["queries", "keys"])
    text = kernel.explain(**call_of(config, seq_q=3, seq_k=4), backend="interpreter")
    why = f"because by the model one takes {clocks:.2f} times the clocks of two on {on}"
    assert f"sweeps:   {f'one, {why}{_IN_ONE}' if is_one else f'two, {why}{_IN_TWO}'}\n" in text


def test_two_sweeps_can_be_asked_for() -> None:
    config = flash.AttentionConfig(128, dtype="f16")
    kernel = flash.AttentionGradient(config, deterministic=False, sweeps=2)
    assert [*kernel.builds] == ["queries", "keys"]
    text = kernel.explain(**call_of(config, seq_q=3, seq_k=4), backend="interpreter")
    assert f"sweeps:   two, as asked{_IN_TWO}\n" in text


@pytest.mark.nightly
def test_gradients_without_tiles_for_one_sweep_are_made_in_two() -> None:
    config = flash.AttentionConfig(256, precision="f32_grade")
    arrays = call_of(config, seq_q=3, seq_k=4)
    kernel = flash.AttentionGradient(config, deterministic=False)
    assert [*kernel.builds] == ["queries", "keys"]
    assert "sweeps:   two, because the table has no tiles for one: " in kernel.explain(
        **arrays, backend="interpreter"
    )


def test_one_sweep_is_refused_where_it_cannot_be() -> None:
    other = flash.AttentionConfig(64, precision="ieee")
    refused: list[tuple[flash.AttentionConfig, dict[str, Any], str]] = [
        (
            other,
            {"sweeps": 1, "deterministic": False},
            "one sweep has no kernels for head_dim=64, head_dim_v=64, dtype='f32' with precision='ieee'; "
            "leave sweeps out",
        ),
        (CONFIG, {"sweeps": 3}, "sweeps must be 1, 2 or None, got 3"),
        (CONFIG, {"sweeps": True}, "sweeps must be 1, 2 or None, got True"),
    ]
    for config, how, said in refused:
        with pytest.raises(ConfigError, match=f"^AttentionGradient: {re.escape(said)}$"):
            flash.AttentionGradient(config, **how)


def test_the_tables_of_tiles_and_of_clocks_have_the_same_columns() -> None:
    of_tiles = {kind: [*most] for (owner, kind), most in GRADIENT_TILES.items() if owner == ADDING_KEYS}
    assert of_tiles == {kind: [*most] for kind, most in CLOCKS_OF_ONE_SWEEP.items()}
    early = {
        kind: [*most] for (owner, kind), most in SYNCHRONOUS_GRADIENT_TILES.items() if owner == ADDING_KEYS
    }
    clocks = {
        kind: [n for n, each in most.items() if each.synchronous is not None]
        for kind, most in CLOCKS_OF_ONE_SWEEP.items()
    }
    assert early == {kind: most for kind, most in clocks.items() if most}
    assert WGMMA_ADDING_TILES.keys() == WGMMA_CLOCKS_OF_ONE_SWEEP.keys()


def test_the_table_of_clocks_is_what_the_model_was_seen_to_print() -> None:
    printed: dict[tuple[str, str], dict[int, float]] = {}
    for line in RECORD_OF_CLOCKS.read_text(encoding="utf-8").splitlines():
        command = re.fullmatch(r"\$ .* --target (\w+) --kind (\w+) --head-dim .*", line)
        if command:
            of_run = printed[command[1], command[2]] = {}
        ratio = re.fullmatch(r"d (\d+): one sweep takes (\S+) times two sweeps", line)
        if ratio:
            of_run[int(ratio[1])] = float(ratio[2])
    for operands, by_columns in CLOCKS_OF_ONE_SWEEP.items():
        kind = "f16" if operands == HALF.name else operands
        assert printed["sm_80", kind] == {d: clocks.fast for d, clocks in by_columns.items()}
        assert printed["sm_120", kind] == {d: clocks.slow for d, clocks in by_columns.items()}
    assert printed["sm_90a", "f16"] == WGMMA_CLOCKS_OF_ONE_SWEEP


@pytest.mark.parametrize("backend", ["cpu", pytest.param("interpreter", marks=pytest.mark.slow)])
def test_the_functions_take_gradients_that_are_not_deterministic(backend: str) -> None:
    arrays = call_of(flash.AttentionConfig(72, dtype="f16", causal=True), seq_k=70)  # one sweep is faster
    result = flash.attention_backward(**arrays, causal=True, deterministic=False, backend=backend)
    assert_near(result, reference(arrays, causal=True), F16)
    flat = {n: a[0] if n == "lse" else np.ascontiguousarray(a[0].swapaxes(0, 1)) for n, a in arrays.items()}
    ends = {"cu_seqlens_q": np.array([0, 20], np.int32), "cu_seqlens_k": np.array([0, 70], np.int32)}
    packed = flash.attention_varlen_backward(
        **flat, **ends, causal=True, deterministic=False, backend=backend
    )
    for one, other in zip(three(packed), three(result), strict=True):
        np.testing.assert_allclose(one.swapaxes(0, 1)[None], other, rtol=2**-9, atol=2**-12)


def test_deterministic_is_true_or_false() -> None:
    said = "deterministic must be True or False, got 'no'"
    how: Any = {"deterministic": "no"}
    with pytest.raises(ConfigError, match=f"^AttentionGradient: {said}$"):
        flash.AttentionGradient(CONFIG, **how)
    with pytest.raises(LaunchError, match=f"^attention_backward: {said}$"):
        flash.attention_backward(**call_of(CONFIG), causal=True, **how)


def _causal() -> str:
    from flash.contract.forward import CAUSAL

    return CAUSAL["bottom_right"]


def test_the_environment_chooses_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_BACKEND", "interpreter")
    text = flash.AttentionGradient(CONFIG).explain(**call_of(CONFIG))
    assert text.startswith("backend:  interpreter (PTXGEN_BACKEND is interpreter)\n")


@pytest.mark.slow
def test_f32_without_a_precision_is_ieee() -> None:
    arrays = call_of(flash.AttentionConfig(16))
    by_default, asked, other = (
        flash.attention_backward(**arrays, backend="interpreter", **how)
        for how in ({}, {"precision": "ieee"}, {"precision": "f32_grade"})
    )
    for one, same in zip(three(by_default), three(asked), strict=True):
        np.testing.assert_array_equal(one, same)
    assert not np.array_equal(by_default.dq, other.dq)
    assert_near(by_default, reference(arrays), F32)
    assert_near(flash.attention_backward(**arrays, precision="ieee", backend="cpu"), reference(arrays), F32)
