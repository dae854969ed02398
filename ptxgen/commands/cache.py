"""Look after the module cache on disk: `ptxgen cache info|verify|clear`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ptxgen.commands.parts.command_line import CommandParser
from ptxgen.commands.parts.exits import FAILED, OK, USAGE, fail
from ptxgen.commands.parts.standard_output import tell
from ptxgen.errors import ConfigError
from ptxgen.runtime.cache import CacheInfo, DiskCache
from ptxgen.runtime.settings import Settings

NAME: Final = "ptxgen cache"

_EPILOG = """\
examples:
  ptxgen cache info                   what the cache holds
  ptxgen cache verify                 read every entry and check all of its bytes
  ptxgen cache verify --fix           and remove those that are damaged
  ptxgen cache clear --dir /srv/ptx   remove every entry of another directory

exit codes:
  0  done, nothing wrong
  1  a damaged entry was found (removed or not), or the directory is not usable
  2  wrong usage, or an environment variable with a value that cannot be used

The directory is PTXGEN_CACHE_DIR, by default in the user's cache directory; its cap is
PTXGEN_CACHE_SIZE. A damaged entry is never loaded: it is built again when it is needed.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0 when all is well, 1 when a check failed, 2 for wrong settings.

    Raises SystemExit, as argparse does, with 2 for wrong arguments and 0 after `--help`.
    """
    arguments = _parser().parse_args(argv)
    try:
        settings = Settings.from_environment()
    except ConfigError as error:
        return fail(NAME, USAGE, error)
    if arguments.dir is not None:
        # --dir implies a cache on disk.
        settings = replace(settings, cache_dir=arguments.dir.absolute(), cache_on_disk=True)
    if settings.cache_dir is None:
        return fail(
            NAME,
            USAGE,
            "the cache has no directory: pip install platformdirs, which knows the user's cache directory, "
            "set PTXGEN_CACHE_DIR, or pass --dir",
        )
    disk = DiskCache(settings.cache_dir, settings.cache_bytes)
    try:
        if arguments.command == "info":
            return _info(disk, settings.cache_on_disk, arguments.json)
        if arguments.command == "verify":
            return _verify(disk, arguments.fix, arguments.json)
        return _clear(disk, arguments.json)
    except (ConfigError, OSError) as error:
        return fail(NAME, FAILED, error)


def _parser() -> CommandParser:
    parser = CommandParser(NAME, "Look after the cache of assembled modules and proofs.", _EPILOG)
    shared = CommandParser("", add_help=False)
    shared.add_argument("--dir", type=Path, metavar="DIRECTORY", help="the cache directory")
    shared.add_argument("--json", action="store_true", help="print JSON")
    commands = parser.add_subparsers(dest="command", required=True, metavar="info|verify|clear")
    commands.add_parser("info", parents=[shared], help="count entries and bytes, by target")
    verify = commands.add_parser("verify", parents=[shared], help="check every byte of every entry")
    verify.add_argument("--fix", action="store_true", help="remove the damaged entries")
    commands.add_parser("clear", parents=[shared], help="remove every entry, and no other file")
    return parser


def _info(disk: DiskCache, on_disk: bool, as_json: bool) -> int:
    info = disk.info()
    if as_json:
        _print_json(
            directory=str(disk.directory),
            on_disk=on_disk,
            entries=info.total.entries,
            bytes=info.total.nbytes,
            max_bytes=disk.max_bytes,
            oldest=_time(info.oldest),
            newest=_time(info.newest),
            temporaries=info.temporaries,
            targets={
                target: {"entries": usage.entries, "bytes": usage.nbytes}
                for target, usage in info.by_target.items()
            },
        )
        return OK
    for name, value in (*_state_rows(disk, on_disk), *_usage_rows(info)):
        tell(f"{name:<12} {value}")
    return OK


def _state_rows(disk: DiskCache, on_disk: bool) -> list[tuple[str, str]]:
    return [
        ("directory", str(disk.directory)),
        ("state", "on" if on_disk else "off (PTXGEN_CACHE=off): not used"),
        ("cap", f"{disk.max_bytes:,} bytes"),
    ]


def _usage_rows(info: CacheInfo) -> list[tuple[str, str]]:
    return [
        ("entries", f"{info.total.entries} entries, {info.total.nbytes:,} bytes"),
        ("oldest use", _time(info.oldest) or "-"),
        ("newest use", _time(info.newest) or "-"),
        ("unfinished", f"{info.temporaries} files, being written or left by a killed writer"),
        *(
            (target, f"{usage.entries} entries, {usage.nbytes:,} bytes")
            for target, usage in info.by_target.items()
        ),
    ]


def _verify(disk: DiskCache, fix: bool, as_json: bool) -> int:
    checked, damaged = disk.verify()
    if fix:
        disk.discard(damaged)
    if as_json:
        _print_json(
            directory=str(disk.directory),
            checked=checked,
            removed=len(damaged) if fix else 0,
            damaged=[{"file": damage.path.name, "reason": damage.reason} for damage in damaged],
        )
    else:
        for damage in damaged:
            tell(f"{damage.path} {damage.reason}{'; removed' if fix else ''}")
        tell(f"{checked} entries checked, {len(damaged)} damaged")
        if damaged and not fix:
            tell("verify --fix removes them")
    return FAILED if damaged else OK


def _clear(disk: DiskCache, as_json: bool) -> int:
    removed, skipped = disk.clear()
    if as_json:
        _print_json(
            directory=str(disk.directory),
            removed=removed.entries,
            bytes=removed.nbytes,
            kept=[path.name for path in skipped],
        )
        return OK
    tell(f"{disk.directory}: removed {removed.entries} files, {removed.nbytes:,} bytes")
    for path in skipped:
        tell(f"kept {path}: it does not begin as an entry does")
    return OK


def _time(seconds: float | None) -> str | None:
    """Seconds since the epoch as local time with its offset from UTC; None stays None."""
    if seconds is None:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))


def _print_json(**fields: object) -> None:
    tell(json.dumps(fields, indent=2))
