"""Device control flow: `with` blocks run on the GPU, Python's `if` and `for` while building."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ptxgen import ir
from ptxgen.dsl.blocks import Block, block
from ptxgen.dsl.memory import Memory
from ptxgen.dsl.values import Scalar, Value, Var, is_int, require_type
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.target import WARP_SIZE, Target
from ptxgen.types import ScalarType, pred, s32

_BARRIERS = 16  # named barriers of a CTA (PTX ISA, "bar")


class Control(Memory):
    """Loops, branches and predication.

    The end of a block is emitted also if its body raises, so that every branch keeps its label.
    """

    def __init__(self, name: str, target: Target) -> None:
        super().__init__(name, target)
        self._labels = 0
        self._open: list[str] = []  # kinds of the blocks being built, outermost first
        self.not_entered: list[Block[Any]] = []
        self._divergent = 0  # open `when` and `otherwise` blocks without uniform=True
        self._closed: tuple[ir.Statement, bool] | None = None  # last `when`: end label, uniform

    def var(self, type: ScalarType, initial: Scalar) -> Var:
        """A new variable of `type`, set to `initial`."""
        require_type("var", type)
        variable = Var(self, self._register(type), type)
        variable.set(initial)
        return variable

    @block
    def loop(self, start: Scalar, stop: Scalar, step: int = 1, *, type: ScalarType = s32) -> Iterator[Var]:
        """Run the body for start, start + step, … while below `stop`, not at all if start >= stop.

        `stop` + `step` must fit `type`. The bounds must be the same for all threads of the CTA if
        the body holds a barrier. The pragma `nounroll` keeps the assembler from unrolling the loop
        until registers spill; a kernel unrolls by a Python loop.
        """
        self._refuse_predicated("loop")
        _check_loop(start, stop, step, type)
        head, done = self._label("loop"), self._label("done")
        index = self.var(type, start)
        runs_once = isinstance(start, int) and isinstance(stop, int) and start < stop
        if not runs_once:
            self._branch(done, index >= stop)
        self._statements.append(ir.Label(head.name, "nounroll"))
        try:
            with self._block("loop"):
                yield index
        finally:
            self.emit("add", (index, step), into=index)
            self._branch(head, index < stop)
            self._statements.append(done)

    @block
    def when(self, condition: Value, *, uniform: bool = False) -> Iterator[None]:
        """Run the body in the threads where the condition holds.

        `uniform` promises that the condition is the same in all threads of the CTA, which allows
        barriers inside.
        """
        self._require_predicate("when", condition)
        self._refuse_predicated("when")
        skip = self._label("end")
        self._branch(skip, condition, negated=True)
        try:
            with self._block("when", divergent=not uniform):
                yield
        finally:
            self._statements.append(skip)
            self._closed = (skip, uniform)

    @block
    def otherwise(self) -> Iterator[None]:
        """Run the body in the threads where the condition of the `when` just before is false.

        Its body may hold barriers if the `when` was promised `uniform`. Raises `TypeMismatchError`
        if it does not directly follow the end of a `when` block.
        """
        if self._closed is None or not self._statements or self._statements[-1] is not self._closed[0]:
            raise TypeMismatchError(
                "otherwise must follow directly after the end of a 'with k.when(...)' block"
            )
        skip, uniform = self._closed
        self._statements.pop()
        end = self._label("join")
        self._branch(end)
        self._statements.append(skip)
        try:
            with self._block("otherwise", divergent=not uniform):
                yield
        finally:
            self._statements.append(end)

    @block
    def only_if(self, condition: Value) -> Iterator[None]:
        """Predicate each instruction of the body (`@p`): for one or two cheap instructions.

        In threads where the condition is false, the values that the body computes are undefined,
        and a `Var` that the body sets keeps its old value.
        """
        self._require_predicate("only_if", condition)
        if self._guard is not None:
            raise TypeMismatchError("only_if cannot be nested; combine the conditions with &")
        self._guard = ir.Guard(condition.reg)
        try:
            with self._block("only_if"):
                yield
        finally:
            self._guard = None

    def barrier(self, number: int = 0, threads: int | None = None) -> None:
        """Wait for all threads of the CTA, or for `threads` of them at barrier `number` (0..15).

        `threads` is a positive multiple of 32. Raises `TypeMismatchError` for a barrier for all
        threads inside a `when` that is not promised uniform: the barrier would wait forever for
        threads that do not arrive (PTX ISA, "bar").
        """
        self._refuse_predicated("barrier")
        if self._divergent and threads is None:
            raise TypeMismatchError(
                "barrier inside 'when': threads where the condition is false never arrive; move it "
                "out, or promise that all threads agree with k.when(condition, uniform=True)"
            )
        if not is_int(number) or not 0 <= number < _BARRIERS:
            raise ConfigError(f"barrier: number must be 0..{_BARRIERS - 1}, got {shown(number)}")
        if threads is not None and (not is_int(threads) or threads <= 0 or threads % WARP_SIZE):
            raise ConfigError(
                f"barrier: threads must be a positive multiple of {WARP_SIZE}, got {shown(threads)}"
            )
        self.emit("bar_sync", (number,) if threads is None else (number, threads))

    @contextmanager
    def _block(self, kind: str, *, divergent: bool = False) -> Iterator[None]:
        self._open.append(kind)
        self._divergent += divergent
        try:
            yield
        finally:
            self._divergent -= divergent
            self._open.pop()

    def _label(self, kind: str) -> ir.Label:
        self._labels += 1
        return ir.Label(f"${kind}_{self._labels}")

    def _branch(self, to: ir.Label, condition: Value | None = None, *, negated: bool = False) -> None:
        """Branch in all threads, or where `condition` is true (`negated`: false)."""
        self._guard = None if condition is None else ir.Guard(condition.reg, negated)
        self.append("bra", (ir.Symbol(to.name),))
        self._guard = None

    def _refuse_predicated(self, what: str) -> None:
        if self._guard is not None:
            raise TypeMismatchError(
                f"{what} inside 'only_if', which predicates single instructions; "
                "branch with 'with k.when(condition):' instead"
            )

    def _require_predicate(self, who: str, condition: object) -> None:
        if not isinstance(condition, Value) or condition.type is not pred:
            raise TypeMismatchError(f"{who} takes a predicate, such as row < seq_q, got {shown(condition)}")
        if condition.k is not self:
            raise self._foreign(who, condition)


def _check_loop(start: Scalar, stop: Scalar, step: int, type: ScalarType) -> None:
    if not is_int(step) or step <= 0:
        raise TypeMismatchError(f"loop: step must be a positive Python integer, got {shown(step)}")
    require_type("loop", type)
    if type.kind not in "us":
        raise TypeMismatchError(f"loop: type must be an integer type such as s32, got {type}")
    lowest, bits = (-(1 << (type.bits - 1)), type.bits - 1) if type.is_signed else (0, type.bits)
    for what, bound in (("start", start), ("stop", stop)):
        if isinstance(bound, Value):
            if bound.type is not type:
                raise TypeMismatchError(
                    f"loop: {what} must be {type}, got {shown(bound)}; "
                    f"reinterpret or convert it, or loop with type={bound.type}"
                )
        elif not is_int(bound) or not lowest <= bound < 1 << bits:
            raise TypeMismatchError(f"loop: {what} must be {type}, got {shown(bound)}")
