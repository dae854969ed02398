"""Renders IR as PTX text; the same module always gives the same characters.

It is made without a template, because a process that emits PTX would wait longer for the template engine than
for the text. `ptxgen.parse` reads back exactly what is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from ptxgen.ir import (
    Address,
    Arguments,
    FloatImm,
    Function,
    Instr,
    IntImm,
    Kernel,
    Label,
    Module,
    Not,
    Note,
    Operand,
    Pair,
    Param,
    Pointer,
    Pragma,
    Prototype,
    Reg,
    Region,
    RegisterRange,
    Shared,
    Sink,
    Special,
    Symbol,
    Targets,
    TensorAddress,
    Variable,
    Vector,
    require_module,
)

# Least alignment of dynamic shared memory in bytes, so that 16-byte accesses may be used.
_DYNAMIC_ALIGN: Final = 16
_BYTE: Final = 0xFF
_WORDS: Final = (8, 4, 2)  # bytes of the element types that can hold an address, the largest first


def render(module: Module) -> str:
    """The PTX text of a module, ending in a line break; use `verify` to check the module.

    Raises `TypeMismatchError` if `module` is no `ir.Module`.
    """
    require_module("render", module)
    header = ["//", *(f"// {line}".rstrip() for line in module.header), "//"] if module.header else []
    major, minor = module.version
    head = [*header, f".version {major}.{minor}", f".target {module.target}", ".address_size 64"]
    declarations = [
        *map(_declaration, module.functions),
        *(f".alias {f.name}, {f.alias};" for f in module.functions if f.alias),
        *map(_variable, module.variables),
    ]
    bodies = [*(_function(f) for f in module.functions if f.body is not None), *map(_kernel, module.kernels)]
    groups = [head, _dynamic_arrays(module.kernels), declarations, *bodies]
    return "\n\n".join(["\n".join(group) for group in groups if group]) + "\n"


def render_instr(instr: Instr) -> str:
    """The text of one instruction without the indent, such as `@%p1 add.s32 %r1, %r2, 3;`."""
    operands = ", ".join(map(render_operand, instr.operands))
    text = f"{instr.opcode} {operands};" if operands else f"{instr.opcode};"
    if instr.guard is None:
        return text
    return f"@{'!' if instr.guard.negated else ''}{instr.guard.register.name} {text}"


def render_operand(operand: Operand) -> str:
    """The text of one operand, such as `%r1` or `[%rd1+16]`."""
    return _OPERANDS[operand.__class__](operand)


def _address(operand: Address) -> str:
    if operand.base is None:
        return f"[{operand.offset}]"
    if operand.offset:
        return f"[{operand.base.name}+{operand.offset}]"  # nvcc prints [%r1+-4], too
    return f"[{operand.base.name}]"


def _tensor_address(operand: TensorAddress) -> str:
    where = f"{operand.base.name}+{operand.offset}" if operand.offset else operand.base.name
    return f"[{where}, {{{_several(operand.coordinates)}}}]"


def _symbol(operand: Symbol) -> str:
    return f"{operand.name}+{operand.offset}" if operand.offset else operand.name


def _pair(operand: Pair) -> str:
    return f"{render_operand(operand.first)}|{render_operand(operand.second)}"


def _several(items: Iterable[Operand]) -> str:
    # Most operands are registers; the short cut for them saves most of the time.
    return ", ".join([o.name if o.__class__ is Reg else _OPERANDS[o.__class__](o) for o in items])


def _float(operand: FloatImm) -> str:
    return f"0f{operand.bits:08X}" if operand.width == 32 else f"0d{operand.bits:016X}"


# The printer of each operand class; a chain of isinstance would take longer than the printing.
_OPERANDS: Final[dict[type, Callable[[Any], str]]] = {
    Reg: lambda o: o.name,
    IntImm: lambda o: str(o.value),
    FloatImm: _float,
    Special: lambda o: o.name,
    Symbol: _symbol,
    Address: _address,
    TensorAddress: _tensor_address,
    Vector: lambda o: f"{{{_several(o.items)}}}",
    Arguments: lambda o: f"({_several(o.items)})",
    Pair: _pair,
    Not: lambda o: f"!{o.register.name}",
    Sink: lambda _: "_",
}


def _kernel(kernel: Kernel) -> list[str]:
    """The lines of a kernel."""
    directives = []
    if kernel.threads:
        directives.append(f".maxntid {kernel.threads}, 1, 1")
    if kernel.min_ctas:
        directives.append(f".minnctapersm {kernel.min_ctas}")
    if kernel.reqntid:
        directives.append(f".reqntid {', '.join(map(str, kernel.reqntid))}")
    if kernel.cluster:
        directives.append(f".reqnctapercluster {', '.join(map(str, kernel.cluster))}")
    directives += kernel.directives
    head = f"{_linkage(kernel.linkage)}.entry {kernel.name}({_params(kernel.params)})"
    return [head, *directives, "{", _lines(kernel, map(_region, kernel.regions)), "}"]


def _function(function: Function) -> list[str]:
    """The lines of a function that has a body."""
    directives = [".noreturn"] if function.noreturn else []
    head = f"{_function_head(function)}({_params(function.params)})"
    return [head, *directives, "{", _lines(function, ()), "}"]


def _lines(body: Kernel | Function, comments: Iterable[str]) -> str:
    """The text between the braces of a kernel or a function: declarations and statements."""
    declarations = [
        *map(_registers, body.registers),
        *map(_shared, body.shared),
        *(f"\t{_variable(variable)}" for variable in body.variables),
        *comments,
    ]
    # Most statements are instructions with operands; the short cut for them saves two calls for each.
    lines = [
        f"\t{s.opcode} {_several(s.operands)};"
        if s.__class__ is Instr and s.guard is None and s.operands
        else _LINES[s.__class__](s)
        for s in body.body or ()
    ]
    text = "\n".join(lines).removeprefix("\n")
    return "\n".join([*declarations, "", text] if declarations and text else [*declarations, text])


def _linkage(linkage: str) -> str:
    return f".{linkage} " if linkage else ""


def _function_head(function: Function) -> str:
    results = f"({', '.join(map(_param, function.results))}) " if function.results else ""
    return f"{_linkage(function.linkage)}.func {results}{function.name}"


def _declaration(function: Function) -> str:
    noreturn = " .noreturn" if function.noreturn else ""
    params = ", ".join(map(_param, function.params))
    return f"{_function_head(function)}({params}){noreturn};"


def _params(params: Iterable[Param]) -> str:
    text = ",".join([f"\n\t{_param(param)}" for param in params])
    return f"{text}\n" if text else ""


def _variable(variable: Variable) -> str:
    """The declaration of a variable: a `b8` array unless its initial value holds addresses."""
    if variable.scalar:
        return f".{variable.space} .align {variable.align} .{variable.scalar} {variable.name};"
    count, element = variable.nbytes, 1
    if variable.pointers:
        element = _element(variable)
        count //= element
    type = f"u{8 * element}" if variable.pointers else "b8"
    size = count or ""
    head = f"{_linkage(variable.linkage)}.{variable.space} .align {variable.align}"
    values = _values(variable, element)
    value = f" = {{{', '.join(values)}}}" if values else ""
    return f"{head} .{type} {variable.name}[{size}]{value};"


def _element(variable: Variable) -> int:
    """The size in bytes of an element type in which all addresses of the initial value fit."""
    for nbytes in _WORDS:
        words = {p.offset for p in variable.pointers if p.nbytes == nbytes}
        single = [p.offset for p in variable.pointers if p.nbytes == 1]
        whole = len(words) + len(single) == len(variable.pointers)
        aligned = not any(p.offset % nbytes for p in variable.pointers)
        # The other bytes of an element that holds one byte of an address are zero.
        alone = not any(any(variable.data[at : at + nbytes]) for at in single)
        if words and whole and aligned and alone and not variable.nbytes % nbytes:
            return nbytes
    return 1


def _values(variable: Variable, element: int) -> list[str]:
    data = variable.data.rstrip(b"\0")
    end = max([len(data), *(p.offset + p.nbytes for p in variable.pointers)])
    values = [str(int.from_bytes(data[at : at + element], "little")) for at in range(0, end, element)]
    for pointer in variable.pointers:
        if element > 1 and pointer.nbytes == element:
            values[pointer.offset // element] = _pointer(pointer)
            continue
        for byte in range(pointer.nbytes):
            mask = _BYTE << (pointer.shift + 8 * byte)
            text = f"0x{mask:X}({_pointer(pointer)})"
            values[(pointer.offset + byte) // element] = text
    return values


def _pointer(pointer: Pointer) -> str:
    text = f"generic({pointer.symbol})" if pointer.generic else pointer.symbol
    return f"{text}+{pointer.addend}" if pointer.addend else text


def _targets(targets: Targets) -> str:
    return f"{targets.name}: .{targets.kind} {', '.join(targets.targets)};"


def _prototype(prototype: Prototype) -> str:
    results = f"({', '.join(map(_param, prototype.results))}) " if prototype.results else ""
    params = ", ".join(map(_param, prototype.params))
    noreturn = " .noreturn" if prototype.noreturn else ""
    return f"{prototype.name}: .callprototype {results}_ ({params}){noreturn};"


def _param(param: Param) -> str:
    space = "reg" if param.register else "param"
    align = f".align {param.align} " if param.align else ""
    count = f"[{param.count}]" if param.count else ""
    return f".{space} {align}.{param.type} {param.name}{count}"


_LINES: Final[dict[type, Callable[[Any], str]]] = {
    Instr: lambda s: f"\t{render_instr(s)}",
    Label: lambda s: f'{s.name}:\n\t.pragma "{s.pragma}";' if s.pragma else f"{s.name}:",
    Note: lambda s: f"\n\t// {s.text}",
    Pragma: lambda s: f'\t.pragma "{s.text}";',
    Targets: _targets,
    Prototype: _prototype,
}


def _registers(registers: RegisterRange) -> str:
    count = f"<{registers.count}>" if registers.count else ""
    return f"\t.reg .{registers.declared} {registers.prefix}{count};"


def _shared(shared: Shared) -> str:
    return f"\t.shared .align {shared.align} .b8 {shared.name}[{shared.nbytes}];"


def _region(region: Region) -> str:
    where = f"offset {region.offset}, {region.nbytes} bytes, align {region.align}"
    return f"\t// region {region.name}: {where}"


def _dynamic_arrays(kernels: Iterable[Kernel]) -> list[str]:
    """The declaration of each dynamic shared array, in order of first use, with the largest region
    alignment.
    """
    aligns: dict[str, int] = {}
    for kernel in kernels:
        if kernel.dynamic_shared:
            wanted = max((region.align for region in kernel.regions), default=0)
            known = aligns.get(kernel.dynamic_shared, _DYNAMIC_ALIGN)
            aligns[kernel.dynamic_shared] = max(known, wanted)
    return [f".extern .shared .align {align} .b8 {name}[];" for name, align in aligns.items()]
