"""CTAs that run a section one after another (`k.in_order`), by a counter in global memory."""

from __future__ import annotations

from collections.abc import Iterator

from ptxgen.dsl.hopper.roles import Roles
from ptxgen.dsl.values import Pointer, Scalar, Value, is_int
from ptxgen.errors import TypeMismatchError, shown
from ptxgen.types import u32


def check_order(caller: str, counter: object, ticket: object) -> None:
    """Raise `TypeMismatchError` unless `counter` points to u32 in global memory and `ticket` is u32."""
    if not isinstance(counter, Pointer) or counter.space != "global" or counter.dtype is not u32:
        raise TypeMismatchError(
            f"{caller}: the counter must be a pointer to u32 in global memory, such as "
            f"k.pointer('counters', u32).element(block), got {shown(counter)}"
        )
    known = is_int(ticket) and 0 <= int(ticket) < 1 << u32.bits  # type: ignore[call-overload]  # an int
    if not known and not (isinstance(ticket, Value) and ticket.type is u32):
        raise TypeMismatchError(f"{caller}: the ticket must be a u32 value or an int, got {shown(ticket)}")


def in_order(k: Roles, counter: Pointer, ticket: Scalar) -> Iterator[None]:
    """Have one thread wait until the counter is `ticket`, run the body, and add 1 to the counter. See
    `KernelBuilder.in_order`.
    """
    start = k.pending_reads.mark()
    k.repeat_until(
        lambda: k.ld_ordered(counter, sem="acquire", scope="gpu", space="global", type=u32) == ticket
    )
    # Copies of the body come after the acquire. The release needs no such fence: an implicit one follows the
    # end of a copy (PTX ISA, "Async proxy").
    k.fence_proxy_async(space="global")
    yield
    copy = k.pending_reads.unfinished(start)
    if copy is not None:
        raise TypeMismatchError(
            f"in_order: the copy of tile {copy.name!r} started at {copy.origin} may still write where the "
            "body ends and the next CTA begins; wait in the body with wait_written()"
        )
    k.red(counter, k.mov(1, type=u32), sem="release", scope="gpu", space="global", op="add")
