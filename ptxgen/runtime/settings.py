"""Settings from environment variables, which no other module reads.

| variable | meaning | default |
|---|---|---|
| `PTXGEN_CACHE_DIR` | directory of the module cache, absolute | the user's cache directory |
| `PTXGEN_CACHE_SIZE` | largest size of that directory: bytes, or `512MB`, `2GiB` | 512 MiB |
| `PTXGEN_CACHE` | `on`, or `off` for memory only | `on` |
| `PTXGEN_PTXAS` | the ptxas to assemble with | found by search |
| `PTXGEN_BACKEND` | what `backend="auto"` means | `auto` |

An empty variable counts as unset.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ptxgen.errors import ConfigError, did_you_mean

DEFAULT_CACHE_BYTES: Final = 512 << 20
# `cuda` runs the kernel on a GPU, `interpreter` its PTX on the CPU; `cpu` and `compiled` no kernel at all.
BACKENDS: Final[tuple[Literal["cuda", "interpreter", "cpu", "compiled"], ...]] = (
    *("cuda", "interpreter"),
    *("cpu", "compiled"),
)
COMPILED: Final = "compiled"  # numpy, with loops that Numba compiles
WITHOUT_KERNELS: Final = ("cpu", COMPILED)
AUTO: Final = "auto"  # `cuda` if a GPU opens, else `cpu`

_UNIT_BYTES: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of this process.

    `cache_bytes` is the most bytes of the files in `cache_dir`, which is None where PTXGEN_CACHE_DIR is unset
    and the package platformdirs is missing. `cache_on_disk` is False if the cache is in memory only, as it is
    without a directory; `ptxas` is None if it has to be searched for; `backend` is `AUTO` or one of
    `BACKENDS`.
    """

    cache_dir: Path | None
    cache_bytes: int
    cache_on_disk: bool
    ptxas: Path | None
    backend: str

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Settings from `environ`, by default the environment of the process as it is now.

        Raises ConfigError, which names the variable, for an invalid value.
        """
        variables = os.environ if environ is None else environ
        directory = _cache_dir(variables.get("PTXGEN_CACHE_DIR", ""))
        return cls(
            cache_dir=directory,
            cache_bytes=_cache_bytes(variables.get("PTXGEN_CACHE_SIZE", "")),
            cache_on_disk=_choice(variables, "PTXGEN_CACHE", ("on", "off")) == "on" and directory is not None,
            ptxas=_ptxas(variables.get("PTXGEN_PTXAS", "")),
            backend=_choice(variables, "PTXGEN_BACKEND", (AUTO, *BACKENDS)),
        )

    @property
    def disk(self) -> Path | None:
        """The directory of the cache if it is on disk, else None."""
        return self.cache_dir if self.cache_on_disk else None


@functools.cache
def backend_setting() -> str:
    """PTXGEN_BACKEND, read at the first launch of the process."""
    return Settings.from_environment().backend


def _choice(environ: Mapping[str, str], variable: str, accepted: tuple[str, ...]) -> str:
    """The value of `variable`, one of `accepted`; the first of them is the default."""
    value = environ.get(variable, "") or accepted[0]
    if value not in accepted:
        raise ConfigError(
            f"{variable} must be one of {', '.join(accepted)}, got {value!r}{did_you_mean(value, accepted)}"
        )
    return value


def _cache_dir(value: str) -> Path | None:
    if not value:
        try:
            import platformdirs
        except ModuleNotFoundError:
            return None
        return platformdirs.user_cache_path("ptxgen", appauthor=False)
    # A relative path would mean another directory after every change of the working directory.
    # os.path's expanduser leaves `~` alone where there is no home; pathlib's raises.
    path = Path(os.path.expanduser(value))
    if not path.is_absolute():
        raise ConfigError(f"PTXGEN_CACHE_DIR must be an absolute path (or begin with ~), got {value!r}")
    return path


def _cache_bytes(value: str) -> int:
    if not value:
        return DEFAULT_CACHE_BYTES
    # Fifteen digits are a petabyte; more would be a mistake, and int() itself refuses thousands.
    match = re.fullmatch(r"([0-9]{1,15}) ?([A-Za-z]*)", value.strip())
    unit = _UNIT_BYTES.get(match[2].lower()) if match else None
    if match is None or unit is None or int(match[1]) == 0:
        raise ConfigError(
            "PTXGEN_CACHE_SIZE must be a positive whole number of bytes or one with a unit "
            f"(KB, MB, GB, KiB, MiB, GiB) such as 512MB, got {value!r}; "
            "to keep nothing on disk set PTXGEN_CACHE=off"
        )
    return int(match[1]) * unit


def _ptxas(value: str) -> Path | None:
    if not value:
        return None
    path = Path(value)
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ConfigError(
            f"PTXGEN_PTXAS must be the path of an executable file, got {value!r}; "
            "unset it to search the pip package, the toolkit and PATH"
        )
    return path.absolute()
