"""What tests may need and a machine may lack, and the rule that a required thing is never skipped.

`PTXGEN_REQUIRE` names, separated by commas, what must be there: a test that lacks it then fails
instead of being skipped. A test asks for a thing by a marker (`ptxas`, `gpu`) or by a fixture
(`assembler`, `early_assembler`, `disassembler`, `matplotlib`, `browser`, `tensor_core_data`, `torch`,
`onnx`, `jax`,
`transformers`, `compiled`, `nvrtc`, `triton`, `numba`, `cute`, `notebook`, `flash_attn_4`, `cc`,
`rustc`). Nothing is looked for before a selected test asks for it.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from command_line import call  # noqa: F401  # a fixture of all tests
from device_arrays import interpreting, without_assembler
from fake_driver import FakeDevice, FakeDriver
from grids import dispensable, share_of
from host_programs import Hosts, cuda_headers
from kernel_runs import Kernels

from ptxgen.errors import BackendError, did_you_mean
from ptxgen.runtime.assembler import Assembler, find_assembler
from ptxgen.runtime.sass import Disassembler, find_disassembler


def _no_assembler(target: str | None = None) -> str:
    try:
        find_assembler(target=target)
    except BackendError as error:
        return str(error)
    return ""


def _no_disassembler() -> str:
    try:
        find_disassembler()
    except BackendError as error:
        return str(error)
    return ""


def _no_gpu() -> str:
    try:
        driver = importlib.import_module("cuda.bindings.driver")
        status = int(driver.cuInit(0)[0])
        if status:
            return f"no GPU: cuInit returned {status}"
        return "" if driver.cuDeviceGetCount()[1] > 0 else "no GPU: the driver lists none"
    except (ImportError, RuntimeError) as error:
        return f"no GPU: {str(error).strip().splitlines()[0]}"


def _no_module(name: str) -> str:
    try:
        importlib.import_module(name)
    except ImportError as error:
        return f"{name} cannot be imported: {error}"
    return ""


def _no_nvrtc() -> str:
    try:
        importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        return f"NVRTC cannot be loaded: {str(error).strip().splitlines()[0]}"
    return ""


def _no_flash_attn_4() -> str:
    why = importlib.import_module("benchmarks.measure.static_hopper").why_no_flash_attn_4()
    return f"flash-attn-4: {why}" if why else ""


# Recorded outputs of tensor cores, beside the checkout: of a GPU and a format each
# (github.com/north-numerical-computing/MATLAB-tensor-core, as numpy arrays).
TENSOR_CORES = Path(__file__).resolve().parents[2] / "shared" / "data" / "tensor_cores"


def _no_browser() -> str:
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not on PATH (Debian: apt install chromium chromium-driver)"
    return next(filter(None, map(_no_module, ("selenium", "PIL", "fontTools"))), "")


def _no_cc() -> str:
    if shutil.which("cc") is None:
        return "there is no C compiler, cc"
    if cuda_headers() is None:
        return "there is no cuda.h (pip install nvidia-cuda-runtime)"
    return ""


def _no_rustc() -> str:
    if shutil.which("rustc") is None:
        return "there is no Rust compiler, rustc (Debian: apt install rustc)"
    return _no_cc()  # which links


def _no_recordings() -> str:
    if TENSOR_CORES.is_dir():
        return ""
    return "recorded tensor cores are not beside the checkout, in ../shared/data/tensor_cores"


EARLY = "sm_70"  # which assemblers of CUDA 13 do not know

# What may be required: its name, and what tells why it is missing ("" if it is there).
WHY_MISSING: dict[str, Callable[[], str]] = {
    "assembler": functools.cache(_no_assembler),
    "early_assembler": functools.cache(lambda: _no_assembler(EARLY)),
    "disassembler": _no_disassembler,
    "matplotlib": functools.cache(lambda: _no_module("matplotlib")),
    "browser": functools.cache(_no_browser),
    "gpu": functools.cache(_no_gpu),
    "recordings": _no_recordings,
    "torch": functools.cache(lambda: _no_module("torch")),
    "onnx": functools.cache(lambda: _no_module("onnx")),
    "jax": functools.cache(lambda: _no_module("jax")),
    "transformers": functools.cache(lambda: _no_module("transformers")),
    "nvrtc": functools.cache(_no_nvrtc),
    "triton": functools.cache(lambda: _no_module("triton")),
    "compiled": functools.cache(lambda: _no_module("numba")),
    "numba": functools.cache(lambda: _no_module("numba.cuda")),
    "cc": functools.cache(_no_cc),
    "rustc": functools.cache(_no_rustc),
    "cute": functools.cache(lambda: _no_module("cutlass.cute")),
    "notebook": functools.cache(lambda: _no_module("nbclient") or _no_module("ipykernel")),
    "flash_attn_4": _no_flash_attn_4,
}
REQUIRED = pytest.StashKey[frozenset[str]]()
NEEDS_OF_MARKERS = {"ptxas": "assembler", "gpu": "gpu"}


def required_names(value: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in value.split(",") if name.strip())
    for name in sorted(names - set(WHY_MISSING)):
        raise pytest.UsageError(
            f"PTXGEN_REQUIRE may name {', '.join(WHY_MISSING)}, got {name!r}{did_you_mean(name, WHY_MISSING)}"
        )
    return names


def need(name: str, required: frozenset[str]) -> None:
    """Skip the running test if `name` is missing, or fail it if `name` is required."""
    reason = WHY_MISSING[name]()
    if not reason:
        return
    if name in required:
        pytest.fail(f"PTXGEN_REQUIRE names {name}, but: {reason}", pytrace=False)
    pytest.skip(reason)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden (refused when CI is set)"
    )
    parser.addoption("--on-gpu", action="store_true", help="run on a GPU what tests give to the interpreter")
    parser.addoption("--ledger", metavar="FILE", help="append what ran on a GPU, and came of it")
    parser.addoption(
        "--unrun", action="store_true", help="with --ledger: skip tests whose texts were right on this GPU"
    )
    parser.addoption(
        "--share",
        default="1/1",
        metavar="PART/PARTS",
        help="of the chosen tests every PARTS-th, from number PART on",
    )


@pytest.fixture(scope="session")
def update_golden(pytestconfig: pytest.Config) -> bool:
    """Whether golden files are to be rewritten."""
    wanted = bool(pytestconfig.getoption("--update-golden"))
    if wanted and os.environ.get("CI"):
        pytest.fail("--update-golden is refused when CI is set", pytrace=False)
    return wanted


def pytest_configure(config: pytest.Config) -> None:
    # Kernels are large, live long and are no garbage: to look at them as often as by default takes
    # a seventh of the time.
    gc.set_threshold(20_000, 20, 20)
    config.stash[REQUIRED] = required_names(os.environ.get("PTXGEN_REQUIRE", ""))
    _use_cache_of_tests(config)
    if config.getoption("--on-gpu"):
        importlib.import_module("on_gpu").install()
    file, unrun = config.getoption("--ledger"), config.getoption("--unrun")
    if unrun and file is None:
        raise pytest.UsageError("--unrun needs --ledger FILE, which says what each test launches")
    if file is not None:
        plugin = importlib.import_module("silicon_plugin").SiliconPlugin(Path(file).resolve(), unrun)
        config.pluginmanager.register(plugin)
        config.add_cleanup(plugin.close)


def _use_cache_of_tests(config: pytest.Config) -> None:
    """Keep compiled modules and proofs in pytest's cache folder, which `--cache-clear` empties, and not in
    the user's. Without that plugin there is no disk: mutants of the prover are judged so, whose verdicts
    nobody may store.
    """
    cache = getattr(config, "cache", None)
    try:
        if cache is None:
            raise FileNotFoundError("pytest runs without its cache")
        folder = cache.mkdir("ptxgen")
        folder.chmod(0o700)
    except OSError:
        os.environ["PTXGEN_CACHE"] = "off"
    else:
        os.environ["PTXGEN_CACHE_DIR"] = str(folder)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Mark the cases that `make test`, or `.ci/run` as well, can do without; of those that -m
    chooses by the markers keep those of `--share`.
    """
    for case, marker in dispensable(items):
        case.add_marker(marker)
    yield
    part, parts = map(int, config.getoption("--share").split("/"))
    kept = share_of(len(items), part, parts)
    config.hook.pytest_deselected(items=[item for n, item in enumerate(items) if n not in kept])
    items[:] = [items[n] for n in kept]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.config.getoption("--on-gpu") and item.get_closest_marker("interpreter"):
        pytest.skip("it needs what only the interpreter tells")
    for marker, name in NEEDS_OF_MARKERS.items():
        if item.get_closest_marker(marker):
            need(name, item.config.stash[REQUIRED])


