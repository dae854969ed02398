"""`return`, `break` and `continue` of Python in blocks of the GPU, and blocks that exceptions leave."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ptxgen import Pointer, f32, interpreter, kernel, u32
from ptxgen.dsl import KernelBuilder
from ptxgen.dsl.early_exits import _known
from ptxgen.errors import ConfigError

OPPOSITE = "give 'k.when' the opposite condition and put the rest under it"
BREAK_IF = "use k.break_if(condition) in a loop of the GPU"
RESULT = (
    "make a variable before the block, v = k.var(type, 0), set it inside, v.set(x), and return v after it"
)


# ------------------------------------------------ functions that leave instructions out


def returns(k: Any, X: Pointer, n: Any) -> None:
    with k.when(k.thread_id() >= n):
        return
    X[0] = 1.0


def returns_a_value(k: Any, X: Pointer, n: Any) -> Any:
    with k.when(n < 3):
        return X[0]
    return X[1]


def breaks(k: Any, X: Pointer, n: Any) -> None:
    for i in range(4):
        with k.when(n == i):
            X[i] = 1.0
            break


def skips(k: Any, X: Pointer, n: Any) -> None:
    for i in range(4):
        with k.loop(0, n) as j, k.when(j < 3):
            X[i] = 1.0
            continue


def searches(k: Any, X: Pointer, n: Any) -> None:
    with k.loop(0, n) as j, k.when(X[j] == 0.0):
        X[0] = 1.0
        return


def tries(k: Any, X: Pointer, n: Any) -> None:
    with k.when(n < 3):
        try:
            X[0] = 1.0
            return
        finally:
            X[1] = 2.0
    X[2] = 3.0


@contextlib.contextmanager
def below(k: Any, n: Any) -> Iterator[None]:
    with k.when(k.thread_id() < n):
        yield


def leaves_a_generator(k: Any, X: Pointer, n: Any) -> None:
    with below(k, n):
        return
    X[0] = 1.0


class Below:
    """A block in a class of the user's."""

    def __init__(self, k: Any, n: Any) -> None:
        self.block = k.when(k.thread_id() < n)

    def __enter__(self) -> None:
        self.block.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.block.__exit__(*error)


def leaves_a_class(k: Any, X: Pointer, n: Any) -> None:
    with Below(k, n):
        return
    X[0] = 1.0


def leaves_a_stack(k: Any, X: Pointer, n: Any) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(k.when(k.thread_id() < n))
        return
    X[0] = 1.0


def returns_in_one_line(k: Any, X: Pointer, n: Any) -> None:
    with k.when(k.thread_id() >= n): return  # fmt: skip  # noqa: E701  # the line of the 'with' itself
    X[0] = 1.0


class Methods:
    """A method that leaves a block."""

    def returns(self, k: Any, X: Pointer, n: Any) -> None:
        with k.when(k.thread_id() >= n), k.when(n < 3):
            return
        X[0] = 1.0


def line_of(function: Callable[..., Any], word: str) -> int:
    """The line of the first statement of a function that is this word."""
    lines, first = inspect.getsourcelines(function)
    return first + next(n for n, line in enumerate(lines) if re.search(rf"(^|:) *{word}\b", line))


LEAVERS = [
    (returns, "return", "when", OPPOSITE),
    (returns_a_value, "return", "when", RESULT),
    (breaks, "break", "when", BREAK_IF),
    (skips, "continue", "loop", OPPOSITE),
    (searches, "return", "loop", BREAK_IF),
    (tries, "return", "when", OPPOSITE),
    (leaves_a_generator, "return", "when", OPPOSITE),
    (leaves_a_class, "return", "when", OPPOSITE),
    (leaves_a_stack, "return", "when", OPPOSITE),
    (returns_in_one_line, "return", "when", OPPOSITE),
    (Methods().returns, "return", "when", OPPOSITE),
]


def refused(function: Callable[..., Any], word: str, kind: str, cure: str) -> str:
    return (
        f"kernel outer: {word!r} in {__file__}:{line_of(function, word)}, in {function.__qualname__}, is "
        f"inside 'with k.{kind}(...)': Python obeys it while the kernel is built, and leaves out what "
        f"follows; {cure}"
    )


