"""What works with jinja2, numpy and cuda-python alone, and what is said where another package is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OTHERS = ("ml_dtypes", "platformdirs", "threadpoolctl", "argcomplete", "psutil", "rich", "numba", "llvmlite")
LAUNCH = """
import numpy as np, flash
from flash.reference import attention_reference
q = np.random.default_rng(0).standard_normal((1, 2, 40, 16), np.float32)
kernel = flash.AttentionKernel(flash.AttentionConfig(16, causal=True))
found = [kernel.launch(q, q, q, backend=name) for name in ("auto", "cpu", "interpreter")]
for one in found:
    np.testing.assert_allclose(one, attention_reference(q, q, q, causal=True)[0], atol=1e-5)
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process in which no package of `OTHERS` can be imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PTXGEN_")}
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules.update(dict.fromkeys({OTHERS!r}))\n{code}"],
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return run(f"import ptxgen.__main__ as p; sys.argv[1:] = {words!r}; sys.exit(p.main())")


@pytest.mark.slow
def test_kernels_of_f32_are_launched() -> None:
    ended = run(LAUNCH)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    "words", [(), pytest.param(("--dtype", "bf16", "--causal"), marks=pytest.mark.slow)], ids=["f32", "bf16"]
)
def test_kernels_are_emitted(words: tuple[str, ...]) -> None:
    ended = command("emit", "--head-dim", "128", "--tile", "32", *words)
    assert (ended.returncode, ended.stderr) == (0, "")
    wanted = subprocess.run(
        [sys.executable, "tools/emit.py", "--head-dim", "128", "--tile", "32", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == wanted.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "package", "name"),
    [(("run", "--help"), "ml_dtypes", "ml-dtypes"), (("bench",), "threadpoolctl", "threadpoolctl")],
    ids=["run", "bench"],
)
def test_a_command_that_needs_another_package_names_it(
    words: tuple[str, ...], package: str, name: str
) -> None:
    ended = command(*words)
    said = f"ptxgen {words[0]}: error: the package {package} is needed; pip install {name}\n"
    assert (ended.returncode, ended.stdout, ended.stderr[-len(said) :]) == (1, "", said)  # bench may say more


def test_a_fault_of_the_program_is_no_missing_package() -> None:
    ended = run(
        "from ptxgen.commands.parts.quiet import quietly\n"
        "quietly(lambda: __import__('ptxgen.no_such_module') and 0)"
    )
    assert ended.returncode == 1
    assert ended.stderr.endswith("ModuleNotFoundError: No module named 'ptxgen.no_such_module'\n")


def test_an_element_type_that_numpy_lacks_names_its_package() -> None:
    ended = run("from ptxgen.types import bf16\nprint(bf16.dtype)")
    assert ended.stderr.endswith(
        "BackendError: numpy has no type 'bfloat16'; those that the package ml-dtypes has need it: "
        "pip install ml-dtypes\n"
    )


def test_without_the_users_cache_directory_the_cache_is_in_memory() -> None:
    ended = run(
        "from ptxgen.runtime.cache import default_cache\n"
        "from ptxgen.runtime.settings import Settings\n"
        "print(Settings.from_environment().cache_dir, default_cache().disk)"
    )
    assert (ended.stdout, ended.stderr) == ("None None\n", "")
    assert command("cache", "info").stderr == (
        "ptxgen cache: error: the cache has no directory: pip install platformdirs, which knows the user's "
        "cache directory, set PTXGEN_CACHE_DIR, or pass --dir\n"
    )


@pytest.mark.nightly
@pytest.mark.ptxas
def test_without_the_extra_bench_tests_skip_themselves(tmp_path: Path) -> None:
    (tmp_path / "without_bench.py").write_text(
        "import sys\n"
        "from importlib.abc import MetaPathFinder\n"
        "class Blocker(MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('matplotlib', 'psutil', 'rich'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
        "from ptxgen.runtime import sass\n"
        "sass._packaged = lambda: None\n"  # which finds nvdisasm in the folder of its package
    )
    files = ("test_bench.py", "test_bench_hopper.py", "test_bench_plot.py", "test_bench_static.py")
    tests = [*(f"tests/tools/{name}" for name in files), "tests/runtime/test_sass.py", "tests/report"]
    environment = {name: value for name, value in os.environ.items() if name != "PTXGEN_REQUIRE"}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "without_bench", "-m", "not nightly", *tests],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout
    assert "there is no nvdisasm" in ended.stdout
    assert "matplotlib cannot be imported" in ended.stdout
