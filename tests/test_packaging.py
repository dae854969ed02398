"""A wheel, an editable install and a bare checkout all find the packages and the templates.

The archives are made by setuptools' build hooks, which pip and build call, and are unpacked as pip
does it, so no network is needed and nothing outside the temporary folder is touched.
"""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import ptxgen

ROOT = Path(__file__).parents[1]
PACKAGED = ("ptxgen", "flash", "templates")
ACCOMPANYING = (".ci", "benchmarks", "docs", "tests", "tools")  # in a source distribution alone
PROBE = "probe.txt.j2"

pytestmark = pytest.mark.slow

REPORT = """
import importlib, importlib.util, json, ptxgen, flash
from ptxgen.frames import load_template
from pathlib import Path
names = {names!r}
print(json.dumps(dict(
    ptxgen=ptxgen.__file__,
    flash=flash.__file__,
    templates=importlib.util.find_spec("ptxgen.templates") and
        importlib.import_module("ptxgen.templates").__file__,
    probe=load_template({probe!r}).render(word="found"),
    compiled=[load_template(name).name for name in names],
    probe_file=load_template({probe!r}).filename,
)))
"""


@dataclass(frozen=True)
class Built:
    """A copy of what is packaged, with a probe template of its own, and the archives made of it."""

    checkout: Path
    wheel: Path
    editable: Path
    sdist: Path


def build(hook: str, checkout: Path, out: Path) -> Path:
    out.mkdir()
    system = tomllib.loads((checkout / "pyproject.toml").read_text())["build-system"]
    search = [str(checkout / folder) for folder in system["backend-path"]]
    backend = f"import sys; sys.path[:0] = {search!r}; import {system['build-backend']} as backend"
    code = f"{backend}; backend.{hook}({str(out)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=checkout, check=True, capture_output=True)
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    pytest.importorskip("setuptools", minversion="77")
    top = tmp_path_factory.mktemp("packaging")
    checkout = top / "checkout"
    checkout.mkdir()
    for name in os.listdir(ROOT):
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, checkout)
    for name in (*PACKAGED, *ACCOMPANYING):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, checkout / name, ignore=ignore)
    (checkout / "templates" / PROBE).write_text("{{ word }}\n")
    # The sdist is unpacked and built in turn, as an installer without wheels does it.
    sdist = build("build_sdist", checkout, top / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(top / "unpacked", filter="data")
    (unpacked,) = (top / "unpacked").iterdir()
    wheel = build("build_wheel", unpacked, top / "wheel")
    return Built(checkout, wheel, build("build_editable", checkout, top / "editable"), sdist)


def environment(tmp_path: Path, install: Path | None = None) -> Path:
    """The Python of a new environment that has the dependencies and, if given, `install` unpacked."""
    env = tmp_path / "env"
    venv.create(env, with_pip=False, symlinks=os.name != "nt")
    scheme = {"base": str(env), "platbase": str(env)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=scheme))
    # Appended, and its own .pth files are not read: an installed ptxgen does not get in.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if install:
        with zipfile.ZipFile(install) as archive:
            archive.extractall(site)
    return Path(sysconfig.get_path("scripts", "venv", vars=scheme)) / Path(sys.executable).name