@pytest.mark.parametrize(("helper", "word", "kind", "cure"), LEAVERS)
def test_a_function_that_a_kernel_calls_does_not_leave_a_block_by_mistake(
    helper: Any, word: str, kind: str, cure: str
) -> None:
    @kernel(threads=32)
    def outer(k: Any, X: Pointer[f32], n: u32) -> None:
        helper(k, X, n)

    with pytest.raises(ConfigError) as error:
        outer.build()
    assert str(error.value) == refused(helper, word, kind, cure)


@pytest.mark.parametrize(("helper", "word", "kind", "cure"), LEAVERS)
def test_a_builder_without_a_decorator_refuses_it_too(helper: Any, word: str, kind: str, cure: str) -> None:
    k = KernelBuilder("outer", target="sm_80", threads=32)
    X = k.pointer("X", f32)
    n = k.param("n", u32)
    with pytest.raises(ConfigError) as error:
        helper(k, X, n)
    assert str(error.value) == refused(helper, word, kind, cure)


def test_the_function_of_a_kernel_is_looked_at_itself_and_so_are_functions_in_it() -> None:
    @kernel(threads=32)
    def outer(k: Any, X: Pointer[f32], n: u32) -> None:
        def nested() -> None:
            with k.when(n < 3):
                return
            X[0] = 1.0

        nested()

    @kernel(threads=32)
    def plain(k: Any, X: Pointer[f32], n: u32) -> None:
        with k.when(n < 3):
            return
        X[0] = 1.0

    test = "test_the_function_of_a_kernel_is_looked_at_itself_and_so_are_functions_in_it"
    for function, name in ((outer, "outer.<locals>.nested"), (plain, "plain")):
        with pytest.raises(ConfigError) as error:
            function.build()
        assert f"in {test}.<locals>.{name}, is inside" in str(error.value)


def test_a_role_is_a_block_too() -> None:
    k = KernelBuilder("parted", target="sm_90", threads=256)
    X = k.pointer("X", f32)
    role = k.warp_role("first", warps=4)

    def body() -> None:
        with role:
            return
        X[0] = 1.0

    with pytest.raises(
        ConfigError, match=r"kernel parted: 'return' in .*, in .*body, is inside 'with k.warp_role"
    ):
        body()


def test_a_block_of_a_part_of_the_kernel_is_a_block_too() -> None:
    k = KernelBuilder("dealt", target="sm_90", threads=128)
    X, n = k.pointer("X", f32), k.param("n", u32)

    def body() -> None:
        with k.tile_scheduler(n).tiles() as tile:
            X[tile] = 1.0
            return

    with pytest.raises(ConfigError, match=r"kernel dealt: 'return' in .*body, is inside 'with k.tiles"):
        body()


# ------------------------------------------------ functions that leave nothing out


def run(function: Callable[[Any, Any], None]) -> list[float]:
    """The array [0, 0, 0, 0] after a kernel of one thread with this body."""
    k = KernelBuilder("whole", target="sm_80", threads=1)
    function(k, k.pointer("X", f32))
    x = np.zeros(4, np.float32)
    interpreter.run(k.build(), grid=1, block=1, args=[x])
    return x.tolist()


def test_a_return_with_which_the_function_ends_anyway_passes() -> None:
    def loaded(k: Any, X: Pointer) -> Any:
        with k.only_if(k.thread_id() < 5):
            return X[0]

    def stored(k: Any, X: Pointer) -> None:
        with below(k, 3), k.when(k.thread_id() < 5):
            X[1] = loaded(k, X) + 2.0
            return

    def after(k: Any, X: Pointer) -> int:
        with k.when(k.thread_id() < 5):
            X[2] = 3.0
        return 4

    def body(k: Any, X: Pointer) -> None:
        stored(k, X)
        X[3] = float(after(k, X))

    assert run(body) == [0, 2, 3, 4]


