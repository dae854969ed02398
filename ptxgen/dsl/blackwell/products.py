"""Products in tensor memory: checks of their operands, and the descriptor of their instruction."""

from __future__ import annotations

from ptxgen.dsl.blackwell.operands import FP4, Format, is_packed, kind_of, step_elements
from ptxgen.dsl.blackwell.scales import Scales
from ptxgen.dsl.blackwell.tensor_operand import TensorOperand
from ptxgen.dsl.hopper.products import FP8, Operand
from ptxgen.errors import ConfigError, TypeMismatchError
from ptxgen.isa.mma_descriptor import Product

_WIDE_STEP = 16  # columns of B of 8-bit elements whose rows in memory are those of K


def checked_product(
    caller: str,
    shape: tuple[int, int],
    a: Operand | TensorOperand,
    b: Operand,
    form: Format | None,
    group: int,
) -> Product:
    """The product of one instruction of `a` @ `b`, for sums of this shape in each CTA. Raises
    `TypeMismatchError` and `ConfigError`, whose messages begin with `caller`, for operands that no product
    takes.
    """
    names = f"{caller}: {_described(a)} times {_described(b)}"
    kind, left, right = _types(names, a, b) if form is None else _scaled_types(names, a, b, form)
    rows, columns = shape
    if a.rows != rows or b.columns != columns // group or a.columns != b.rows:
        raise ConfigError(
            f"{names}: expected {rows} x K and K x {columns // group} in each CTA, for sums of {rows} x "
            f"{columns}; a tile whose rows are columns of the product is transposed by .T"
        )
    step = step_elements(b.dtype)
    if a.columns % step:
        raise ConfigError(f"{names}: expected columns of a in multiples of {step}, those of one product")
    _require_swizzles(names, a, b)
    m_major, n_major = isinstance(a, Operand) and a.transposed, not b.transposed
    if (m_major or n_major) and (kind == "tf32" or left == FP4):
        raise ConfigError(
            f"{names}: of f32 and e2m1, expected the rows of a and the columns of b as rows in memory, as in "
            "mma(a, b.T)"
        )
    if n_major and kind.endswith("f8f6f4") and columns % (_WIDE_STEP * group):
        raise ConfigError(
            f"{names}: of 8-bit elements whose rows in memory are those of K, expected columns of the sums "
            f"in multiples of {_WIDE_STEP * group}"
        )
    depth, scale = (step, "") if form is None else (step << (left == FP4), form.scale)
    return Product(
        kind, group, rows * group, columns, depth, left, right, "f32", m_major, n_major, scale=scale
    )


def check_scales(caller: str, shape: tuple[int, int], scales: tuple[Scales, Scales], factors: int) -> None:
    """Raise `ConfigError` unless the scale factors are those of the rows and columns of sums of this shape,
    `factors` or more for each.
    """
    for name, of, rows in zip("ab", scales, shape, strict=True):
        if of.rows != rows or of.factors < factors:
            raise ConfigError(
                f"{caller}: expected scale factors of {name} for {rows} rows, {factors} or more for each, "
                f"got {of!r}"
            )


def _types(names: str, a: Operand | TensorOperand, b: Operand) -> tuple[str, str, str]:
    """The kind of a product without scale factors, and the types of its operands."""
    (kind, left), (of_b, right) = kind_of(a.dtype, a.fp8), kind_of(b.dtype, b.fp8)
    if not kind or kind != of_b or (kind == "f16" and left != right):
        raise TypeMismatchError(
            f"{names}: expected two matrices of f16, two of bf16, two of f32, or two of {' or '.join(FP8)} "
            "by as_fp8"
        )
    return kind, left, right


def _scaled_types(names: str, a: Operand | TensorOperand, b: Operand, form: Format) -> tuple[str, str, str]:
    """The kind of a product with scale factors, and the types of its operands: one in tensor memory is of
    fp8.
    """
    fp4 = form.kind != "mxf8f6f4"
    if fp4:
        fits = all(isinstance(one, Operand) and is_packed(one) for one in (a, b))
    else:
        fits = bool(a.fp8 and b.fp8)
    if not fits:
        wanted = f"matrices of {' or '.join(FP8)}, tiles by as_fp8"
        wanted = "tiles of u8 with two e2m1 in each byte" if fp4 else wanted
        raise TypeMismatchError(f"{names}: for these scales, expected two {wanted}")
    return (form.kind, FP4, FP4) if fp4 else (form.kind, a.fp8, b.fp8)


def _require_swizzles(names: str, *operands: Operand | TensorOperand) -> None:
    for one in operands:
        if isinstance(one, Operand) and one.layout.swizzle == "none":
            raise ConfigError(
                f"{names}: tile {one.name!r} has no swizzle, expected rows of a multiple of 32 bytes, or "
                "swizzle='128B'"
            )


def _described(of: Operand | TensorOperand) -> str:
    """The words for an operand of a product in an error message."""
    suffix = ".T" if isinstance(of, Operand) and of.transposed else ""
    return f"{of.name}{suffix} ({of.rows} x {of.columns} {of.fp8 or of.dtype})"
