"""The shapes of products in tensor memory, which their instruction descriptors give (PTX ISA, "TensorCore 5th
Generation Family Instructions": "Instruction descriptor").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ptxgen.check.prove.listing.rows import NotListedError
from ptxgen.check.prove.listing.search import Finding, InstrSite, Search
from ptxgen.check.prove.program.operands import pairs
from ptxgen.check.prove.program.shared_accesses import Touch
from ptxgen.check.prove.verdicts import UNKNOWN, VIOLATION
from ptxgen.check.verify.shapes import shape_of
from ptxgen.errors import DescriptorError
from ptxgen.ir import Instr, Operand, Special
from ptxgen.isa.descriptors import SIZES
from ptxgen.isa.mma_descriptor import Product, product_of
from ptxgen.types import ScalarType, u32

_LONG_K: Final = 96
_KIND: Final = "kind::"
_GROUP: Final = "cta_group::"
_UNFOLLOWED: Final = "products with a sparse A, or with K of 96, are not followed"


def operands_of(instr: Instr) -> dict[str, Operand]:
    """The operands of an instruction that is in the table, by their names there, without those left out."""
    op = shape_of(instr).op
    assert op is not None
    return {want.name: got for want, got in pairs(op, instr) if got is not None}


def group_of(instr: Instr) -> int:
    """The number of CTAs that execute an instruction on tensor memory together."""
    return int(_word(instr, _GROUP))


def kind_of(instr: Instr) -> str:
    """The `.kind` of a product in tensor memory, such as f16, i8 or mxf4."""
    return _word(instr, _KIND)


def _word(instr: Instr, prefix: str) -> str:
    return next(w.removeprefix(prefix) for w in instr.opcode.split(".") if w.startswith(prefix))


class Products:
    """Finds the shapes of one kernel's products in tensor memory (`tcgen05.mma`)."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._known: dict[tuple[int, int], Product | Finding] = {}

    def of(self, site: InstrSite) -> Product | Finding:
        """The product that an instruction starts, or the verdict on one that is wrong or not known."""
        key = site[:2]
        if key not in self._known:
            self._known[key] = self._found(site)
        return self._known[key]

    def shaped(self, site: InstrSite, touch: Touch) -> Touch:
        """An access with the shape of the matrix that a product reads in the shared memory of each CTA;
        without
        rows if the product is not known.
        """
        if not touch.side or touch.matrix is None:
            return touch
        product = self.of(site)
        if isinstance(product, Finding):
            return touch
        of_a = touch.side == "a"
        rows, type = (product.m, product.a) if of_a else (product.n, product.b)
        transposed = product.m_major if of_a else product.n_major
        rows //= product.group
        matrix = touch.matrix._replace(rows=rows, transposed=transposed, size=SIZES.get(type, 1))
        return touch._replace(matrix=matrix)

    def _found(self, site: InstrSite) -> Product | Finding:
        numbers = self._numbers(site, operands_of(site.instr)["idesc"], u32)
        if not numbers:
            return Finding(UNKNOWN, "its instruction descriptor is not known")
        products = set()
        for number in numbers:
            try:
                product = product_of(kind_of(site.instr), number, group=group_of(site.instr))
            except DescriptorError as error:
                is_sure = len(numbers) == 1 and self.is_reached(site)
                return Finding(VIOLATION, str(error)) if is_sure else Finding(UNKNOWN, f"perhaps {error}")
            products.add(replace(product, negated_a=False, negated_b=False))
        product = products.pop()
        if products:
            return Finding(UNKNOWN, "its instruction descriptor is of one product or another")
        if product.sparse or product.k == _LONG_K:
            return Finding(UNKNOWN, _UNFOLLOWED)
        return product

    def constant(self, site: InstrSite, operand: Operand, type: ScalarType = u32) -> int | None:
        """The number that an operand is in all threads and iterations; None if it is not known."""
        numbers = self._numbers(site, operand, type)
        return numbers[0] if len(numbers) == 1 else None

    def is_reached(self, site: InstrSite) -> bool:
        """Whether a thread certainly gets to an instruction, in some launch."""
        search = self._search
        thread = search.values.operand(Special("%tid.x"), u32, site.block, site.position)
        try:
            _, table = search.table([thread], search.condition(site), True, search.bases(0))
        except NotListedError:
            return False
        return bool(table.sure.any())

    def _numbers(self, site: InstrSite, operand: Operand, type: ScalarType) -> list[int]:
        """The possible values of an integer operand; none if they are not known."""
        search = self._search
        node = search.values.operand(operand, type, site.block, site.position)
        if not search.dependence.of(node).is_fixed:
            return []
        try:
            lister, table = search.table([node], search.condition(site), False, search.bases(0))
            numbers: list[int] = np.unique(lister.evaluate(table, node)).tolist()
        except NotListedError:
            return []
        return numbers
