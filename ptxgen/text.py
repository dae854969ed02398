"""IR to PTX text. Pure: the same module gives the same characters.

The frame of a module is `templates/module.ptx.j2`; the lines of a kernel, of which there may be
thousands, are made here. `ptxgen.parse` reads back exactly what is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from ptxgen.frames import load_template
from ptxgen.ir import (
    Address,
    FloatImm,
    Instr,
    IntImm,
    Kernel,
    Label,
    Module,
    Note,
    Operand,
    Pair,
    Param,
    Reg,
    Region,
    RegisterRange,
    Shared,
    Special,
    Symbol,
    Vector,
)

# Dynamic shared memory is aligned to at least this, so that 16-byte accesses may be used.
_DYNAMIC_ALIGN: Final = 16


class _Array(NamedTuple):
    """A dynamic shared array, as the template wants it."""

    name: str
    align: int


class _Frame(NamedTuple):
    """A kernel in ready lines, as the template wants it."""

    name: str
    params: str
    directives: list[str]
    lines: str


def render(module: Module) -> str:
    """The PTX text of a module, ending in a line break. Whether it is right, `verify` says."""
    return load_template("module.ptx.j2").render(
        header=[f"// {line}".rstrip() for line in module.header],
        version="{}.{}".format(*module.version),
        target=module.target,
        dynamic=_dynamic_arrays(module.kernels),
        kernels=[_frame(kernel) for kernel in module.kernels],
    )


def render_instr(instr: Instr) -> str:
    """One instruction as it is printed, without the indent: `@%p1 add.s32 %r1, %r2, 3;`."""
    operands = ", ".join(map(render_operand, instr.operands))
    text = f"{instr.opcode} {operands};" if operands else f"{instr.opcode};"
    if instr.guard is None:
        return text
    return f"@{'!' if instr.guard.negated else ''}{instr.guard.register.name} {text}"


def render_operand(operand: Operand) -> str:
    """One operand as it is printed."""
    return _OPERANDS[operand.__class__](operand)


def _address(operand: Address) -> str:
    if operand.offset:
        return f"[{operand.base.name}+{operand.offset}]"  # nvcc prints [%r1+-4], too
    return f"[{operand.base.name}]"


def _float(operand: FloatImm) -> str:
    return f"0f{operand.bits:08X}" if operand.width == 32 else f"0d{operand.bits:016X}"


# By class, because a chain of isinstance would cost more than the printing.
_OPERANDS: Final[dict[type, Callable[[Any], str]]] = {
    Reg: lambda o: o.name,
    IntImm: lambda o: str(o.value),
    FloatImm: _float,
    Special: lambda o: o.name,
    Symbol: lambda o: o.name,
    Address: _address,
    Vector: lambda o: f"{{{', '.join([_OPERANDS[i.__class__](i) for i in o.items])}}}",
    Pair: lambda o: f"{o.first.name}|{o.second.name}",
}


def _instr_line(instr: Instr) -> str:
    # What `render_instr` gives, behind a tab, but faster: most operands are registers.
    if instr.guard is not None:
        return f"\t{render_instr(instr)}"
    operands = instr.operands
    text = ", ".join(
        [o.name if o.__class__ is Reg else _OPERANDS[o.__class__](o) for o in operands]
    )
    return f"\t{instr.opcode} {text};" if operands else f"\t{instr.opcode};"


_LINES: Final[dict[type, Callable[[Any], str]]] = {
    Instr: _instr_line,
    Label: lambda s: f'{s.name}:\n\t.pragma "{s.pragma}";' if s.pragma else f"{s.name}:",
    Note: lambda s: f"\n\t// {s.text}",
}


def _frame(kernel: Kernel) -> _Frame:
    directives = []
    if kernel.threads:
        directives.append(f".maxntid {kernel.threads}, 1, 1")
    if kernel.min_ctas:
        directives.append(f".minnctapersm {kernel.min_ctas}")
    declarations = [
        *map(_registers, kernel.registers),
        *map(_shared, kernel.shared),
        *map(_region, kernel.regions),
    ]
    body = "\n".join([_LINES[s.__class__](s) for s in kernel.body]).removeprefix("\n")
    params = ",".join(map(_param, kernel.params))
    return _Frame(
        kernel.name,
        f"{params}\n" if params else "",
        directives,
        "\n".join([*declarations, "", body] if declarations and body else [*declarations, body]),
    )


def _param(param: Param) -> str:
    return f"\n\t.param .{param.type} {param.name}"


def _registers(registers: RegisterRange) -> str:
    count = f"<{registers.count}>" if registers.count else ""
    return f"\t.reg .{registers.declared} {registers.prefix}{count};"


def _shared(shared: Shared) -> str:
    return f"\t.shared .align {shared.align} .b8 {shared.name}[{shared.nbytes}];"


def _region(region: Region) -> str:
    where = f"offset {region.offset}, {region.nbytes} bytes, align {region.align}"
    return f"\t// region {region.name}: {where}"


def _dynamic_arrays(kernels: Iterable[Kernel]) -> list[_Array]:
    """Each dynamic shared array once, in the order of first use, aligned for every region in it."""
    aligns: dict[str, int] = {}
    for kernel in kernels:
        if kernel.dynamic_shared:
            wanted = max((region.align for region in kernel.regions), default=0)
            known = aligns.get(kernel.dynamic_shared, _DYNAMIC_ALIGN)
            aligns[kernel.dynamic_shared] = max(known, wanted)
    return [_Array(name, align) for name, align in aligns.items()]