def report(tmp_path: Path, *, install: Path | None = None, path: Path | None = None) -> Any:
    """What a new environment sees that has the dependencies and, if given, `install` unpacked."""
    python = environment(tmp_path, install)
    names = [p.name for p in sorted((ROOT / "templates").glob("*.j2"))]
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV_"))}
    if path:
        environ["PYTHONPATH"] = str(path)
    ran = subprocess.run(
        [python, "-c", REPORT.format(names=names, probe=PROBE)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["probe"] == "found\n"
    assert seen["compiled"] == names
    return seen


def test_a_wheel_brings_its_own_templates(built: Built, tmp_path: Path) -> None:
    seen = report(tmp_path, install=built.wheel)
    for what in ("ptxgen", "flash", "templates", "probe_file"):
        assert Path(seen[what]).is_relative_to(tmp_path / "env"), what


def test_an_editable_install_uses_the_checkout(built: Built, tmp_path: Path) -> None:
    seen = report(tmp_path, install=built.editable)
    assert Path(seen["ptxgen"]) == built.checkout / "ptxgen" / "__init__.py"
    assert Path(seen["flash"]) == built.checkout / "flash" / "__init__.py"
    assert Path(seen["templates"]) == built.checkout / "templates" / "__init__.py"
    assert Path(seen["probe_file"]) == built.checkout / "templates" / PROBE


def test_type_checkers_find_an_editable_install(built: Built, tmp_path: Path) -> None:
    """They read .pth files, and no code that finds packages when they are imported."""
    with zipfile.ZipFile(built.editable) as archive:
        archive.extractall(tmp_path / "site")
        record = archive.read(next(n for n in archive.namelist() if n.endswith("/RECORD"))).decode()
    (line,) = (tmp_path / "site" / "ptxgen_checkout.pth").read_text().splitlines()
    assert Path(line) == built.checkout
    assert re.search(rf"^ptxgen_checkout\.pth,sha256=[\w-]{{43}},{len(line) + 1}$", record, re.MULTILINE)
    for package in ("ptxgen", "flash"):
        assert (built.checkout / package / "py.typed").exists()


@pytest.mark.nightly
def test_mypy_has_the_types_of_an_editable_install(built: Built, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    python = environment(tmp_path, built.editable)
    (tmp_path / "user.py").write_text(
        "import ptxgen as px\nfrom ptxgen import Pointer, f32\n@px.kernel(threads=32)\n"
        "def f(k: px.KernelBuilder, X: Pointer[f32]) -> None:\n    reveal_type(k.exp(X[0]))\n    k.exp(1)\n"
    )
    said = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", python, "user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert 'user.py:5: note: Revealed type is "ptxgen.dsl.values.Value"' in said
    assert 'user.py:6: error: Argument 1 to "exp" of "Arithmetic" has incompatible type "int"' in said


def test_a_bare_checkout_needs_no_install(built: Built, tmp_path: Path) -> None:
    seen = report(tmp_path, path=built.checkout)
    assert Path(seen["ptxgen"]) == built.checkout / "ptxgen" / "__init__.py"
    assert seen["templates"] is None  # there it is not a package, and nothing needs it to be
    assert Path(seen["probe_file"]) == built.checkout / "templates" / PROBE


def test_a_wheel_is_importable_without_being_unpacked(built: Built, tmp_path: Path) -> None:
    assert Path(report(tmp_path, path=built.wheel)["ptxgen"]).is_relative_to(built.wheel)
    program = "from flash.silicon.ledger import ledger; print(ledger().status('a for sm_80', str))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(built.wheel)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "this text has not run on a GPU\n"


def test_a_wheel_holds_every_source_file_and_nothing_else_at_the_top(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        inside = {PurePosixPath(n) for n in archive.namelist() if ".dist-info/" not in n}
    want = {
        PurePosixPath("ptxgen" if top == "templates" else "", f.relative_to(built.checkout))
        for top in PACKAGED
        for f in (built.checkout / top).rglob("*")
        if f.suffix in {".py", ".pyi", ".typed", ".j2", ".json"}
        or (f.parent.name == "answers" and f.is_file())
    }
    assert inside == want
    assert PurePosixPath("ptxgen/templates", PROBE) in inside
    assert {n.parts[0] for n in inside} == {"ptxgen", "flash"}


def test_a_source_distribution_holds_every_file_of_the_repository(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        inside = {str(PurePosixPath(*PurePosixPath(n).parts[1:])) for n in archive.getnames()}
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    wanted = {name for name in listed if (ROOT / name).exists()} - {".gitignore"}
    assert wanted - inside == set()
    assert {f"templates/{PROBE}", "templates/__init__.py", "LICENSE", "pyproject.toml", "README.md"} <= inside
    assert {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")} <= inside
    assert not [name for name in inside if name.endswith(".pyc")]


def test_a_wheel_has_the_program_and_its_metadata(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        texts = {
            PurePosixPath(n).name: archive.read(n).decode() for n in archive.namelist() if "dist-info/" in n
        }
    assert "[console_scripts]\nptxgen = ptxgen.__main__:main\n" in texts["entry_points.txt"]
    assert "[ptxgen.commands]\nattention = flash.commands:COMMANDS\n" in texts["entry_points.txt"]
    metadata = email.message_from_string(texts["METADATA"])
    assert metadata["Version"] == ptxgen.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "docs" / "package.md").read_text(encoding="utf-8")


def test_the_description_on_a_package_index_has_no_link_into_the_repository() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / project["readme"]).read_text(encoding="utf-8")
    assert text.startswith("# ptxgen\n")
    assert relative_links(text) == []
    readme = relative_links((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "docs/own-kernels.md" in readme  # which is why it is not the description
    assert [link for link in readme if not (ROOT / link.partition("#")[0]).exists()] == []


def relative_links(text: str) -> list[str]:
    """The targets of links and images of a Markdown text that are not URLs, without code blocks."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", prose)
    result = [one or other for one, other in targets]
    return [target for target in result if not re.match(r"[a-z]+:|#", target)]


def test_the_installed_program_runs_from_anywhere(built: Built, tmp_path: Path) -> None:
    report(tmp_path, install=built.wheel)  # which makes the environment
    folder = tmp_path / "env"
    python = next(path for path in folder.rglob("python*") if path.parent.name in ("bin", "Scripts"))
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV_"))}

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-m", "ptxgen", *argv],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("--version").stdout == f"ptxgen {ptxgen.__version__}\n"
    made = run("emit", "--head-dim", "64", "-o", "k.ptx")
    assert (made.returncode, made.stderr) == (0, "")
    checked = run("check", "k.ptx", "--no-assemble")
    assert (checked.returncode, checked.stderr) == (0, "")
    measured = run("bench", "--only", "gallery")
    assert (measured.returncode, measured.stderr) == (
        2,
        "ptxgen bench: error: it measures in a checkout of this project (benchmarks/), which this is not\n",
    )
    assert "decode, append, merge " in run("report", "--help").stdout


def test_a_wheel_without_flash_checks_runs_reports_and_mutates(built: Built, tmp_path: Path) -> None:
    checkout = tmp_path / "toolkit"
    shutil.copytree(built.checkout, checkout, ignore=shutil.ignore_patterns("flash", "tests", "docs"))
    (checkout / "docs").mkdir()
    shutil.copy(built.checkout / "docs" / "package.md", checkout / "docs")
    project = (built.checkout / "pyproject.toml").read_text(encoding="utf-8")
    project, packages = re.subn(r'^  "flash(\.\w+)*",\n', "", project, flags=re.MULTILINE)
    project, registered = re.subn(r'^attention = "flash\..*\n', "", project, flags=re.MULTILINE)
    assert packages > 20
    assert registered == 2
    (checkout / "pyproject.toml").write_text(project, encoding="utf-8")
    wheel = build("build_wheel", checkout, tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        assert {name.split("/")[0] for name in archive.namelist() if ".dist-info/" not in name} == {"ptxgen"}
    python = environment(tmp_path, wheel)
    shutil.copy(ROOT / "tests" / "ptx" / "nvcc" / "stencils.sm_80.ptx", tmp_path / "stencils.ptx")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV_"))}
    arguments = [
        word for arg in ("f32:2", "random:f32:200", "zeros:f32:200", "u64:200") for word in ("--arg", arg)
    ]
    launch = ["stencils.ptx", "--entry", "saxpy", "--block", "128", "--grid", "2", *arguments]
    for words, code, said in (
        (["check", *launch, "--no-assemble"], 0, "0 errors, 0 unproved, 0 lints"),
        (["run", *launch, "--sanitize", "--json"], 0, '"reports": []'),
        (["report", *launch, "--no-assemble", "-o", "report.html"], 0, "saxpy: 0 errors, 0 unproved, "),
        (["mutate", *launch, "--kind", "loop-bound", "--jobs", "1"], 1, " mutants, 1 problem, 0 equivalent"),
        (
            ["emit"],
            2,
            "no command 'emit' is installed; the commands are check, run, run-program, debug, report, ",
        ),
    ):
        done = subprocess.run(
            [python, "-m", "ptxgen", *words],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert said in (done.stderr if code == 2 else done.stdout), words
