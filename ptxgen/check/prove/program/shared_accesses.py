"""The accesses of an instruction to shared memory, and the variable that each should stay inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ptxgen.check.prove.program.matrices import UNIT, Matrix
from ptxgen.check.prove.program.operands import ROWS_APART, TENSOR, has_rows_apart, pairs, unfollowed
from ptxgen.check.prove.program.values import Node, Values
from ptxgen.check.prove.program.variable_addresses import CLUSTER, GENERIC, SHARED
from ptxgen.check.verify.shapes import Shape, shape_of
from ptxgen.ir import Address, Function, Instr, IntImm, Kernel, Module, Operand, Region, TensorAddress, Vector
from ptxgen.isa.launches import RESPONSE_BYTES
from ptxgen.isa.spec import BoundOperand, Op
from ptxgen.isa.tensor_memory import COPIES
from ptxgen.tensormap import ALIGN, NBYTES
from ptxgen.types import ScalarType

_ROW_BYTES: Final = 16  # bytes of the row that each lane of ldmatrix or stmatrix addresses
_ROW_LANES: Final = {"x1": 8, "x2": 16, "x4": 32}
_MBARRIER_BYTES: Final = 8
_BULK_ALIGN: Final = 16  # alignment of addresses and sizes; PTX ISA, section "cp.async.bulk"
_ZEROS_ALIGN: Final = 8  # alignment of addresses and sizes; PTX ISA, section "st.bulk"
_TENSOR_ALIGN: Final = 128  # PTX ISA, section "cp.async.bulk.tensor"
_WARPGROUP_ROWS: Final = 64  # rows of A
_DYNAMIC_ALIGN: Final = 16  # alignment of dynamic shared memory, at least
# Instructions that take an address and access nothing in shared memory.
_NO_ACCESS: Final = (
    "prefetch",
    "discard",
    "applypriority",
    "isspacep",
    "cvta",
    "mapa",
    "getctarank",
    "createpolicy",
    "fence",
)
_ELEMENT_BYTES: Final = {"f16": 2, "bf16": 2, "tf32": 4, "f32": 4, "s32": 4, "f64": 8, "s8": 1, "u8": 1}


class Touch(NamedTuple):
    """One access: `fixed` bytes at an address, and `scale` more for each of `number`.

    `align` is in bytes; `lanes` is the number of lanes of a warp that take part; `space` is the space of the
    address (an instruction for the whole cluster also takes addresses of its own CTA). The bytes beyond the
    fixed ones must be a multiple of `multiple`. If a `matrix` is accessed, `descriptor` is the operand with
    its address; its shape is that of operand `side`, a or b, of a product if `side` is not empty. If a `box`
    is copied, its tensor map has the size. `wrong` is the reason why the access is a mistake at any address;
    empty if it is none.
    """

    address: Address
    fixed: int
    align: int
    lanes: int = 32
    space: str = SHARED
    scale: int = 0
    number: Operand | None = None
    counted: ScalarType | None = None
    multiple: int = 1
    reason: str = ""
    matrix: Matrix | None = None
    descriptor: Operand | None = None
    box: TensorAddress | None = None
    wrong: str = ""
    side: str = ""


class Home(NamedTuple):
    """A variable in shared memory, or a region of one: `start` is its offset in the variable.
    Dynamic shared memory of unknown size is not `known` and has 0 bytes.
    """

    name: str
    start: int
    nbytes: int
    align: int
    known: bool = True


def touches(instr: Instr) -> Iterable[Touch]:
    """The accesses of an instruction to shared memory and to generic addresses."""
    head = instr.opcode.partition(".")[0]
    shape = shape_of(instr)
    if shape.complaints or shape.op is None or shape.accesses or head in _READERS or unfollowed(shape.op):
        return _touches(instr, head, shape)
    return ()


def _touches(instr: Instr, head: str, shape: Shape) -> Iterator[Touch]:
    if shape.complaints or shape.op is None:
        yield from _not_followed(instr, "the instruction is not in the table")
    elif reason := unfollowed(shape.op):
        yield Touch(Address(None), 1, 1, reason=reason)
    elif head in _READERS:
        yield from _READERS[head](shape.op, instr)
    elif not instr.opcode.startswith(_NO_ACCESS):
        yield from _not_followed(instr, f"how much {head} accesses is not followed")


def _not_followed(instr: Instr, reason: str) -> Iterator[Touch]:
    words = instr.opcode.split(".")
    space = SHARED if any(w.startswith("shared") for w in words) else _unnamed(words)
    if space is None:
        return
    for operand in instr.operands:
        if isinstance(operand, Address):
            yield Touch(operand, 1, 1, space=space, reason=reason)


def _space(op: Op) -> str | None:
    """The space of an instruction's addresses; None for a space other than shared and generic."""
    if "space" not in op.modifiers:
        words = op.opcode.split(".")
        named = next((w for w in words if w.startswith("shared")), None)
        return _named(named) if named is not None else _unnamed(words)
    space = op.modifiers["space"]
    return GENERIC if space is None else _named(str(space))