def test_a_choice_of_python_passes() -> None:
    def chosen(k: Any, X: Pointer, short: bool) -> None:
        for i in range(4):
            with k.when(k.thread_id() == 0):
                X[i] = 1.0
                if short and i == 1:
                    break
        with k.loop(0, 2):
            X[3] = 2.0
            if short:
                return
            X[2] = 9.0

    assert run(lambda k, X: chosen(k, X, True)) == [1, 1, 0, 2]


def test_a_loop_of_python_in_a_block_is_left_as_it_likes() -> None:
    def body(k: Any, X: Pointer) -> None:
        with k.when(k.thread_id() == 0):
            for i in range(4):
                X[i] = 1.0
                break
            while True:
                X[3] = 2.0
                break

    assert run(body) == [1, 0, 0, 2]


def test_a_manager_that_emits_blocks_before_its_body_may_be_left() -> None:
    @contextlib.contextmanager
    def prepared(k: Any, X: Pointer) -> Iterator[None]:
        with k.when(k.thread_id() == 0):
            X[0] = 1.0
        yield
        with k.when(k.thread_id() == 0):
            X[1] = 2.0

    class Prepared:
        def __init__(self, k: Any, X: Pointer) -> None:
            self.k, self.X = k, X

        def __enter__(self) -> None:
            self.store(2)

        def __exit__(self, *_: Any) -> None:
            self.store(3)

        def store(self, i: int) -> None:
            with self.k.when(self.k.thread_id() == 0):
                self.X[i] = float(i + 1)

    def body(k: Any, X: Pointer) -> None:
        def helper() -> int:
            with prepared(k, X), Prepared(k, X):
                return 1
            return 2

        assert helper() == 1

    assert run(body) == [1, 2, 3, 4]


def test_code_without_source_passes() -> None:
    scope: dict[str, Any] = {}
    exec(
        "def unseen(k, X):\n    with k.when(k.thread_id() == 0):\n        X[0] = 3.0\n        return\n", scope
    )
    assert run(scope["unseen"]) == [3, 0, 0, 0]


def test_the_source_of_a_function_is_read_once() -> None:
    def body(k: Any, X: Pointer) -> None:
        with k.when(k.thread_id() == 0):
            X[0] = 3.0

    run(body)
    before = _known[id(body.__code__)]
    run(body)
    assert _known[id(body.__code__)] is before


# ------------------------------------------------ blocks that exceptions leave


def test_an_exception_that_is_caught_outside_of_its_block_is_an_error_of_the_build() -> None:
    def body(k: Any, X: Pointer) -> None:
        with contextlib.suppress(KeyError), k.when(k.thread_id() == 0):
            X[0] = 3.0
            X[1] = {}["scale"]

    with pytest.raises(ConfigError) as error:
        run(body)
    line = body.__code__.co_firstlineno + 1
    assert str(error.value) == (
        "kernel 'whole': Python left a block before its end, so what follows in it is not in the kernel; "
        "catch the exception inside the block, and let generators run to their end:\n"
        f"  k.when from {__file__}:{line}, in {body.__qualname__}: KeyError was raised in it, and caught "
        "outside"
    )


def test_an_exception_that_is_caught_in_its_block_is_a_choice_of_python() -> None:
    def body(k: Any, X: Pointer) -> None:
        with k.when(k.thread_id() == 0):
            with contextlib.suppress(KeyError):
                X[0] = {}["scale"]
            X[1] = 2.0

    assert run(body) == [0, 2, 0, 0]


def test_a_generator_that_is_closed_in_its_block_is_an_error_of_the_build() -> None:
    def steps(k: Any, X: Pointer) -> Iterator[Any]:
        with k.loop(0, 3) as i:
            yield i
            X[0] += 1.0

    def body(k: Any, X: Pointer) -> None:
        for i in steps(k, X):
            X[i] = 1.0
            break

    with pytest.raises(ConfigError) as error:
        run(body)
    line = steps.__code__.co_firstlineno + 1
    assert str(error.value).endswith(
        f"\n  k.loop from {__file__}:{line}, in {steps.__qualname__}: the generator that entered it was "
        "closed before its end, as by a 'break' in a loop over it"
    )
