"""Python functions as kernels: building, launches on both backends, checks, proofs, errors."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from device_arrays import CudaArray, on_device
from error_texts import refused
from fake_driver import FakeDriver

import ptxgen as px
from ptxgen import Pointer, bf16, f16, f32, s32, u8, u32
from ptxgen.arrays.dlpack import CUDA, LEGACY_DEFAULT_STREAM, Contents, make_capsule
from ptxgen.arrays.views import view
from ptxgen.errors import ConfigError, LaunchError, PtxGenError, TrapError, VerifyError
from ptxgen.kernels import BuiltFunction, KernelFunction
from ptxgen.kernels.launch import checked
from ptxgen.parse import parse
from ptxgen.runtime.cache import ModuleCache
from ptxgen.runtime.cuda import CudaBackend
from ptxgen.runtime.proof_cache import Obligation
from ptxgen.text import render
from ptxgen.types import b16, f16x2

N = 100


def scale_rows(k: Any, X: Pointer[f32], n: u32, factor: f32, *, times: int = 1) -> None:
    i = k.block_id() * k.threads + k.thread_id()
    with k.when(i < n):
        at = X.plus(k.cvt(i, dtype=px.u64) * f32.nbytes)
        for _ in range(times):
            k.store(at, k.load(at) * factor)


def made(function: Callable[..., None] = scale_rows, **choices: Any) -> KernelFunction:
    return px.kernel(**{"threads": 64, **choices})(function)


def numbers() -> np.ndarray[Any, Any]:
    return np.arange(N, dtype=np.float32)


def on_gpu(driver: FakeDriver, function: Callable[..., None] = scale_rows, **choices: Any) -> KernelFunction:
    return made(function, cuda=CudaBackend(driver), cache=ModuleCache(None), **choices)


def test_a_call_runs_on_the_arrays_in_place() -> None:
    x = numbers()
    made()[2](x, N, 0.5, backend="interpreter")
    assert np.array_equal(x, numbers() / 2)


def test_arguments_may_be_named_and_static_ones_choose_the_kernel() -> None:
    x, kernel = numbers(), made()
    kernel[2](x, factor=2.0, n=N, times=3, backend="interpreter")
    assert np.array_equal(x, numbers() * 8)
    assert kernel.build(times=3) is kernel.build(times=3)
    assert kernel.build(times=3).text != kernel.ptx == kernel.build(times=1).text


@dataclass(frozen=True)
class Config:
    value: float


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *[(1, True), (1, 1.0), (0.0, -0.0), ((1,), (True,)), ((0.0,), (-0.0,)), (0j, complex(0.0, -0.0))],
        *[(frozenset([1]), frozenset([True])), (Config(1), Config(1.0)), (Config(0.0), Config(-0.0))],
    ],
)
def test_static_values_that_are_not_the_same_are_other_kernels(one: Any, other: Any) -> None:
    def noted(k: Any, *, value: Any) -> None:
        k.note(f"value {value}")

    kernel = made(noted)
    assert kernel.build(value=one) is not kernel.build(value=other)
    assert kernel.build(value=float("nan")) is kernel.build(value=float("nan"))


def test_the_block_of_the_decorator_and_the_same_one_of_a_call_are_one_kernel() -> None:
    kernel = made()
    assert kernel.build() is kernel.build(threads=64) is kernel.build(threads=np.int64(64))
    with refused(ConfigError, "kernel scale_rows: threads must be 1..1024 on sm_80, got 96.0"):
        kernel.build(threads=96.0)  # type: ignore[arg-type]


def test_threads_that_build_at_once_build_one_kernel() -> None:
    runs = []

    def slow(k: Any) -> None:
        runs.append(k.name)
        time.sleep(0.05)

    kernel = made(slow)
    with ThreadPoolExecutor(6) as pool:
        built = set(pool.map(lambda _: kernel.build(), range(6)))
    assert (len(runs), len(built)) == (1, 1)


def test_the_same_choices_give_the_same_bytes() -> None:
    assert made().build(times=2, target="sm_90").text == made().build(times=2, target="sm_90").text
    assert parse(made().ptx).kernels[0].name == "scale_rows"


def test_threads_may_follow_static_parameters_and_the_call() -> None:
    kernel = made(threads=lambda times: 32 * times)
    assert [kernel.build(times=n).threads for n in (1, 3)] == [32, 96]
    x = numbers()
    kernel.launch(4, x, N, 3.0, threads=32, backend="interpreter")
    assert np.array_equal(x, numbers() * 3)


def test_grids_have_up_to_three_extents() -> None:
    def count(k: Any, X: Pointer[s32]) -> None:
        k.red(X, 1, space="global", op="add", type=s32)

    x = np.zeros(1, np.int32)
    made(count, threads=1)[2, 3, 4](x, backend="interpreter")
    assert x[0] == 24


def test_a_type_of_bits_takes_any_type_of_its_size() -> None:
    def copy(k: Any, X: Pointer[b16], Y: Pointer[b16]) -> None:
        at = k.cvt(k.thread_id(), dtype=px.u64) * b16.nbytes
        k.store(Y.plus(at), k.load(X.plus(at)))

    x = np.arange(8).astype(ml_dtypes.bfloat16)
    y = np.zeros(8, ml_dtypes.bfloat16)
    made(copy, threads=8)[1](x, y, backend="interpreter")
    assert np.array_equal(y.view(np.uint16), x.view(np.uint16))


# --------------------------------------------------------------------------------------------- cuda


def test_arrays_on_a_gpu_are_used_in_place(driver: FakeDriver) -> None:
    x = on_device(driver, numbers(), 1)
    on_gpu(driver)[2](x, N, 0.5)
    assert np.array_equal(driver.fetch(x.pointer, numbers()), numbers() / 2)


def test_arrays_of_the_host_are_copied_there_and_back(driver: FakeDriver) -> None:
    x = numbers()
    on_gpu(driver)[2](x, N, 0.5)
    assert np.array_equal(x, numbers() / 2)
    assert not driver.memory


def test_a_launch_takes_the_target_of_the_device(driver: FakeDriver) -> None:
    kernel = on_gpu(driver)
    kernel[2](numbers(), N, 0.5)
    assert parse(driver.launches[0].text).target == "sm_90a"
    with pytest.raises(LaunchError, match=r"^scale_rows: the kernel is for sm_120, which "):
        on_gpu(driver, target="sm_120")[2](numbers(), N, 0.5)


def test_a_repeated_launch_loads_nothing(driver: FakeDriver) -> None:
    kernel, x = on_gpu(driver), on_device(driver, numbers())
    for _ in range(3):
        kernel[2](x, N, 0.5, stream=driver.make_stream())
    assert driver.names().count("cuModuleLoadDataEx") == 1
    assert driver.names().count("cuLaunchKernel") == 3


def test_a_bench_is_the_median_of_launches(driver: FakeDriver) -> None:
    kernel, x = on_gpu(driver), on_device(driver, numbers())
    assert kernel.bench(2, x, N, 0.5, repeats=5) >= 0
    assert driver.names().count("cuLaunchKernel") == 6
    with refused(
        LaunchError,
        "scale_rows: bench measures with arrays on a GPU, and there are none; copy the arrays there",
    ):
        kernel.bench(2, numbers(), N, 0.5)


def test_wrong_arguments_reach_no_driver(driver: FakeDriver) -> None:
    x = CudaArray(4096, numbers())
    with pytest.raises(LaunchError, match="n must be an integer"):
        on_gpu(driver)[2](x, -1, 0.5)
    assert driver.names() == []


def copy(k: Any, OUT: Pointer[f32], X: Pointer[f32]) -> None:
    OUT[k.thread_id()] = X[k.thread_id()] * 2.0


@pytest.mark.parametrize("backend", ["cuda", "interpreter"])
def test_an_array_that_is_written_must_be_writable(driver: FakeDriver, backend: str) -> None:
    kernel = on_gpu(driver, function=copy, threads=32)
    x, out = np.ones(32, np.float32), np.zeros(32, np.float32)
    out.flags.writeable = False
    with refused(LaunchError, "copy: the kernel writes OUT, which is read-only; pass a writable one"):
        kernel[1](out, x, backend=backend)
    with pytest.raises(LaunchError, match="OUT, which is read-only"):
        kernel.check(1, out, x)
    kernel[1](x, out, backend=backend)  # what is only read may be
    assert not x.any()
    assert kernel.build().uses.written == {"OUT"}


def test_arrays_of_the_host_that_share_memory_are_not_copied_apart(driver: FakeDriver) -> None:
    kernel, x = on_gpu(driver, function=copy, threads=32), np.ones(64, np.float32)
    for out, arguments in ((x[:32], x[:32]), (x[:32], x[16:48])):
        with refused(
            LaunchError, "copy: OUT and X share memory, of which copies are made; pass arrays of their own"
        ):
            kernel[1](out, arguments, backend="cuda")
    kernel[1](x[:32], x[:32], backend="interpreter")
    assert x[:33].tolist() == [2.0] * 32 + [1.0]


def total(k: Any, A: Pointer[f32], B: Pointer[f32], OUT: Pointer[f32]) -> None:
    i = k.thread_id()
    OUT[i] = A[i] + B[i]


def test_an_array_that_is_read_twice_is_checked_and_copied_to_a_gpu_twice(driver: FakeDriver) -> None:
    x, out = np.arange(64, dtype=np.float32), np.zeros(32, np.float32)
    for a, b in ((x[:32], x[:32]), (x[:32], x[16:48])):
        assert made(total, threads=32).check(1, a, b, out).clean
    on_gpu(driver, function=total, threads=32)[1](x[:32], x[16:48], out, backend="cuda")


def test_an_update_in_place_is_checked_and_a_race_of_arrays_that_overlap_is_reported() -> None:
    x = np.arange(64, dtype=np.float32)
    kernel = made(total, threads=32)
    assert kernel.check(1, x[:32], x[32:], x[:32]).clean
    assert x.tolist() == list(range(64))  # the check runs on copies
    races = kernel.check(1, x[1:33], x[32:], x[:32]).reports
    assert {report.kind for report in races} == {"race"}
    assert kernel.check(1, x[32:], x[32:], x[:32]).clean  # side by side


def test_an_array_without_elements_does_not_say_the_device(driver: FakeDriver) -> None:
    kernel = on_gpu(driver, function=copy, threads=32)
    empty, there = np.empty(0, np.float32), on_device(driver, np.ones(32, np.float32))
    with pytest.raises(LaunchError, match="the interpreter runs on the host, but the arrays are on cuda"):
        kernel[1](empty, there, backend="interpreter")
    call = checked("copy", kernel.signature.parameters, [empty, there], None)
    assert call.first == view(there, "X")


def test_arrays_on_another_device_than_their_library_says_are_refused(driver: FakeDriver) -> None:
    kernel = on_gpu(driver, function=copy, threads=32)
    one, other = (on_device(driver, np.ones(32, np.float32), n) for n in (0, 1))
    with refused(LaunchError, "copy: X must be on cuda:0, as others are, but is on cuda:1"):
        kernel[1](one, other)


# ------------------------------------------------------------------------------------------- checks


def test_a_check_reports_what_is_wrong_at_its_line_and_changes_no_array() -> None:
    x, kernel = numbers(), made()
    assert kernel.check(2, x, N, 0.5).clean
    result = kernel.check(2, x, N + 1, 0.5)
    assert not result.clean
    assert "0 bytes after the end of X" in str(result)
    assert "test_function.py:" in str(result)
    assert np.array_equal(x, numbers())
    with pytest.raises(PtxGenError, match="after the end of X"):
        result.require()


def test_a_check_finds_a_race() -> None:
    def racing(k: Any, X: Pointer[u32]) -> None:
        tile = k.shared("tile", (1, 64), u32)
        thread = k.thread_id()
        k.store(tile.pointer(0, thread), thread)
        k.store(X.plus(k.cvt(thread, dtype=px.u64) * 4), k.load(tile.pointer(0, 63 - k.signed(thread))))

    result = made(racing).check(1, np.zeros(64, np.uint32))
    assert [report.kind for report in result.reports].count("race") >= 1
    assert "test_function.py:" in str(result)


def test_a_check_finds_a_shuffle_from_a_lane_that_the_block_does_not_have() -> None:
    @px.kernel(threads=48)
    def neighbours(k: Any, X: Pointer[u32], distance: u32, *, used: bool) -> None:
        thread = k.thread_id()
        other = k.shfl(X[thread], distance, 31, -1, mode="bfly")
        with k.when(thread < (48 if used else 0)):
            X[thread] = other

    assert neighbours.check(1, np.zeros(64, np.uint32), 16, used=False).clean
    result = neighbours.check(1, np.zeros(64, np.uint32), 16, used=True)
    assert {report.kind for report in result.reports} == {"undefined"}
    assert "test_function.py:" in str(result)
    assert "what a lane holds that does not take part" in str(result)


def test_a_proof_is_for_every_launch_that_fits() -> None:
    kernel = made()
    assert kernel.prove(X=("n",), grid="(n + 63) // 64").complete
    assert str(kernel.prove(X=("n",), grid="(n + 63) // 64")) == (
        "scale_rows: 0 of 0 shared accesses and 0 of 0 barriers proved\n"
        "scale_rows: 2 of 2 global accesses proved\n"
        "races: not judged; a run with the sanitizer `race` looks for them"
    )
    wrong = kernel.prove(X=("n - 1",), grid="(n + 63) // 64", bounds={"n": (2, 1 << 20)})
    assert "scale_rows: 0 of 2 global accesses proved, 2 of 2 global accesses violation\n" in wrong.report()
    assert wrong.report().count("kernel scale_rows: violation: ") == 2
    assert not wrong.complete
    with pytest.raises(VerifyError):
        wrong.require()


@pytest.mark.parametrize(
    ("inside", "align", "why"),
    [
        (lambda column, columns: column + 3 < columns, 16, ""),
        (lambda column, columns: column + 3 < columns, None, "is not shown to be a multiple of 16 bytes"),
        (lambda column, columns: column < columns, 16, "not shown to be among the 4 * (columns) of a row"),
        (
            lambda column, columns: column < columns + 4,
            16,
            "along the axis of stride 4 * (columns), where grid is",
        ),
    ],
)
def test_accesses_to_several_elements_lie_in_a_dense_row(
    inside: Callable[[Any, Any], Any], align: int | None, why: str
) -> None:
    def zeros(k: Any, X: Pointer[f32], columns: u32) -> None:
        column = k.thread_id() * 4
        with k.when(inside(column, columns)):
            k.store(X.row(k.block_id(), columns).element(column), [0.0] * 4)

    result = made(zeros).prove(X=("grid", "columns"), align=align).global_memory
    assert result is not None
    (access,) = result.accesses
    assert (access.verdict == "proved") == (not why)
    assert why in access.reason


def test_a_contract_has_what_a_host_needs() -> None:
    contract = made().contract(target="sm_90")
    assert [(p["name"], p["type"], p["offset"]) for p in contract["parameters"]] == [
        ("X", "u64", 0),
        ("n", "u32", 8),
        ("factor", "f32", 12),
    ]
    assert (contract["entry"], contract["target"], contract["block"]) == ("scale_rows", "sm_90", [64, 1, 1])


# ------------------------------------------------------------------------------------------- errors


def no_builder() -> None: ...
def without_builder(X: Pointer[f32], n: u32) -> None: ...
def of_one_array(X: Pointer[f32]) -> None: ...
def no_type(k: Any, x) -> None: ...  # type: ignore[no-untyped-def]
def pair(k: Any, n: f16x2) -> None: ...
def unknown(k: Any, n: px.f33) -> None: ...  # type: ignore[name-defined]
def default(k: Any, n: u32 = 3) -> None: ...
def stars(k: Any, *n: u32) -> None: ...
def python_type(k: Any, n: int) -> None: ...
def reserved(k: Any, *, target: str) -> None: ...
def tiled(k: Any, *, tile: int) -> None: ...
def returning(k: Any) -> None:
    return k.threads  # type: ignore[no-any-return]


ANNOTATED = (
    "must be annotated with a pointer such as ptxgen.Pointer[f32], a tensor map such as "
    "ptxgen.TensorMap[f16], or a scalar type such as ptxgen.u32, got"
)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (no_builder, "the first parameter must be the builder, as in def no_builder(k, ...)"),
        *(
            (
                function,
                "the first parameter must be the builder, but X is a parameter of the kernel; put it "
                f"first, as in def {function.__name__}(k, X: ..., ...)",
            )
            for function in (without_builder, of_one_array)
        ),
        (no_type, f"x {ANNOTATED} no annotation"),
        (python_type, f"n {ANNOTATED} <class 'int'>"),
        (pair, f"n {ANNOTATED} f16x2"),
        (
            default,
            "n is a parameter of the kernel and has no default; put it after a * if the kernel is built "
            "for it",
        ),
        (
            unknown,
            "the annotation 'px.f33' of n cannot be evaluated (module 'ptxgen' has no attribute 'f33'); use "
            "names of the module, not variables of an enclosing function, or leave out `from __future__ "
            "import annotations`, which makes text of annotations",
        ),
        (stars, "* and ** parameters are not possible; name each parameter"),
        (reserved, "target cannot be a parameter, because launches have arguments of that name; rename it"),
    ],
)
def test_functions_that_cannot_be_kernels_are_refused(function: Any, problem: str) -> None:
    with refused(ConfigError, f"kernel {function.__name__}: {problem}"):
        made(function)


def test_a_kernel_without_source_is_built() -> None:
    scope: dict[str, Any] = {"f32": f32, "Pointer": Pointer}
    exec("def unseen(k, X: Pointer[f32]):\n    X[0] = 3.0", scope)
    x = np.ones(1, np.float32)
    made(scope["unseen"])[1](x, backend="interpreter")
    assert x.tolist() == [3]


def test_a_share_of_the_grid_is_proved_with_the_bounds_that_the_proof_asks_for() -> None:
    def ones(k: Any, X: Pointer[f32], n: u32) -> None:
        with k.grid_strided(n) as i:
            X[i] = 1.0

    (result,) = made(ones).prove(X=("n",)).global_memory.accesses
    assert result.reason == (
        "its bytes are not shown to be among the 4 * (n) of a row; if a sum or a product of 32 bits on "
        "the way to it may wrap, bounds of grid and n may exclude that, such as "
        "bounds={'grid': (1, 65535), 'n': (1, 65535)}"
    )
    assert made(ones).prove(X=("n",), bounds={"grid": (1, 65535), "n": (1, 65535)}).complete


# ------------------------------------------------ proofs before launches on a GPU


def outside(k: Any, X: Pointer[f32], n: u32) -> None:
    tile = k.shared("tile", (1, 32))
    with k.when(n > 5):
        tile[0, k.thread_id()] = 1.0
    X[k.thread_id()] = 2.0


def test_a_kernel_that_its_proof_refutes_is_not_launched_on_a_gpu(driver: FakeDriver) -> None:
    x = on_device(driver, np.zeros(64, np.float32))
    with pytest.raises(VerifyError) as error:
        on_gpu(driver, outside)[1](x, 6)
    line = outside.__code__.co_firstlineno + 3
    assert str(error.value).splitlines() == [
        "outside: the kernel's proof says that the launch goes wrong:",
        "* kernel outside: violation: bytes 128 to 131 are outside tile, which has 128 bytes: thread "
        "(32, 0, 0)",
        "    in st.shared.f32 [%r3], 0f3F800000;",
        f"    from {__file__}:{line}, in outside",
        "Mend it; if the proof is wrong about your launches, @ptxgen.kernel(..., proved=False) does not ask "
        "it",
    ]
    assert not driver.launches


def test_a_launch_whose_numbers_do_not_come_to_the_violation_passes(driver: FakeDriver) -> None:
    there = on_device(driver, np.zeros(64, np.float32))
    on_gpu(driver, outside)[1](there, 5)
    assert driver.launches


def test_a_kernel_may_do_without_its_proof(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BuiltFunction, "refutations", None)  # which is not called
    on_gpu(driver, proved=False)[1](on_device(driver, numbers()), N, 1.0)
    assert driver.launches


def test_what_the_proof_does_not_decide_in_its_steps_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgen.kernels.built._STEPS", 0)
    assert not made(outside).build().refutations()
    monkeypatch.undo()
    assert made(outside).build().refutations()


def test_the_proof_is_asked_once_for_a_build(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    known = Obligation.prove

    def prove(obligation: Obligation) -> Any:
        asked.append(obligation.params)
        return known(obligation)

    monkeypatch.setattr("ptxgen.runtime.proof_cache.default_cache", lambda: ModuleCache(None))
    monkeypatch.setattr(Obligation, "prove", prove)
    scale = on_gpu(driver)
    for n in range(3):
        scale[1](on_device(driver, numbers()), N - n, 1.0)
    assert asked == [{}]


def test_a_kernel_that_its_proof_refutes_may_be_checked_and_interpreted() -> None:
    x = np.zeros(64, np.float32)
    assert not made(outside).check(1, x, 6).clean
    made(outside)[1](x, 5, backend="interpreter")
    assert (x == 2).all()


def counting(k: Any, X: Pointer[f32]) -> None:
    total = k.var(f32, 0)
    with k.while_(lambda: total >= 0.0):
        total += 1.0
    X[0] = total


def test_the_limit_of_a_launch_stops_the_interpreter() -> None:
    launch = made(counting)[1]
    with pytest.raises(TrapError, match="still running after 1000 instructions in a row"):
        launch(np.ones(1, np.float32), backend="interpreter", max_instructions=1000)
    with refused(LaunchError, "max_instructions must be an integer from 1, got 0"):
        launch(np.ones(1, np.float32), backend="interpreter", max_instructions=0)


def test_the_limit_of_a_check_stops_each_run() -> None:
    (fault,) = made(counting).check(1, np.ones(1, np.float32), max_instructions=1000).faults[:1]
    assert fault.startswith("kernel counting: still running after 1000 instructions in a row, at ")


def test_a_launch_on_a_gpu_has_no_limit(driver: FakeDriver) -> None:
    with refused(
        LaunchError,
        "scale_rows: max_instructions is for the interpreter, but the backend is 'cuda'; leave it out, or "
        "use backend='interpreter'",
    ):
        on_gpu(driver)[1](on_device(driver, numbers()), N, 1.0, max_instructions=5)


def test_what_a_loop_computed_is_no_variable() -> None:
    def summed(k: Any, X: Pointer[f32], n: u32) -> None:
        total = 0.0
        with k.loop(0, n) as i:
            total += X[i]
        X[0] = total

    with pytest.raises(VerifyError) as error:
        made(summed).build()
    assert str(error.value).splitlines()[-1] == (
        "What Python computes inside a loop or a branch of the GPU is unknown after it: make the variable "
        "before it, total = k.var(f32, 0), and write it inside, total += x"
    )
    assert len(error.value.problems) == 1
    assert made(summed).emit() == made(summed).emit(target="sm_80")  # to be looked at
    assert "add.rn.f32" in render(made(summed).emit())


def test_a_module_that_is_emitted_is_the_one_that_is_built() -> None:
    def filled(k: Any, X: Pointer[f32], *, value: float) -> None:
        X[k.thread_id()] = value

    f = made(filled)
    choices = {"target": "sm_90", "threads": 64, "value": 2.0}
    assert f.emit(**choices) == f.build(**choices).module
    assert f.emit(**choices) is not f.emit(**choices)
    with pytest.raises(TypeError, match="needs value"):
        f.emit()


X = numbers()


def byte(k: Any, A: Pointer[u8]) -> None:
    A[k.thread_id()] = 1


BOUNDS = "scale_rows.prove: bounds of n must be two integers, the lowest and the highest value, got"
THREADS = "kernel scale_rows: threads must be 1..1024 on sm_80, got"
GRID = "scale_rows: grid must be 1 to 3 positive integers, at most 2147483647, 65535 and 65535, got"


WRONG_CALLS: dict[type[Exception], dict[str, Any]] = {
    ConfigError: {
        "kernel: threads, the size of a CTA, is missing: @ptxgen.kernel(threads=128)": lambda: px.kernel(
            scale_rows
        ),
        "kernel scale_rows: it is a kernel already; pass the function": lambda: px.kernel(made(), threads=32),
        "kernel: a kernel must be a Python function, got 128": lambda: px.kernel(128, threads=32),
        "kernel returning: the function must return nothing, got 64; store results": lambda: made(
            returning
        ).build(),
        "kernel scale_rows: threads along x, y and z must be up to three numbers from 1 with a product of at "
        "most 1024 on sm_80, and at most 64 along z, got (16, 80)": lambda: made(threads=(16, 80)).build(),
        f"{THREADS} '16'": lambda: made(threads="16").build(),
        f"{THREADS} 0": lambda: made(threads=0).build(),
        "kernel tiled: static parameters must be hashable, got {'tile': [1]}": lambda: made(tiled).build(
            tile=[1]
        ),
        "scale_rows: backend must be one of auto, cuda, interpreter, got 'cpu'": lambda: made()[2](
            X, 3, 1.0, backend="cpu"
        ),
    },
    LaunchError: {
        f"{BOUNDS} 5": lambda: made().prove(X=("n",), bounds={"n": 5}),
        f"{BOUNDS} (5, 1)": lambda: made().prove(X=("n",), bounds={"n": (5, 1)}),
        "scale_rows.prove: bounds has 'm', which is no size": lambda: made().prove(
            X=("n",), bounds={"m": (1, 5)}
        ),
        **{
            f"{GRID} {grid!r}": lambda grid=grid: made().launch(grid, X, 3, 1.0, backend="interpreter")
            for grid in (0, (1, 2, 3, 4), (1, 70000), "a", 1.5, ())
        },
        "byte: A must be uint8 (Pointer[u8]), got float8_e4m3fn; pass its bytes, A.view(uint8)": lambda: made(
            byte
        )[1](np.ones(4, ml_dtypes.float8_e4m3fn), backend="interpreter"),
    },
    TypeError: {
        "tiled() needs tile, which the kernel is built for; pass it by name": lambda: made(tiled).build(),
        "kernel scale_rows: the function for threads must take all keyword-only parameters of the kernel, "
        "but it got an unexpected keyword argument 'times'; write `lambda *, times: ...`, or add **others to "
        "its parameters": lambda: made(threads=lambda *, rows=1: 32 * rows).build(),
        "scale_rows: a launch needs a grid; write scale_rows[grid](...)": lambda: made()(X, 3, 1.0),
        "scale_rows() needs the argument 'factor'": lambda: made()[2](X, N, backend="interpreter"),
        "scale_rows() got multiple values for argument 'n'": lambda: made()[2](
            X, N, 1.0, n=3, backend="interpreter"
        ),
        "scale_rows() got an unexpected keyword argument 'tims'; did you mean 'times'?": lambda: made()[2](
            X, N, 1.0, tims=3, backend="interpreter"
        ),
        "scale_rows() takes 3 arguments (X, n, factor), got 4; what it is built for is passed by "
        "name": lambda: made()[2](X, N, 1.0, 2, backend="interpreter"),
    },
}


@pytest.mark.parametrize(
    ("error", "message", "use"),
    [(error, message, use) for error, rows in WRONG_CALLS.items() for message, use in rows.items()],
)
def test_wrong_calls_are_refused(use: Callable[[], Any], error: type[Exception], message: str) -> None:
    with refused(error, message):
        use()


@pytest.mark.parametrize(
    ("problem", "arguments", "named"),
    [
        (problem, *row)
        for problem, row in {
            "3 problems\n"
            "  X must be float32 (Pointer[f32]), got float64; convert it\n"
            "  n must be an integer from 0 to 4294967295 (u32), got -1\n"
            "  factor must be a number that f32 holds, got 'a'": ((X.astype(np.float64), -1, "a"), {}),
            "X must be dense, the last dimension innermost, got strides [2] for shape [50]; copy it": (
                (X[::2], 3, 1.0),
                {},
            ),
            "X must be an array (numpy, torch, or with __cuda_array_interface__ or __dlpack__), got int; "
            "convert with numpy.asarray(X, numpy.float32)": ((3, 3, 1.0), {}),
            "stream is for a GPU, but the backend is 'interpreter'; leave out the stream": (
                (X, 3, 1.0),
                {"stream": 7},
            ),
            "the interpreter runs on the host, but the arrays are on cuda:?; copy them to the host, or use "
            "backend='cuda'": ((CudaArray(4096, X), 3, 1.0), {}),
        }.items()
    ],
)
def test_arguments_that_do_not_fit_are_told_at_once(
    arguments: tuple[Any, ...], named: dict[str, Any], problem: str
) -> None:
    with refused(LaunchError, f"scale_rows: {problem}"):
        made()[2](*arguments, backend="interpreter", **named)


@pytest.mark.parametrize(
    ("problem", "arrays"),
    {
        "the dimensions of X must be given, such as X=('n',)": {},
        "n is no array of the kernel": {"X": ("n",), "n": ("n",)},
        "grid must be 1 to 3 integers or expressions of sizes, such as '(n + 127) // 128', got "
        "(1, 2, 3, 4)": {"X": ("n",), "grid": (1, 2, 3, 4)},
        "align must be a power of two up to 256 (bytes), got 24": {"X": ("n",), "align": 24},
        "X: a dimension after the first must be a size, a number or a product, got 'n + 1'; give the "
        "sum a name of its own in bounds=": {"X": ("n", "n + 1")},
        "X must be a tuple of dimensions, integers or expressions of sizes such as ('rows', 'columns'), "
        "got 'n'": {"X": "n"},
    }.items(),
)
def test_proofs_need_the_dimensions_of_each_pointer(arrays: dict[str, Any], problem: str) -> None:
    with refused(LaunchError, f"scale_rows.prove: {problem}"):
        made().prove(**arrays)


def halves(k: Any, OUT: Pointer[f32], a: f16, b: bf16) -> None:
    OUT[0], OUT[1] = k.cvt(a, dtype=f32), k.cvt(b, dtype=f32)


@pytest.mark.parametrize("backend", ["cuda", "interpreter"])
def test_parameters_of_half_precision_are_rounded(driver: FakeDriver, backend: str) -> None:
    out = np.zeros(2, np.float32)
    kernel = on_gpu(driver, function=halves, threads=1)
    kernel[1](out, 1 / 3, np.float32(-1 / 3), backend=backend)
    assert out.tolist() == [np.float16(1 / 3), np.asarray(-1 / 3, ml_dtypes.bfloat16)]
    kernel[1](out, float("-inf"), 3, backend=backend)
    assert out.tolist() == [float("-inf"), 3.0]
    assert [p["meaning"] for p in kernel.contract()["parameters"][1:]] == [
        "the bits of a number of type f16",
        "the bits of a number of type bf16",
    ]
    with refused(
        LaunchError,
        "halves: 2 problems\n  a must be a number that f16 holds, got 70000.0\n"
        "  b must be a number that bf16 holds, got '1'",
    ):
        kernel[1](out, 70000.0, "1", backend=backend)


def test_numbers_of_numpy_are_static_as_those_of_python() -> None:
    kernel = made(threads=lambda times: int(times) * 32)
    built = kernel.build(times=np.int64(2))
    assert built is kernel.build(times=2)
    assert built.threads == 64


def vectors(k: Any, X: Pointer[f32], n: u32) -> None:
    with k.grid_strided(n) as i:
        a, b, c, d = X.vec(4)[i]
        X.vec(4)[i] = b, a, d, c


@pytest.mark.parametrize("backend", ["cuda", "interpreter"])
def test_vectors_need_arrays_that_begin_at_a_multiple_of_their_bytes(
    driver: FakeDriver, backend: str
) -> None:
    kernel = on_gpu(driver, function=vectors, threads=32)
    whole = np.zeros(101, np.float32)
    first = -whole.ctypes.data // 4 % 4
    x = whole[first : first + 96]
    x[:] = np.arange(96)
    kernel[1](x, 24, backend=backend)
    assert x[:8].tolist() == [1, 0, 3, 2, 5, 4, 7, 6]
    shifted = whole[first + 1 : first + 97]
    with refused(
        LaunchError,
        "vectors: X must begin at a multiple of 16 bytes, because the kernel accesses that many at once, got "
        f"{shifted.ctypes.data:#x}; copy it",
    ):
        kernel[1](shifted, 24, backend=backend)
    assert kernel.contract()["parameters"][0]["align"] == 16
    assert "align" not in made().contract()["parameters"][0]


def test_the_inner_dimensions_of_a_proof_may_be_vectors() -> None:
    kernel = made(vectors, threads=32)
    sizes = {"grid": (1, 1024), "n": (1, 2**28)}
    assert kernel.prove(X=("n", 4), bounds=sizes).complete
    assert not kernel.prove(X=("n", 3), bounds=sizes).complete
    assert not kernel.prove(X=("n - 1", 4), bounds=sizes).complete


def copied(k: Any, X: Pointer[f32], Y: Pointer[f32]) -> None:
    tile = k.shared("tile", (1, 128))
    k.copy_async(tile.pointer().vec(4).pointer(k.thread_id()), X.vec(4).pointer(k.thread_id()), 16)
    k.cp_async_wait_all()
    Y[k.thread_id()] = tile.pointer().vec(4)[k.thread_id()][3]


def test_copies_need_arrays_that_begin_at_a_multiple_of_their_bytes() -> None:
    uses = made(copied, threads=32).build().uses
    assert uses.written == {"Y"}
    assert uses.alignment == {"X": 16, "Y": 4}


def talkative(k: Any, n: u32) -> None:
    with k.when(k.thread_id() == 3):
        k.printf("thread %u\n", k.thread_id())
    k.device_assert(k.thread_id() < n, "few")


def test_a_launch_prints_and_asserts_where_it_is_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    made(talkative, threads=32)[1](32, backend="interpreter")
    made(talkative, threads=32)[1](31, backend="interpreter")  # without assertions
    assert capsys.readouterr().out == "thread 3\nthread 3\n"
    with pytest.raises(PtxGenError, match="assertion `few` failed in talkative"):
        made(talkative, threads=32, asserts=True)[1](31, backend="interpreter")
    assert capsys.readouterr().out == "thread 3\n"
    assert made(talkative, threads=32).check(1, 32).clean
    (fault,) = made(talkative, threads=32).check(1, 31).faults
    assert "assertion `few` failed in talkative, test_function.py:" in fault
    assert capsys.readouterr().out == ""


class OnDlpack:
    """A float32 array on a GPU that has only DLPack."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __dlpack__(self, *, stream: int | None = None, **_: object) -> object:
        self.ordered_before = stream
        return make_capsule(Contents(self.pointer, (N,), (1,), "float32", (CUDA, 0)), self)


def test_a_producer_on_another_stream_than_the_launch_is_waited_for(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, x = (on_device(driver, np.ones(N, np.float32)) for _ in range(2))
    produced, kernel = OnDlpack(x.pointer), on_gpu(driver, function=copy, threads=32)
    side = driver.make_stream()
    monkeypatch.setattr("ptxgen.kernels.launch.current_stream", lambda _: side)  # as of torch
    kernel[1](out, produced)
    assert produced.ordered_before == LEGACY_DEFAULT_STREAM
    assert [call.arguments for call in driver.calls if call.name == "cuStreamSynchronize"] == [
        (LEGACY_DEFAULT_STREAM,)
    ]
    driver.calls.clear()
    kernel[1](out, produced, stream=side)
    assert produced.ordered_before == side
    assert "cuStreamSynchronize" not in driver.names()