def _named(space: str) -> str | None:
    if not space.startswith("shared"):
        return None
    return CLUSTER if space == "shared::cluster" else SHARED


def _unnamed(words: list[str]) -> str | None:
    return None if {"global", "param", "const", "local"} & set(words) else GENERIC


def _addresses(op: Op, instr: Instr) -> Iterator[tuple[BoundOperand, Address]]:
    for want, got in pairs(op, instr):
        if want.address and isinstance(got, Address):
            yield want, got


def _plain(op: Op, instr: Instr) -> Iterator[Touch]:
    space = _space(op)
    type = op.modifiers.get("type")
    if op.row.name == "st_bulk":
        yield from _zeros(op, instr)
    if space is None or not isinstance(type, ScalarType):
        return
    count = max((o.count for o in op.operands if not o.address), default=0) or 1
    for want, address in _addresses(op, instr):
        nbytes = _MBARRIER_BYTES if want.name == "mbar" else type.nbytes * count
        yield Touch(address, nbytes, nbytes, space=space)


def _zeros(op: Op, instr: Instr) -> Iterator[Touch]:
    """The access to shared memory of `st.bulk`: the bytes that it sets to zero."""
    size = next((want, got) for want, got in pairs(op, instr) if want.name == "size")
    for _, address in _addresses(op, instr):
        yield Touch(
            address,
            0,
            _ZEROS_ALIGN,
            space=_space(op) or GENERIC,
            scale=1,
            number=size[1],
            counted=size[0].type,
            multiple=_ZEROS_ALIGN,
        )


def _tensormap(op: Op, instr: Instr) -> Iterator[Touch]:
    """The accesses to whole tensor maps, each in shared or in global memory."""
    for want, address in _addresses(op, instr):
        space = {"src": "shared", "dst": None}.get(want.name, _space(op))
        if space is not None:
            yield Touch(address, NBYTES, ALIGN, space=space)


def _rows(op: Op, instr: Instr) -> Iterator[Touch]:
    lanes = _ROW_LANES.get(str(op.modifiers.get("num")), 32)
    space = _space(op)
    if space is None:
        return
    for _, address in _addresses(op, instr):
        yield Touch(address, _ROW_BYTES, _ROW_BYTES, lanes, space)


def _mbarrier(op: Op, instr: Instr) -> Iterator[Touch]:
    space = _space(op)
    if space is None:
        return
    for _, address in _addresses(op, instr):
        yield Touch(address, _MBARRIER_BYTES, _MBARRIER_BYTES, space=space)


def _response(op: Op, instr: Instr) -> Iterator[Touch]:
    """The 16 bytes that a request to cancel a launch writes, and the mbarrier that it signals."""
    space = _space(op)
    for want, address in _addresses(op, instr):
        nbytes = _MBARRIER_BYTES if want.name == "mbar" else RESPONSE_BYTES
        if space is not None:
            yield Touch(address, nbytes, nbytes, space=space)


def _copy(op: Op, instr: Instr) -> Iterator[Touch]:
    """The accesses of `cp.async` and its bulk forms, with the mbarriers that they signal."""
    if op.opcode.startswith("cp.async.mbarrier"):
        yield from _mbarrier(op, instr)
        return
    by_name = {want.name: got for want, got in pairs(op, instr)}
    bulk, tensor = ".bulk" in op.opcode, ".tensor" in op.opcode
    size = by_name.get("size")
    for want, address in _addresses(op, instr):
        reads = want.name == "src"
        space = SHARED if reads or "shared::cluster" not in op.opcode else CLUSTER
        if want.name == "mbar":
            yield Touch(address, _MBARRIER_BYTES, _MBARRIER_BYTES, space=space)
        elif want.type is None or want.type.bits != 32:  # a 64-bit address is in global memory
            continue
        elif has_rows_apart(instr):
            yield Touch(address, 1, 1, space=space, reason=ROWS_APART)
        elif tensor:
            box = next(got for got in by_name.values() if isinstance(got, TensorAddress))
            yield Touch(address, 1, _TENSOR_ALIGN, space=space, box=box)
        elif bulk:
            counted = next(w.type for w, _ in pairs(op, instr) if w.name == "size")
            yield Touch(
                address,
                0,
                _BULK_ALIGN,
                space=space,
                scale=1,
                number=size,
                counted=counted,
                multiple=_BULK_ALIGN,
            )
        else:
            read_size = by_name.get("cp_size")
            nbytes = read_size.value if isinstance(read_size, IntImm) else 16
            yield Touch(address, nbytes, nbytes)


