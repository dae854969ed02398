"""Device control flow: `with` runs on the GPU, Python's own `if` and `for` run while building."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen import ir
from ptxgen.dsl.ops import Ops
from ptxgen.dsl.values import Scalar, Value, Var
from ptxgen.errors import TypeMismatchError
from ptxgen.types import ScalarType, pred, s32


class Control(Ops):
    """Loops, branches and predication."""

    def __init__(self) -> None:
        super().__init__()
        self._labels = 0
        self._divergent = 0  # how many branches on a condition not promised uniform are open

    def var(self, type: ScalarType, initial: Scalar) -> Var:
        """A variable with its first value."""
        variable = Var(self, self._register(type), type)
        variable.set(initial)
        return variable

    @contextmanager
    def loop(self, start: Scalar, stop: Scalar, step: int = 1, *, type: ScalarType = s32) -> Iterator[Var]:
        """Run the body for start, start + step, … while below `stop`; nothing runs if start >= stop.

        The bounds must be the same for all threads of the CTA if the body holds a barrier.
        """
        if step <= 0:
            raise TypeMismatchError(f"loop: step must be a positive Python integer, got {step!r}")
        head, done = self._label("loop"), self._label("done")
        index = self.var(type, start)
        runs_once = isinstance(start, int) and isinstance(stop, int) and start < stop
        if not runs_once:
            self._branch(done, index >= stop)
        self._statements.append(head)
        yield index
        self.emit("add", (index, step), into=index)
        self._branch(head, index < stop)
        self._statements.append(done)

    @contextmanager
    def when(self, condition: Value, *, uniform: bool = False) -> Iterator[None]:
        """Run the body in the threads where the condition holds.

        `uniform` promises that all threads of the CTA agree on it, which allows barriers inside.
        """
        _require_predicate("when", condition)
        skip = self._label("end")
        self._branch(skip, condition, negated=True)
        self._divergent += not uniform
        yield
        self._divergent -= not uniform
        self._statements.append(skip)

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """Run the body in the threads where the condition of the `when` just before did not hold."""
        skip = self._statements[-1] if self._statements else None
        if not isinstance(skip, ir.Label) or not skip.name.startswith("$end_"):
            raise TypeMismatchError("otherwise must follow directly after the end of a 'with k.when(...)' block")
        self._statements.pop()
        end = self._label("join")
        self._branch(end)
        self._statements.append(skip)
        self._divergent += 1
        yield
        self._divergent -= 1
        self._statements.append(end)

    @contextmanager
    def only_if(self, condition: Value) -> Iterator[None]:
        """Predicate each instruction of the body (`@p`), without a branch: for one or two cheap instructions."""
        _require_predicate("only_if", condition)
        if self._guard is not None:
            raise TypeMismatchError("only_if cannot be nested; combine the conditions with &")
        self._guard = ir.Guard(condition.reg)
        yield
        self._guard = None

    def barrier(self, number: int = 0, threads: int | None = None) -> None:
        """Wait for all threads of the CTA, or for `threads` of them at the named barrier `number` (0..15).

        Raises `TypeMismatchError` inside a `when` that is not promised uniform: threads that do not come would be waited for
        forever (PTX ISA, bar).
        """
        if self._divergent and threads is None:
            raise TypeMismatchError(
                "barrier inside 'when': threads where the condition is false never arrive; move it out, "
                "or promise that all threads agree with k.when(condition, uniform=True)"
            )
        self.emit("bar_sync", (number,) if threads is None else (number, threads))

    def _label(self, kind: str) -> ir.Label:
        self._labels += 1
        return ir.Label(f"${kind}_{self._labels}")

    def _branch(self, to: ir.Label, condition: Value | None = None, *, negated: bool = False) -> None:
        outer = self._guard
        self._guard = None if condition is None else ir.Guard(condition.reg, negated)
        self.append("bra", (ir.Symbol(to.name),))
        self._guard = outer


def _require_predicate(who: str, condition: object) -> None:
    if not isinstance(condition, Value) or condition.type is not pred:
        raise TypeMismatchError(f"{who} takes a predicate, such as row < seq_q, got {condition!r}")
