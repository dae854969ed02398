"""A module's variables in global and constant memory: placed once in an arena, and kept there from
launch to launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxgen.errors import LaunchError, did_you_mean, shown
from ptxgen.interpreter.machine.address_map import WINDOWS
from ptxgen.interpreter.program.linking import code_addresses, constants, initial

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.arena import DeviceArena
    from ptxgen.ir import Module, Variable

    Lanes = np.ndarray[Any, np.dtype[Any]]

Contents = Mapping[str, "np.ndarray[Any, np.dtype[Any]] | bytes"]


@dataclass(slots=True)
class ModuleMemory:
    """The bytes of a module's variables by name, and the addresses of those in global memory.

    `constant` is all constant memory; the variables in it are views of it.
    """

    module: Module
    variables: dict[str, Lanes]
    addresses: dict[str, int]
    constant: Lanes


def module_memory(module: Module, arena: DeviceArena, text: str | None = None) -> ModuleMemory:
    """The variables of a module in an arena; the first call gives them their initial values.

    A module that was given as `text` is found by its text, since each parse makes another module.
    Raises `LaunchError` for a variable that is declared but not defined, and for one that does not
    fit the memory of the machine.
    """
    key = id(module) if text is None else text
    held: ModuleMemory | None = arena.modules.get(key)
    if held is not None:
        return held
    const, nbytes = constants(module)
    memory = ModuleMemory(module, {}, {}, _zeros(nbytes, "the module's constant variables"))
    for variable in module.variables:
        if variable.linkage == "extern" and variable.space in ("global", "const"):
            raise LaunchError(
                f"the module declares {variable.name} but does not define it; "
                "link the modules first, or give it a definition"
            )
        if variable.space == "global":
            data = _zeros(variable.nbytes, f"the module's variable {variable.name}")
            memory.variables[variable.name] = data
            memory.addresses[variable.name] = arena.place(data, name=variable.name)
    first = min((address for _, address in const.values()), default=0)
    for name, (variable, address) in const.items():
        start = address - first
        memory.variables[name] = memory.constant[start : start + variable.nbytes]
    known = {
        **code_addresses(module),
        **memory.addresses,
        **{name: address for name, (_, address) in const.items()},
    }
    for variable in module.variables:
        # All else is zero already; writing it would use real memory that may never be needed.
        if variable.name in memory.variables and (variable.data or variable.pointers):
            memory.variables[variable.name][:] = np.frombuffer(_value(variable, known, const), np.uint8)
    arena.modules[key] = memory
    return memory


def _zeros(nbytes: int, caller: str) -> Lanes:
    try:
        return np.zeros(nbytes, np.uint8)
    except (MemoryError, ValueError):  # numpy raises either for an array that is too large
        raise LaunchError(
            f"{caller} must fit the memory of this machine, got {nbytes} bytes; declare fewer"
        ) from None


def _value(variable: Variable, known: Mapping[str, int], constant: Iterable[str]) -> bytes:
    missing = [p.symbol for p in variable.pointers if p.symbol not in known]
    if missing:
        raise LaunchError(
            f"{variable.name} is initialised with the address of {missing[0]}, which the module "
            "does not define"
        )
    windows = dict.fromkeys(constant, WINDOWS["const"])
    return initial(variable, lambda name, generic: known[name] + generic * windows.get(name, 0))


def fill(memory: ModuleMemory, contents: Contents) -> None:
    """Give variables new values, as `cudaMemcpyToSymbol` does. Raises `LaunchError`."""
    if not isinstance(contents, Mapping):
        raise LaunchError(f"symbols must be a mapping from names to values, got {type(contents).__name__}")
    for name, value in contents.items():
        held = memory.variables.get(name)
        if held is None:
            raise LaunchError(
                f"the module has no variable {shown(name)} in global or constant memory"
                f"{did_you_mean(name, memory.variables)}"
            )
        data = _bytes_of(name, value)
        if len(data) > len(held):
            raise LaunchError(f"{name} has {len(held)} bytes, got {len(data)}")
        held[: len(data)] = np.frombuffer(data, np.uint8)


def _bytes_of(name: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return value.tobytes()
    got = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else repr(value)
    raise LaunchError(f"{name} must be given as a numpy array or number, or bytes, got {got}")