def _wmma(op: Op, instr: Instr) -> Iterator[Touch]:
    space = _space(op)
    words = op.opcode.split(".")
    if space is None or words[1] == "mma":
        return
    by_name = {want.name: (want, got) for want, got in pairs(op, instr)}
    nbytes = _ELEMENT_BYTES.get(words[-1], 0)
    lines, width = _extent(words)
    for _, address in _addresses(op, instr):
        if not nbytes:
            reason = f"elements of {words[-1]} are not followed"
            yield Touch(address, 1, 1, space=space, reason=reason)
            continue
        want, stride = by_name["stride"]
        whole = lines * width if stride is None else width
        yield Touch(
            address,
            whole * nbytes,
            nbytes,
            32,
            space,
            0 if stride is None else (lines - 1) * nbytes,
            stride,
            want.type,
        )


def _extent(words: list[str]) -> tuple[int, int]:
    """The number of lines of a matrix in memory, and the number of elements in a line."""
    shape = next(w for w in words if w[0] == "m" and w[1:2].isdigit())
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    rows, columns = {"a": (m, k), "b": (k, n)}.get(words[2], (m, n))
    row_major = "row" in words
    return (int(rows), int(columns)) if row_major else (int(columns), int(rows))


def _matrix_product(op: Op, instr: Instr) -> Iterator[Touch]:
    if not op.opcode.startswith("wgmma.mma_async"):
        return
    by_name = {want.name: got for want, got in pairs(op, instr)}
    columns = str(op.modifiers["shape"]).partition("n")[2].partition("k")[0]
    for name, rows in (("a", _WARPGROUP_ROWS), ("b", int(columns))):
        got = by_name[name]
        if isinstance(got, Vector):  # A in registers
            continue
        flag = by_name.get(f"t{name}")
        transposed = isinstance(flag, IntImm) and flag.value != 0
        matrix = Matrix(f"matrix {name.upper()}", rows, transposed)
        yield Touch(Address(None), 0, UNIT, matrix=matrix, descriptor=got)


def _tensor(op: Op, instr: Instr) -> Iterator[Touch]:
    """The accesses of instructions on tensor memory to shared memory: the address that an allocation writes,
    the mbarrier at which a commit arrives, and matrices that products and copies read.
    """
    what = op.opcode.split(".")[1]
    for want, got in pairs(op, instr):
        if what in _ADDRESSED and want.address and isinstance(got, Address):
            nbytes = _ADDRESSED[what]
            yield Touch(got, nbytes, nbytes, space=_space(op) or GENERIC)
        elif what == "mma" and want.name in ("a", "b") and not isinstance(got, Address):
            matrix = Matrix(f"matrix {want.name.upper()}", 0, False, tensor=True)
            yield Touch(Address(None), 0, UNIT, matrix=matrix, descriptor=got, side=want.name)
        elif what == "cp" and want.name == "b":
            rows, nbytes = COPIES[str(op.modifiers["shape"])]
            matrix = Matrix("its matrix", rows, False, nbytes, tensor=True)
            yield Touch(Address(None), 0, UNIT, matrix=matrix, descriptor=got)


_ADDRESSED: Final = {"alloc": 4, "commit": _MBARRIER_BYTES}  # bytes

_READERS: Final = {
    **dict.fromkeys(("ld", "ldu", "st", "atom", "red"), _plain),
    "tensormap": _tensormap,
    **dict.fromkeys(("ldmatrix", "stmatrix"), _rows),
    "mbarrier": _mbarrier,
    "cp": _copy,
    "clusterlaunchcontrol": _response,
    "wmma": _wmma,
    "wgmma": _matrix_product,
    TENSOR: _tensor,
}


# ------------------------------------------------------------------------------ variables