@pytest.fixture(scope="session")
def assembler(pytestconfig: pytest.Config) -> Assembler:
    """The assembler that the package itself would use."""
    need("assembler", pytestconfig.stash[REQUIRED])
    return find_assembler()


@pytest.fixture(scope="session")
def early_assembler(pytestconfig: pytest.Config) -> Assembler:
    """An assembler that knows GPUs before Turing (`make early`)."""
    need("early_assembler", pytestconfig.stash[REQUIRED])
    return find_assembler(target=EARLY)


@pytest.fixture
def disassembler(pytestconfig: pytest.Config) -> Disassembler:
    """The disassembler that the package itself would use, of the extra `bench`."""
    need("disassembler", pytestconfig.stash[REQUIRED])
    return find_disassembler()


@pytest.fixture
def matplotlib(pytestconfig: pytest.Config) -> ModuleType:
    """The module `matplotlib`, of the extra `bench`."""
    need("matplotlib", pytestconfig.stash[REQUIRED])
    return importlib.import_module("matplotlib")


@pytest.fixture(scope="session")
def cc(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """What compiles host programs in C and runs them without a GPU."""
    need("cc", pytestconfig.stash[REQUIRED])
    return Hosts(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session")
def rustc(pytestconfig: pytest.Config, cc: Hosts) -> Hosts:
    """What compiles host programs in Rust and runs them without a GPU."""
    need("rustc", pytestconfig.stash[REQUIRED])
    return cc


@pytest.fixture(scope="session")
def browser(pytestconfig: pytest.Config) -> ModuleType:
    """The module `selenium.webdriver`; Chromium and its driver are on PATH."""
    need("browser", pytestconfig.stash[REQUIRED])
    return importlib.import_module("selenium.webdriver")


@pytest.fixture(scope="session")
def tensor_core_data(pytestconfig: pytest.Config) -> Path:
    """The folder of what GPUs' tensor cores gave, one file for each GPU and format."""
    need("recordings", pytestconfig.stash[REQUIRED])
    return TENSOR_CORES


@pytest.fixture(scope="session")
def torch(pytestconfig: pytest.Config) -> ModuleType:
    """PyTorch, with or without a GPU."""
    need("torch", pytestconfig.stash[REQUIRED])
    return importlib.import_module("torch")


@pytest.fixture(scope="session")
def flash_attn(torch: ModuleType) -> ModuleType:  # noqa: ARG001  # the adapter imports PyTorch
    """The adapter with the functions of flash-attn."""
    return importlib.import_module("flash.adapters.flash_attn")


@pytest.fixture(scope="session")
def onnx(pytestconfig: pytest.Config) -> ModuleType:
    """The onnx package."""
    need("onnx", pytestconfig.stash[REQUIRED])
    return importlib.import_module("onnx")


@pytest.fixture(scope="session")
def jax(pytestconfig: pytest.Config) -> ModuleType:
    """JAX, with or without a GPU."""
    need("jax", pytestconfig.stash[REQUIRED])
    return importlib.import_module("jax")


@pytest.fixture(scope="session")
def transformers(pytestconfig: pytest.Config) -> ModuleType:
    """Hugging Face's transformers, and PyTorch, which its models need."""
    for name in ("torch", "transformers"):
        need(name, pytestconfig.stash[REQUIRED])
    return importlib.import_module("transformers")


@pytest.fixture(scope="session")
def compiled(pytestconfig: pytest.Config) -> ModuleType:
    """The loops of the backend "compiled", which need Numba."""
    need("compiled", pytestconfig.stash[REQUIRED])
    return importlib.import_module("flash.cpu.loops")


@pytest.fixture(scope="session")
def nvrtc(pytestconfig: pytest.Config) -> None:
    """NVRTC, the compiler of CUDA C++."""
    need("nvrtc", pytestconfig.stash[REQUIRED])


@pytest.fixture(scope="session")
def triton(pytestconfig: pytest.Config) -> ModuleType:
    """Triton, which compiles without a GPU."""
    need("triton", pytestconfig.stash[REQUIRED])
    return importlib.import_module("triton")


@pytest.fixture(scope="session")
def numba(pytestconfig: pytest.Config) -> ModuleType:
    """Numba with numba-cuda, which compiles without a GPU."""
    need("numba", pytestconfig.stash[REQUIRED])
    return importlib.import_module("numba")


@pytest.fixture(scope="session")
def cute(pytestconfig: pytest.Config) -> ModuleType:
    """CuTe DSL, which compiles without a GPU."""
    need("cute", pytestconfig.stash[REQUIRED])
    return importlib.import_module("cutlass.cute")


@pytest.fixture(scope="session")
def notebook(pytestconfig: pytest.Config) -> ModuleType:
    """The module `nbclient`, which executes notebooks; the kernel of Jupyter is there, too."""
    need("notebook", pytestconfig.stash[REQUIRED])
    return importlib.import_module("nbclient")


@pytest.fixture(scope="session")
def flash_attn_4(pytestconfig: pytest.Config) -> None:
    """The package flash-attn-4, whose kernels are compiled without a GPU."""
    need("flash_attn_4", pytestconfig.stash[REQUIRED])


@pytest.fixture
def only_young_garbage() -> Iterator[None]:
    """`gc.collect()` looks at no object that was there before the test: to look at the kernels that
    other tests have left in caches takes seconds.
    """
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """The kernels that launches on the interpreter run, with all sanitizers."""
    return Kernels(monkeypatch)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Two H100 that run what is launched, without an assembler."""
    without_assembler(monkeypatch)
    return interpreting(FakeDriver(FakeDevice(), FakeDevice()))


@pytest.fixture
def unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of a KV cache, and of gradients, are launched without being proved first, which takes longer
    than to run them; tests of the proofs prove each of them.
    """
    monkeypatch.setattr("flash.contract.built_kernel.BuiltKernel.require_proved", lambda _: None)
