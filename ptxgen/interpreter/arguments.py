"""The arguments of a launch as the bytes of a kernel's parameters, and the extents of the launch.
Errors are raised before anything runs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptxgen.arguments import extents as find_extents
from ptxgen.errors import LaunchError, shown
from ptxgen.interpreter.machine.arena import joined_ranges
from ptxgen.interpreter.program.linking import param_bytes
from ptxgen.target import MAX_BLOCK, MAX_GRID, MAX_THREADS
from ptxgen.tensormap import NBYTES, TensorMap
from ptxgen.texture import Surface, Texture
from ptxgen.types import TYPES

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.arena import DeviceArena
    from ptxgen.interpreter.program.linking import Linked
    from ptxgen.ir import Kernel, Param

    Lanes = np.ndarray[Any, np.dtype[Any]]

Argument = np.ndarray[Any, np.dtype[Any]] | np.generic | int | float | bytes | TensorMap | Texture | Surface
Extent = int | Sequence[int]
Extents = tuple[int, int, int]

_HANDLE_BYTES: Final = 8  # bytes of the handle of a texture or a surface
_MAX_CLUSTER: Final = 16  # CTAs; PTX ISA, section "Cluster Dimension Directives", with opt-in


def extents(kernel: Kernel, grid: Extent, block: Extent, cluster: Extent) -> tuple[Extents, ...]:
    """Grid, block and cluster with three extents each. Raises `LaunchError`."""
    grid, block = _extent(kernel, "grid", grid), _extent(kernel, "block", block)
    cluster = _extent(kernel, "cluster", cluster)
    _check_block(kernel, block)
    if any(g > most for g, most in zip(grid, MAX_GRID, strict=True)):
        raise LaunchError(f"{kernel.name}: grid must be at most {MAX_GRID}, got {grid}")
    if kernel.cluster:
        wanted = _extent(kernel, "cluster", kernel.cluster)
        if cluster not in ((1, 1, 1), wanted):
            raise LaunchError(
                f"{kernel.name} runs in clusters of {wanted} CTAs (.reqnctapercluster), got cluster={cluster}"
            )
        cluster = wanted
    if math.prod(cluster) > _MAX_CLUSTER:
        raise LaunchError(f"{kernel.name}: a cluster has at most {_MAX_CLUSTER} CTAs, got {cluster}")
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise LaunchError(f"{kernel.name}: grid must be a multiple of the cluster {cluster}, got {grid}")
    return grid, block, cluster


def _check_block(kernel: Kernel, block: Extents) -> None:
    threads = math.prod(block)
    if threads > MAX_THREADS:
        raise LaunchError(
            f"{kernel.name}: a block has at most {MAX_THREADS} threads, got {block}, {threads} threads"
        )
    if block[2] > MAX_BLOCK[2]:
        raise LaunchError(f"{kernel.name}: block must be at most {MAX_BLOCK}, got {block}")
    if kernel.threads and threads > kernel.threads:
        raise LaunchError(
            f"{kernel.name} promises at most {kernel.threads} threads a block (.maxntid), got {threads}"
        )
    if kernel.reqntid and block != (*kernel.reqntid, 1, 1)[:3]:
        raise LaunchError(f"{kernel.name} runs in blocks of {kernel.reqntid} threads (.reqntid), got {block}")


def _extent(kernel: Kernel, what: str, extent: Extent) -> Extents:
    sizes = find_extents(extent)
    if sizes is None:
        raise LaunchError(f"{kernel.name}: {what} must be one to three numbers from 1, got {shown(extent)}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def params_memory(linked: Linked, args: Sequence[Argument], arena: DeviceArena) -> Lanes:
    """The bytes of a kernel's parameters. Arrays, and the arrays of tensor maps, become device
    memory, and the parameters hold their addresses.

    Raises `LaunchError`.
    """
    kernel = linked.kernel
    _check_list(kernel, args)
    if len(args) != len(kernel.params):
        names = ", ".join(f"{p.name}: {p.type}" for p in kernel.params)
        raise LaunchError(f"{kernel.name} takes {len(kernel.params)} arguments ({names}), got {len(args)}")
    caller = [f"{kernel.name}: argument {n} ({p.name})" for n, p in enumerate(kernel.params)]
    triples = list(zip(caller, kernel.params, args, strict=True))
    plain = {p.name: _plain(words, p, a, arena) for words, p, a in triples if not _has_memory(a)}
    arrays = [
        (p.name, _array(words, p, a))
        for words, p, a in triples
        if isinstance(a, (np.ndarray, TensorMap)) and _has_memory(a)
    ]
    for low, high, owners, writable, name in joined_ranges(arrays):
        arena.add_buffer(low, high, owners, writable, name=name)
    addresses = {name: arena.address_of(array) for name, array in arrays}
    memory = np.zeros(linked.param_bytes, np.uint8)
    for (_, param, argument), offset in zip(triples, linked.param_offsets, strict=True):
        if isinstance(argument, TensorMap):
            base = argument.base if isinstance(argument.base, int) else addresses[param.name]
            data = argument.encode(base)
        elif param.name in addresses:
            data = addresses[param.name].to_bytes(8, "little")
        else:
            data = plain[param.name]
        memory[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
    return memory


def _check_list(kernel: Kernel, args: object) -> None:
    if not isinstance(args, Sequence) or isinstance(args, (str, bytes)):
        raise LaunchError(
            f"{kernel.name}: args must be a list with an argument for each parameter, "
            f"got {type(args).__name__}"
        )


def _has_memory(argument: Argument) -> bool:
    """Whether an argument is, or describes, a host array that becomes device memory."""
    base = argument.base if isinstance(argument, TensorMap) else argument
    return isinstance(base, np.ndarray)


def _array(caller: str, param: Param, argument: Lanes | TensorMap) -> Lanes:
    if isinstance(argument, TensorMap):
        if param_bytes(param) != NBYTES:
            raise LaunchError(f"{caller} has {param_bytes(param)} bytes, a tensor map has {NBYTES}")
        assert isinstance(argument.base, np.ndarray)
        return argument.base
    if TYPES[param.type].bits != 64 or TYPES[param.type].is_float or param.count:
        wanted = f"a number for its type {param.type}"
        if param.count:
            wanted = f"bytes or a numpy structure for its {param_bytes(param)} bytes"
        raise LaunchError(f"{caller} must be {wanted}, got an array")
    if argument.dtype.hasobject:
        raise LaunchError(f"{caller} must be an array of numbers, got {argument.dtype}")
    return argument


def _plain(caller: str, param: Param, value: Any, arena: DeviceArena) -> bytes:
    type, wanted = TYPES[param.type], param_bytes(param)
    if isinstance(value, (Texture, Surface)):
        if param.count or type.is_float or wanted != _HANDLE_BYTES:
            raise LaunchError(
                f"{caller} must fit its {wanted} bytes of type {type}, got a "
                f"{_name_of(value)}, whose handle is an integer of {_HANDLE_BYTES} bytes"
            )
        return arena.bind(value).to_bytes(_HANDLE_BYTES, "little")
    if param.count or isinstance(value, (bytes, np.void)):
        data = value if isinstance(value, bytes) else getattr(value, "tobytes", bytes)()
        if len(data) != wanted:
            raise LaunchError(
                f"{caller} must be a structure of {wanted} bytes, got "
                f"{f'{len(data)} bytes' if data else repr(value)}"
            )
        return data
    if type.is_float:
        if not isinstance(value, (int, float, np.integer, np.floating)):
            raise LaunchError(f"{caller} must be a number for its type {type}, got {shown(value)}")
        return _float(caller, param, value)
    if type.kind == "b" and isinstance(value, np.generic) and value.dtype.kind not in "iub":
        if value.nbytes != wanted:
            raise LaunchError(f"{caller} must have {wanted} bytes for its type {type}, got {shown(value)}")
        return value.tobytes()
    return _integer(caller, param, value)


def _name_of(value: Texture | Surface) -> str:
    return type(value).__name__


def _float(caller: str, param: Param, value: Any) -> bytes:
    type = TYPES[param.type]
    try:
        with np.errstate(over="ignore"):
            rounded = np.asarray(value, type.dtype)
    except OverflowError:  # the integer is too large for any float
        rounded = np.asarray(np.inf, type.dtype)
    if np.isinf(rounded) and value not in (np.inf, -np.inf):
        raise LaunchError(f"{caller} must be a number that its type {type} has, got {shown(value)}")
    return rounded.tobytes()


def _integer(caller: str, param: Param, value: Any) -> bytes:
    type = TYPES[param.type]
    try:
        whole = operator.index(value.item() if isinstance(value, np.bool_) else value)
    except TypeError:
        hint = ""
        if isinstance(value, float) and type.kind == "b" and type.bits in (16, 32, 64):
            hint = f"; for the bits of a float, pass np.float{type.bits}({value})"
        raise LaunchError(
            f"{caller} must be an integer for its type {type}, got {shown(value)}{hint}"
        ) from None
    # Compilers also declare signed parameters as unsigned or untyped.
    low, high = -(1 << (type.bits - 1)), (1 << type.bits) - 1
    if not low <= whole <= high:
        raise LaunchError(f"{caller} must be from {low} to {high} for its type {type}, got {whole}")
    return (whole & ((1 << type.bits) - 1)).to_bytes(type.nbytes, "little")