def homes(
    module: Module, kernel: Kernel | Function, dynamic: int | None, dynamic_align: int = 1
) -> dict[str, Home]:
    """The variables in shared memory that a kernel may name. Dynamic variables have `dynamic` bytes
    (None: not known), at a multiple of at least `dynamic_align`.
    """
    known = dynamic is not None
    nbytes = dynamic or 0
    least = max(_DYNAMIC_ALIGN, dynamic_align)
    variables = {}
    hidden = {p.name for p in kernel.params} | {v.name for v in kernel.variables}
    for variable in module.variables:
        if variable.space == "shared" and variable.name not in hidden:
            if variable.nbytes:
                variables[variable.name] = Home(variable.name, 0, variable.nbytes, variable.align)
                continue
            align = max(variable.align, least)
            variables[variable.name] = Home(variable.name, 0, nbytes, align, known)
    for shared in kernel.shared:
        variables[shared.name] = Home(shared.name, 0, shared.nbytes, shared.align)
    if isinstance(kernel, Kernel) and kernel.dynamic_shared:
        align = max([least, *(r.align for r in kernel.regions)])
        variables[kernel.dynamic_shared] = Home(kernel.dynamic_shared, 0, nbytes, align, known)
    return variables


def region_home(region: Region, variable: Home) -> Home:
    """The `Home` for a region of a shared variable: the part of the variable that it is."""
    return Home(region.name, region.offset, region.nbytes, variable.align)


class Provenance:
    """The shared variables that an address is computed from, and the constant added to them."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._symbols: dict[int, frozenset[str]] = {}
        self._constants: dict[int, int | None] = {}
        self._added_up: set[int] = set()  # numbers of the values with a final constant

    def symbols(self, node: Node) -> frozenset[str]:
        """The shared variables whose address a value is computed from."""
        symbols = self._symbols.get(node.id)
        if symbols is None:
            symbols = frozenset(n.data for n in self._sources(node) if n.kind == "symbol")
            self._symbols[node.id] = symbols
        return symbols

    def constant(self, node: Node) -> int | None:
        """The constant that is added to the variable's address; in a loop, before its first
        iteration. None if it depends on the path taken.
        """
        known = self._constants
        stack = [node]
        while stack:
            top = stack[-1]
            if top.id not in known:
                known[top.id] = None  # until it is known, for a value that depends on itself
                stack += [p for p in self._summed(top) if p.id not in known]
                continue
            stack.pop()
            if top.id not in self._added_up:
                self._added_up.add(top.id)
                known[top.id] = self._sum(top, [known[p.id] for p in self._summed(top)])
        return known[node.id]

    def _summed(self, node: Node) -> Sequence[Node]:
        """The summands of a constant, or the values that it selects from."""
        if node.kind in ("join", "header"):
            latches = self._values.graph.latches.get(node.block, ())
            return [v for b, v in self._values.meeting(node) if b not in latches]
        if node.kind == "choose":
            return node.args[1:]
        if node.kind in ("offset", "window", "unwindowed", "mapped"):
            return node.args[:1]
        if node.kind != "apply":
            return ()
        head = node.data.op.opcode.partition(".")[0]
        if head in ("mov", "cvt", "add"):
            return node.args
        if head == "sub" and node.args[1].kind == "const":
            return node.args
        if head in ("mad", "selp"):
            return node.args[2:] if head == "mad" else node.args[:2]
        return [a for a in node.args if self.symbols(a)][:1]

    def _sum(self, node: Node, parts: list[int | None]) -> int | None:
        if node.kind == "const":
            return node.data - (1 << node.bits) if node.data >> (node.bits - 1) else int(node.data)
        head = node.data.op.opcode.partition(".")[0] if node.kind == "apply" else ""
        if node.kind in ("join", "header", "choose") or head == "selp":
            met = set(parts)
            return met.pop() if len(met) == 1 else None
        if head == "sub" and len(parts) > 1 and parts[1] is not None:
            parts[1] = -parts[1]
        total = node.data if node.kind == "offset" else 0
        for part in parts:
            if part is None:
                return None
            total += part
        return total

    def _sources(self, node: Node) -> Iterator[Node]:
        seen, stack = {node.id}, [node]
        while stack:
            node = stack.pop()
            yield node
            more = list(node.args) if node.kind != "function" else []
            if node.kind in ("join", "header"):
                more += [value for _, value in self._values.meeting(node)]
            for other in more:
                if other.id not in seen:
                    seen.add(other.id)
                    stack.append(other)


def home_of(constant: int, variable: Home, regions: Mapping[str, Home]) -> Home | None:
    """The region that contains offset `constant` of a variable; the variable itself if it has no regions."""
    if not regions:
        return variable
    inside = (h for h in regions.values() if h.start <= constant < h.start + h.nbytes)
    return next(inside, None)
