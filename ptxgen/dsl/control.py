"""Device control flow: `with` blocks run on the GPU, Python's `if` and `for` while building."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from ptxgen import ir
from ptxgen.dsl.blocks import Account, block
from ptxgen.dsl.counters import check_bounds, counter_of, counter_to
from ptxgen.dsl.gathering import Gathering, Splits, Uniform
from ptxgen.dsl.grid import AXES, Axis, Extents, Grid
from ptxgen.dsl.values import Scalar, Value, Var, is_int, require_type
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.isa.spec import Op
from ptxgen.records import dataclass
from ptxgen.target import WARP_SIZE, Target
from ptxgen.types import ScalarType, pred, u32

_MASK: Final = "membermask"
_WHOLE: Final = 0xFFFFFFFF
_SHUFFLED: Final = 4  # operands of a shuffle that it reads
_BARRIERS = 16  # named barriers of a CTA (PTX ISA, "bar")


# Why a barrier is refused in a block, by the kind of the block.
_MISSING: Final = {
    "strided": "threads whose share has ended never arrive; move it out, or loop with "
    "k.loop(start, stop) and bounds on which all threads agree",
    "while_": "threads where the condition is false never arrive; move it out, or promise that all "
    "threads agree with k.while_(condition, uniform=True)",
    "when": "threads where the condition is false never arrive; move it out, or promise that all "
    "threads agree with k.when(condition, uniform=True)",
}
_MISSING["role"] = (
    "the threads of other roles never arrive; move it out, or use k.named_barrier(role) for the threads "
    "of the role"
)
_MISSING["grid_strided"] = _MISSING["strided"]
_MISSING["otherwise"] = _MISSING["when"]


@dataclass
class _Loop:
    """An open loop: its kind, where it ends, how many blocks around it some threads may not run, whether
    some threads may have left it, the first operation in it that needs all threads, and why no
    thread may leave it.
    """

    kind: str
    done: ir.Label
    outside: int
    left: bool = False
    joined: str = ""
    unbroken: str = ""


class Control(Grid):
    """Loops, branches and predication.

    The end of a block is emitted also if its body raises, so that every branch keeps its label.
    """

    def __init__(self, name: str, target: Target, block_shape: Extents) -> None:
        super().__init__(name, target, block_shape)
        self._labels = 0
        self._open: list[str] = []  # kinds of the blocks being built, outermost first
        self._open_numbers: list[int] = []  # of these blocks
        self._blocks_opened = 0
        self.account = Account(name)
        self._divergent: list[str] = []  # kinds of the open blocks that some threads may not run
        self._promised = 0  # how many of these whole warps run, by a promise of uniform="warp"
        self._loops: list[_Loop] = []  # the open ones, outermost first
        # The last `when`: its end, its promise of uniformity, whether it splits a warp.
        self._closed: tuple[ir.Statement, Uniform, Splits | None] | None = None
        self._gathering = Gathering(self._statements, block_shape)

    @property
    def block_path(self) -> tuple[tuple[int, str], ...]:
        """The number and the kind of each open block, outermost first."""
        return tuple(zip(self._open_numbers, self._open, strict=True))

    @property
    def is_in_block(self) -> bool:
        """Whether a `with` block is open, so that code may run again or not at all."""
        return bool(self._open)

    def var(self, type: ScalarType, initial: Scalar) -> Var:
        """A new variable of `type`, set to `initial`."""
        require_type("var", type)
        variable = Var(self, self.fresh(type).reg, type)
        self._gathering.vary(variable.reg)
        variable.set(initial)
        return variable

    @block
    def loop(
        self, start: Scalar, stop: Scalar, step: int = 1, *, type: ScalarType | None = None
    ) -> Iterator[Var]:
        """Run the body for start, start + step, … while below `stop`, not at all if start >= stop.

        The index has the type of the bounds: u32, s32, u64 or s64; of two numbers s32, or `type`.
        `stop` + `step` must fit that type. The bounds must be the same for all threads of the CTA
        if the body holds a barrier. The pragma `nounroll` keeps the assembler from unrolling the
        loop until registers spill; a kernel unrolls by a Python loop.
        """
        self.refuse_predicated("loop")
        if not is_int(step) or step <= 0:
            raise TypeMismatchError(f"loop: step must be a positive Python integer, got {shown(step)}")
        counter = counter_of(start, stop) if type is None else type
        check_bounds(start, stop, counter)
        yield from self._counted("loop", start, stop, step, counter)

    @block
    def strided(self, n: Scalar, axis: Axis | None = None) -> Iterator[Var]:
        """Run the body for this thread's share of 0 … n - 1: thread, thread + `threads`, ….

        The threads of the CTA share the range, so neighbours have consecutive indices. The index
        has the type of `n`, and of a Python int u32; `n` + `threads` must fit that type. The body
        holds no barrier, because the shares differ in length.

        With an `axis`, "x", "y" or "z", the threads along it share the range, and those along the other axes
        have the same share: `with k.strided(rows, "y") as i, k.strided(columns, "x") as j:`.
        """
        self.refuse_predicated("strided")
        counter = counter_to("strided", n)
        first, threads = self._thread_along(axis)
        first = self._as_counter(first, counter)
        if isinstance(n, Value) or n > threads:
            yield from self._counted("strided", first, n, threads, counter, divergent=True)
            return
        done = self._label("done")  # no thread has two shares
        self._branch(done, first >= n)
        splits = self._gathering.by_bounds(first, n, threads, counter)
        try:
            with self._loop("strided", done, divergent=True, splits=splits):
                yield self.var(counter, first)
        finally:
            self._statements.append(done)

    @block
    def grid_strided(self, n: Scalar, axis: Axis | None = None) -> Iterator[Var]:
        """Run the body for this thread's share of 0 … n - 1, which all threads of the grid share:
        block * `threads` + thread, and so on in steps of blocks * `threads`.

        The blocks are those along x. The index has the type of `n`, and of a Python int u32; `n`
        plus the threads of the grid must fit that type. The body holds no barrier, because the
        shares differ in length. With an `axis` the threads of the grid along it share the range.
        """
        self.refuse_predicated("grid_strided")
        counter = counter_to("grid_strided", n)
        (thread, threads), along = self._thread_along(axis), axis or "x"
        thread, block, blocks = (
            self._as_counter(v, counter) for v in (thread, self.block_id(along), self.blocks(along))
        )
        first = self.emit("mad", (block, threads, thread), {"mode": "lo"})
        yield from self._counted(
            "grid_strided", first, n, blocks * threads, counter, divergent=True, each=threads
        )

    def _thread_along(self, axis: Axis | None) -> tuple[Value, int]:
        """The index of this thread along an axis, and the threads along it; None: in the whole CTA."""
        if axis is None:
            return self.thread_index(), self.threads
        return self.thread_id(axis), self.block_shape[AXES.index(axis)]

    @block
    def dealt(self, count: Value) -> Iterator[Var]:
        """Run the body for this CTA's share of 0 … `count` - 1, u32: its index along x, and so on in steps
        of the CTAs; `count` plus the CTAs must fit u32. All threads of the CTA have the same share.
        """
        self.refuse_predicated("dealt")
        yield from self._counted("dealt", self.block_id(), count, self.blocks(), u32)

    @block
    def while_(self, condition: Callable[[], Value], *, uniform: Uniform = False) -> Iterator[None]:
        """Run the body while `condition()` holds, which is evaluated before each round: a function
        without arguments that returns a predicate, such as `lambda: low < high` of two variables.

        `uniform` promises that the condition is the same in all threads of the CTA, which allows
        barriers inside, and in the condition: `lambda: k.block.sum(x) < n`; "warp", in all threads of
        each warp, which allows what the lanes of a warp do together.
        """
        self.refuse_predicated("while_")
        _require_promise("while_", uniform)
        if not callable(condition):
            raise TypeMismatchError(
                "while_: the condition must be a function, which is evaluated before each round, such as "
                f"k.while_(lambda: i < n), got {shown(condition)}"
            )
        head, done = self._label("while"), self._label("done")
        self._statements.append(ir.Label(head.name, "nounroll"))
        try:
            held: list[Value] = []
            splits = None if uniform else lambda: any(self._gathering.by(value)() for value in held)
            with self._loop("while_", done, divergent=uniform is not True, splits=splits):
                holds = condition()
                self.require_predicate("while_", holds)
                held.append(holds)
                self._branch(done, holds, negated=True)
                yield
        finally:
            self._branch(head)
            self._statements.append(done)

    def break_if(self, condition: Value, *, uniform: Uniform = False) -> None:
        """Leave the innermost loop in the threads where the condition holds.

        `uniform` promises that the condition is the same in all threads of the CTA; otherwise no
        barrier may be in the loop, because threads that left it never arrive. "warp" promises that it is
        the same in all threads of each warp, for what the lanes of a warp do together. Raises
        `TypeMismatchError` outside of loops, and directly inside tickets (`k.tile_scheduler`).
        """
        self.refuse_predicated("break_if")
        self.require_predicate("break_if", condition)
        _require_promise("break_if", uniform)
        if not self._loops:
            raise TypeMismatchError("break_if leaves a loop, and there is none around it")
        loop = self._loops[-1]
        if loop.unbroken:
            raise TypeMismatchError(f"break_if would leave {loop.unbroken}")
        if uniform is not True or len(self._divergent) > loop.outside:
            if loop.joined:
                raise TypeMismatchError(
                    f"break_if: {loop.joined} in the same loop waits for threads that have left it; move it "
                    "out, or promise that all threads agree with k.break_if(condition, uniform=True)"
                )
            loop.left = True
        self._gathering.leave(None if uniform else self._gathering.by(condition))
        self._branch(loop.done, condition)

    @block
    def when(self, condition: Value, *, uniform: Uniform = False) -> Iterator[None]:
        """Run the body in the threads where the condition holds.

        `uniform` promises that the condition is the same in all threads of the CTA, which allows
        barriers inside; "warp", in all threads of each warp, which allows what the lanes of a warp do
        together, such as `k.warp.sum`, also where the condition compares numbers of threads.
        """
        self.require_predicate("when", condition)
        _require_promise("when", uniform)
        self.refuse_predicated("when")
        skip = self._label("end")
        self._branch(skip, condition, negated=True)
        splits = None if uniform else self._gathering.by(condition)
        try:
            with self._block("when", divergent=uniform if uniform == "warp" else not uniform, splits=splits):
                yield
        finally:
            self._statements.append(skip)
            self._closed = (skip, uniform, splits)

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
        skip, uniform, splits = self._closed
        self._statements.pop()
        end = self._label("join")
        self._branch(end)
        self._statements.append(skip)
        try:
            with self._block(
                "otherwise", divergent=uniform if uniform == "warp" else not uniform, splits=splits
            ):
                yield
        finally:
            self._statements.append(end)

    @block
    def only_if(self, condition: Value) -> Iterator[None]:
        """Predicate each instruction of the body (`@p`): for one or two cheap instructions.

        In threads where the condition is false, the values that the body computes are undefined,
        and a `Var` that the body sets keeps its old value.
        """
        self.require_predicate("only_if", condition)
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
        self.refuse_predicated("barrier")
        if threads is None:
            self.require_all_threads("barrier")
        if not is_int(number) or not 0 <= number < _BARRIERS:
            raise ConfigError(f"barrier: number must be 0..{_BARRIERS - 1}, got {shown(number)}")
        if threads is not None and (not is_int(threads) or threads <= 0 or threads % WARP_SIZE):
            raise ConfigError(
                f"barrier: threads must be a positive multiple of {WARP_SIZE}, got {shown(threads)}"
            )
        self.emit("bar_sync", (number,) if threads is None else (number, threads))

    def _counted(
        self,
        kind: str,
        start: Scalar,
        stop: Scalar,
        step: Scalar,
        type: ScalarType,
        *,
        divergent: bool = False,
        each: int = 1,
    ) -> Iterator[Var]:
        """The loop over a counter for a block of this kind, after a check of its bounds; a `step` that is a
        value is a multiple of `each`.
        """
        head, done = self._label("loop"), self._label("done")
        index = self.var(type, start)
        runs_once = isinstance(start, int) and isinstance(stop, int) and start < stop
        if not runs_once:
            self._branch(done, index >= stop)
        self._statements.append(ir.Label(head.name, "nounroll"))
        multiple = each if isinstance(step, Value) else step
        splits = None if runs_once else self._gathering.by_bounds(start, stop, int(multiple), type)
        try:
            with self._loop(kind, done, divergent=divergent, splits=splits):
                yield index
        finally:
            self.emit("add", (index, step), into=index)
            self._branch(head, index < stop)
            self._statements.append(done)

    def _as_counter(self, value: Value, counter: ScalarType) -> Value:
        """A u32 value converted to the type of a loop counter."""
        return value.as_(counter) if counter.bits == u32.bits else self.cvt(value, dtype=counter)

    def require_all_threads(self, what: str) -> None:
        """Raise `TypeMismatchError` in a block that some threads of the CTA may not run."""
        if self._divergent:
            kind = self._divergent[-1]
            inside = {"otherwise": "'when'", "role": "a role"}.get(kind, f"'{kind}'")
            raise TypeMismatchError(f"{what} inside {inside}: {_MISSING[kind]}")
        for loop in self._loops:
            if loop.left:
                raise TypeMismatchError(
                    f"{what} in a loop that some threads have left by break_if: they never arrive; move it "
                    "out, or promise that all threads agree with k.break_if(condition, uniform=True)"
                )
            loop.joined = loop.joined or what

    @contextmanager
    def _loop(
        self, kind: str, done: ir.Label, *, divergent: bool, splits: Splits | None = None
    ) -> Iterator[None]:
        """The context of the body of a loop, which ends at the label `done`."""
        with self._block(kind, divergent=divergent, splits=splits, is_loop=True):
            self._loops.append(_Loop(kind, done, len(self._divergent)))
            try:
                yield
            finally:
                self._loops.pop()

    @property
    def innermost_loop(self) -> str:
        """The kind of the innermost open loop of the kernel; the empty string outside of loops."""
        return self._loops[-1].kind if self._loops else ""

    def refuse_breaks(self, why: str) -> None:
        """Refuse any `break_if` in the innermost open loop; `why` names the loop and the reason."""
        self._loops[-1].unbroken = why

    def repeat_until(self, condition: Callable[[], Value], *, known: Value | None = None) -> None:
        """Spin in each thread until a condition holds, which is evaluated each time: to wait for other
        threads. Threads in which it is `known` to hold do not evaluate it.
        """
        again = self._label("wait")
        end = None if known is None else self._label("known")
        if end is not None:
            self._branch(end, known)
        self._statements.append(again)
        self._branch(again, condition(), negated=True)
        if end is not None:
            self._statements.append(end)

    def _block(
        self, kind: str, *, divergent: Uniform = False, splits: Splits | None = None, is_loop: bool = False
    ) -> AbstractContextManager[None]:
        """The context in which the body of a block runs; `divergent` is "warp" where whole warps run it."""
        return self._opened(kind, divergent, splits, is_loop)

    @contextmanager
    def _opened(self, kind: str, divergent: Uniform, splits: Splits | None, is_loop: bool) -> Iterator[None]:
        self._open.append(kind)
        self._blocks_opened += 1
        self._open_numbers.append(self._blocks_opened)
        if divergent:
            self._divergent.append(kind)
        self._promised += divergent == "warp"
        try:
            with self._gathering.opened(kind, splits, is_loop=is_loop):
                yield
        finally:
            self._promised -= divergent == "warp"
            if divergent:
                self._divergent.pop()
            self._open.pop()
            self._open_numbers.pop()

    def _label(self, kind: str) -> ir.Label:
        self._labels += 1
        return ir.Label(f"${kind}_{self._labels}")

    def _branch(self, to: ir.Label, condition: Value | None = None, *, negated: bool = False) -> None:
        """Branch in all threads, or where `condition` is true (`negated`: false)."""
        self._guard = None if condition is None else ir.Guard(condition.reg, negated)
        self.append("bra", (ir.Symbol(to.name),))
        self._guard = None

    def require_lanes(self, what: str) -> None:
        """Raise `TypeMismatchError` for the warp-wide operation `what` where some lanes of a warp do not
        arrive.
        """
        self._gathering.require(what, self._guard)

    def gather(self, name: str, op: Op, sources: Sequence[ir.Operand]) -> None:
        """Raise `TypeMismatchError` for a warp-wide instruction where some lanes of a warp do not arrive."""
        has_mask = bool(op.operands) and op.operands[-1].name == _MASK
        if not has_mask:
            self._gathering.require_whole_warps(name)
        elif not isinstance(sources[-1], ir.IntImm) or sources[-1].value & _WHOLE != _WHOLE:
            return  # the caller is responsible for the lanes that it names
        elif "mode" in op.modifiers and len(sources) == _SHUFFLED:
            self._gathering.require_sources(name, str(op.modifiers["mode"]), sources[1], sources[2])
        self._gathering.require(name, self._guard, has_mask=has_mask)

    def refuse_predicated(self, what: str) -> None:
        """Raise `TypeMismatchError` for `what` inside `only_if`."""
        if self._guard is not None:
            raise TypeMismatchError(
                f"{what} inside 'only_if', which predicates single instructions; "
                "branch with 'with k.when(condition):' instead"
            )

    def require_predicate(self, caller: str, condition: object) -> None:
        """Raise `TypeMismatchError` unless `condition` is a predicate of this kernel."""
        if not isinstance(condition, Value) or condition.type is not pred:
            raise TypeMismatchError(
                f"{caller} takes a predicate, such as row < seq_q, got {shown(condition)}"
            )
        if condition.k is not self:
            raise self._foreign(caller, condition)


def _require_promise(caller: str, uniform: object) -> None:
    if not isinstance(uniform, bool) and uniform != "warp":
        raise TypeMismatchError(f"{caller}: uniform must be True, False or 'warp', got {shown(uniform)}")
