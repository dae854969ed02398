"""`KernelBuilder`: parameters, shared memory, and the finished kernel."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Literal, NoReturn, overload

from ptxgen import ir
from ptxgen.dsl.atomics import Atomic
from ptxgen.dsl.blocks import block
from ptxgen.dsl.collective import Cta, Warp
from ptxgen.dsl.grid import block_extents, threads_problem
from ptxgen.dsl.hopper import (
    Cluster,
    PingPong,
    Role,
    Roles,
    TicketScheduler,
    TileScheduler,
    Tma,
    Wgmma,
    cluster_of,
)
from ptxgen.dsl.hopper.cta_order import check_order, in_order
from ptxgen.dsl.hopper.scheduler import check_count
from ptxgen.dsl.look_back import LookBack
from ptxgen.dsl.shared import DYNAMIC_SHARED, check_name
from ptxgen.dsl.tiles import Fragment
from ptxgen.dsl.unread import needed
from ptxgen.dsl.values import Pointer, Scalar, Value, is_int, moved_as, require_type
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.target import Target
from ptxgen.target import target as find_target
from ptxgen.types import REGISTER_PREFIX, ScalarType, f32, u32, u64

if TYPE_CHECKING:
    from ptxgen.dsl.blackwell import TensorMemory

_LEAST_WARPGROUPS: Final = 2  # warpgroups


class KernelBuilder(Roles):
    """Builds one kernel for one target, such as "sm_80"; `build` returns the module.

    `threads` is the number of threads of a block (`.maxntid`), or those along x, y and z (`.reqntid`),
    `min_ctas` the least CTAs per multiprocessor (`.minnctapersm`; 0: not printed), `cluster` the CTAs of a
    cluster along x, y and z, `asserts` says whether `k.device_assert` is compiled in, and `reciprocals`
    whether `//` and `%` by a constant are shifts and products instead of `div` and `rem`. Every row of the
    instruction table is a method (`k.fma`, `k.shfl`, …); `docs/isa.md` lists them. Raises `ConfigError` for
    an invalid name, `threads`, `min_ctas` or `cluster`, and `UnsupportedTargetError` for an unknown target,
    or one without clusters.
    """

    def __init__(
        self,
        name: str,
        *,
        target: Target | str,
        threads: int | tuple[int, ...],
        min_ctas: int = 0,
        cluster: int | tuple[int, ...] | None = None,
        asserts: bool = False,
        reciprocals: bool = True,
    ) -> None:
        check_name("kernel", name)
        target = find_target(target)
        extents = block_extents(threads, target)
        if extents is None:
            raise ConfigError(f"kernel {name!r}: {threads_problem(threads, target)}")
        if not is_int(min_ctas) or min_ctas < 0:
            raise ConfigError(
                f"kernel {name!r}: min_ctas must be an integer of at least 0, got {shown(min_ctas)}"
            )
        super().__init__(name, target, extents, min_ctas)
        self._params: dict[str, ir.Param] = {}
        self._ticket_counters: list[str] = []
        self.asserts = asserts
        self.reciprocals = reciprocals
        self.atomic = Atomic(self)
        self.warp = Warp(self)
        self.block = Cta(self, self.warp, self.scratch)
        self.cluster = Cluster(self, cluster_of(f"kernel {name!r}", cluster, target))
        self.tma = Tma(self, self.cluster, self.shared, self._declare_parameter)
        self.wgmma = Wgmma(self)

    # ---------------------------------------------------------------------------- parameters

    def param(self, name: str, type: ScalarType) -> Value:
        """Declare a scalar parameter and load it; one of f16 or bf16 is declared as its bits."""
        self._check_parameter(name)
        require_type(f"parameter {name!r}", type)
        moved = moved_as(type)
        value: Value = self.ld(Pointer(ir.Symbol(name), "param", type), space="param", type=moved)
        self._params[name] = ir.Param(name, moved.name)
        return value if moved is type else value.as_(type)

    def _check_parameter(self, name: str) -> None:
        check_name("parameter", name)
        if name == DYNAMIC_SHARED or name in self._params:
            raise ConfigError(f"parameter {name!r} is declared twice in kernel {self.name!r}")

    def _declare_parameter(self, param: ir.Param) -> None:
        """Declare a kernel parameter without emitting a load of its value."""
        self._check_parameter(param.name)
        self._params[param.name] = param

    def pointer(self, name: str, dtype: ScalarType = f32) -> Pointer:
        """Declare a parameter that points to `dtype` elements in global memory, and load it."""
        require_type("pointer", dtype)
        address = self.emit("cvta_to", (self.param(name, u64),), {"space": "global"})
        return Pointer(address, "global", dtype)

    def fragment(
        self, rows: int, columns: int, dtype: ScalarType = f32, initial: float | None = 0.0
    ) -> Fragment:
        """A register tile of `rows` x `columns` variables in each thread, set to `initial`.

        With `initial=None` the variables are not written.
        """
        return Fragment(self, rows, columns, dtype, initial)

    def tensor_memory(self, columns: int, *, cta_group: int = 1) -> TensorMemory:
        """Allocate `columns` columns of tensor memory, 32, 64, 128, 256 or 512, before the first role
        begins: one warp allocates and gives up the permit to allocate more, and the end of the kernel frees
        them, so that there is one call in a kernel. It is for the targets sm_100a, sm_103a and sm_110a. With
        `cta_group=2` the two CTAs of a cluster multiply together.

        Raises `UnsupportedTargetError` for other targets, and `ConfigError` for other columns, a second call,
        inside of a block, and for pairs in clusters of other sizes (PTX ISA, "tcgen05.alloc").
        """
        # Imported at first use: few kernels have it, and a process that emits PTX waits for each import.
        room = importlib.import_module("ptxgen.dsl.blackwell")
        memory: TensorMemory = room.TensorMemory(self, self.cluster, columns, cta_group)
        return memory

    def ping_pong(self, role: Role) -> PingPong:
        """An order in which the warpgroups of `role` run sections of code, one after another. Raises
        `ConfigError` for a role of fewer than two.
        """
        if getattr(role, "k", None) is not self or role.warpgroups < _LEAST_WARPGROUPS:
            raise ConfigError(
                f"ping_pong: it takes a role of this kernel with two warpgroups or more, got {shown(role)}"
            )
        return PingPong(self, role, self.take_barriers("ping_pong", role.warpgroups))

    @overload
    def tile_scheduler(self, count: Value, *, mirrored: bool = False) -> TileScheduler: ...

    @overload
    def tile_scheduler(
        self, count: Value, *, order: Literal["ticket"], counter: Pointer, roles: Sequence[Role] = ()
    ) -> TicketScheduler: ...

    def tile_scheduler(
        self,
        count: Value,
        *,
        mirrored: bool = False,
        order: Literal["dealt", "ticket"] = "dealt",
        counter: Pointer | None = None,
        roles: Sequence[Role] = (),
    ) -> TileScheduler | TicketScheduler:
        """A scheduler that deals tiles of the work to persistent CTAs, which run several each: `with
        scheduler.tiles() as tile:`, in each role. `count`, u32 and at least 1, is the number of tiles. If it
        is `mirrored`, every other round begins with the last CTA, which suits tiles that are sorted, the
        longest first.

        With `order="ticket"` a CTA takes the next tile when it is done with one, for tiles of different cost:
        the tile's number comes from `counter`, a pointer to one u32 in global memory, which is 0 before a
        launch and after it. `roles` are all roles that enter `scheduler.tiles`, first the one that takes
        numbers; leave them out if the CTA has no roles. `count` plus the CTAs is at most 2**32. Each
        scheduler needs a separate counter, and all CTAs enter its tiles exactly once, not in a loop. Raises
        `TypeMismatchError` for a count or a counter of another type, and `ConfigError` for other orders,
        other roles, a counter of another scheduler, fewer than four free named barriers, and in a cluster.
        """
        if order == "dealt" and counter is None and not roles:
            return TileScheduler(self, count, mirrored)
        check_count(count)
        if order != "ticket" or mirrored:
            raise ConfigError(
                f"tile_scheduler: order must be 'dealt', or 'ticket' without mirrored, got {shown(order)}, "
                f"mirrored={shown(mirrored)}; counter and roles are those of tickets"
            )
        if not isinstance(counter, Pointer) or counter.space != "global" or counter.dtype is not u32:
            raise TypeMismatchError(
                "tile_scheduler: tickets need counter=, a pointer to u32 in global memory, such as "
                f"k.pointer('tickets', u32), got {shown(counter)}"
            )
        known = [role for role in roles if getattr(role, "k", None) is self]
        if len(known) < len(roles) or len(set(known)) < len(known):
            raise ConfigError(
                f"tile_scheduler: roles must be different roles of this kernel, got {shown(roles)}"
            )
        if self.cluster.size > 1:
            raise ConfigError(
                f"tile_scheduler: a ticket is one CTA's, but the kernel has clusters of {self.cluster.size}; "
                "leave out order='ticket', or cluster="
            )
        if str(counter) in self._ticket_counters:
            raise ConfigError(
                "tile_scheduler: tickets need a counter of their own, but another scheduler of this kernel "
                "has the same, and a CTA that is done with one would take its numbers for the other; give "
                "each a counter=, such as counter.at(1)"
            )
        self._ticket_counters.append(str(counter))
        return TicketScheduler(self, count, counter, roles, len(self._ticket_counters) - 1)

    def look_back(self, state: Pointer) -> LookBack:
        """The CTAs in the order in which they begin, for a scan over the grid in one launch: `cta.index` is
        this CTA's number, and `cta.scan(v)` adds the values of all threads before this one, CTAs in the order
        of their numbers. `state` points to u64 in global memory, one more than CTAs, which are 0 before each
        launch.

        Raises `TypeMismatchError` for another state, and `ConfigError` for CTAs of other than whole warps.
        """
        return LookBack(self, self.atomic, self.warp, self.block, state)

    @block
    def in_order(self, counter: Pointer, ticket: Scalar) -> Iterator[None]:
        """Run the body in CTA after CTA, in the order of their tickets: one thread waits until `counter`, a
        u32 in global memory, equals `ticket` (u32), runs the body, and adds 1 to the counter. So sums of
        floats that several CTAs add to one block of memory have the same bits in each launch.

        The thread is alone inside of a `when`: `with k.when(role.leads), k.in_order(counter, ticket):`. The
        wait acquires and the addition releases at gpu scope, and a `fence.proxy.async` on both sides orders
        bulk and tensor copies of the body, which must be complete at its end (`wait_written`); PTX ISA,
        "Memory Consistency Model" and "Async proxy". What other threads of the CTA write needs a barrier
        before.

        The counter is 0 before the launch, or has the value of the first ticket; each value up to the last
        ticket is the ticket of one thread. A CTA that waits must not keep the one that it waits for from
        beginning: launch cooperatively, or take tickets from `k.tile_scheduler`.

        Raises `TypeMismatchError` for other arguments, where several threads come, and for a copy of the body
        that is known to be incomplete.
        """
        self.require_branch("in_order")
        check_order("in_order", counter, ticket)
        yield from in_order(self, counter, ticket)

    # ---------------------------------------------------------------------------- notes and result

    def note(self, text: str) -> None:
        """Name the next step of the algorithm; the text is printed as a comment line.

        Raises `ConfigError` unless `text` is one line of printable ASCII without blanks around it,
        or if it begins with `region `, which marks a shared tile.
        """
        _check_comment("note", text)
        if text.startswith("region "):
            raise ConfigError(f"note: the text must not begin with 'region ', got {shown(text)}")
        self._statements.append(ir.Note(text))

    def build(self, header: tuple[str, ...] = (), *, drop_unread: bool = False) -> ir.Module:
        """The module, with the lowest PTX version that has all instructions used and the target.

        `header` is a tuple of lines, printed as comments at the head of the text. With `drop_unread`
        instructions are left out whose only effect is on registers that nothing reads, such as the address of
        an array that a tensor map describes as well. Raises `ConfigError` inside a `with` block, and if a
        block was never entered or was left by an exception, and `TypeMismatchError` if a product of `k.wgmma`
        is never waited for.
        """
        if self._open:
            raise ConfigError(f"kernel {self.name!r}: build inside '{self._open[-1]}'; end the block first")
        if self.account.not_entered:
            listed = "".join(f"\n  k.{b.kind} from {b.origin}" for b in self.account.not_entered)
            raise ConfigError(
                f"kernel {self.name!r}: blocks that were never entered guard nothing; write 'with' "
                f"before each:{listed}"
            )
        if self.account.left_early:
            raise ConfigError(
                f"kernel {self.name!r}: Python left a block before its end, so what follows in it is not in "
                f"the kernel; catch the exception inside the block, and let generators run to their end:"
                f"\n  {self.account.left_early[0]}"
            )
        self.require_roles_entered()
        self.flight.require_landed(self.name)
        self.pending_reads.require_landed(self.name)
        if not isinstance(header, tuple | list):
            raise ConfigError(f"build: header must be a tuple of lines, got {shown(header)}")
        for line in header:
            _check_comment("build: header", line)
        registers = tuple(
            ir.RegisterRange(prefix, declared, self._counts[declared])
            for declared, prefix in REGISTER_PREFIX.items()
            if self._counts.get(declared)
        )
        ending = self.end_roles()
        self.emit("ret", ())
        body = tuple(self._statements)
        del self._statements[-1 - ending :]  # so that building twice gives the same module
        is_deep = self.block_shape[1:] != (1, 1)
        kernel = ir.Kernel(
            self.name,
            tuple(self._params.values()),
            registers,
            needed(body) if drop_unread else body,
            threads=0 if is_deep else self.threads,
            reqntid=self.block_shape if is_deep else (),
            min_ctas=self.min_ctas,
            dynamic_shared=DYNAMIC_SHARED if self._regions else "",
            regions=tuple(self._regions),
            variables=tuple(self._slots.values()),
            cluster=self.cluster.extents if self.cluster.size > 1 else (),
        )
        functions, texts = tuple(self._functions.values()), tuple(self._texts.values())
        return ir.Module(self._version, self.target.name, (kernel,), tuple(header), functions, texts)

    def finish(self) -> ir.Module:
        """The module of `build(drop_unread=True)`, after which the builder and its values are of no use: they
        refer to each other and to all instructions, which are freed with the module then, and would wait for
        Python's garbage collector otherwise. Raises what `build` raises; later uses of the builder raise
        `ConfigError`.
        """
        module = self.build(drop_unread=True)
        name = self.name
        self.__dict__.clear()
        self.name = name
        self.__class__ = _Finished  # type: ignore[assignment]
        return module


class _Finished:
    """The class of a kernel builder after `finish`, whose use raises an error."""

    name: str

    def __getattr__(self, attribute: str) -> NoReturn:
        raise ConfigError(
            f"kernel {self.name!r}: {attribute} of a builder that is finished; use it before k.finish(), or "
            "end with k.build(), after which a kernel may grow"
        )


def _check_comment(caller: str, text: object) -> None:
    """Refuse text that the assembler refuses in a comment, or that is not one line."""
    fits = isinstance(text, str) and text.isascii() and text.isprintable()
    if not fits or text != str(text).strip():
        raise ConfigError(
            f"{caller}: the text must be one line of printable ASCII without blanks around it, got "
            f"{shown(text)}"
        )
