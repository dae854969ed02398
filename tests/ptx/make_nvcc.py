"""Compile tests/ptx/cuda/*.cu to PTX fixtures: `python tests/ptx/make_nvcc.py`."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE / "cuda"
FIXTURES = HERE / "nvcc"
TARGETS = ("sm_75", "sm_80", "sm_90a")
FLAGS = ("-ptx", "-O3", "-std=c++17")
# Lines of the header that change from build to build of the same compiler.
BUILD_LINES = re.compile(r"^// (Compiler Build ID|Cuda compilation tools|Based on).*\n", re.MULTILINE)

_EPILOG = """\
A source's line `// targets: sm_80 sm_90a` names what it is compiled for; without it, all of
sm_75, sm_80 and sm_90a. The compiler's version and flags go to VERSIONS.json beside the fixtures.
The fixtures in the repository need no compiler to be tested.
"""


def targets_of(source: Path) -> tuple[str, ...]:
    """The targets that the source's `// targets:` line names, or all."""
    result = re.search(r"^// targets: (.+)$", source.read_text(), re.MULTILINE)
    return tuple(result[1].split()) if result else TARGETS


def compiled(nvcc: str, source: Path, target: str) -> str:
    """The PTX that nvcc makes of the source, without the lines that name the build."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.ptx"
        # In the source's folder, so that __FILE__ is its name alone.
        subprocess.run(
            [nvcc, *FLAGS, f"-arch={target.replace('sm', 'compute')}", "-o", str(out), source.name],
            cwd=source.parent,
            check=True,
        )
        return BUILD_LINES.sub("", out.read_text())


def version_of(nvcc: str) -> str:
    text = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    result = re.search(r"release \S+, V(\S+)", text)
    return result[1] if result else text.strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Make the fixtures of the named programs, or of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", help="names of sources without .cu; all by default")
    parser.add_argument("--nvcc", default="nvcc", help="the compiler (default: %(default)s)")
    arguments = parser.parse_args(argv)
    sources = [SOURCES / f"{name}.cu" for name in arguments.programs] or sorted(SOURCES.glob("*.cu"))
    FIXTURES.mkdir(exist_ok=True)
    for source in sources:
        for target in targets_of(source):
            out = FIXTURES / f"{source.stem}.{target}.ptx"
            out.write_text(compiled(arguments.nvcc, source, target))
            sys.stdout.write(f"{out.relative_to(HERE)}: {out.stat().st_size} bytes\n")
    versions = {"nvcc": version_of(arguments.nvcc), "flags": list(FLAGS)}
    (FIXTURES / "VERSIONS.json").write_text(json.dumps(versions, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
