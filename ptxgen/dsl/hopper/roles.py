"""Roles of warps: groups of warps of a CTA that run different code, and barriers among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Final, Protocol

from ptxgen import ir
from ptxgen.dsl.gathering import Splits, Uniform
from ptxgen.dsl.grid import Extents
from ptxgen.dsl.hopper.flight import Flight
from ptxgen.dsl.hopper.pending_reads import GuardedStores
from ptxgen.dsl.hopper.role import WARPGROUP, NamedBarrier, Role
from ptxgen.dsl.values import Pointer, Value, is_count
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.target import WARP_SIZE, Target

_LOG_WARP: Final = WARP_SIZE.bit_length() - 1
_REGISTERS: Final = range(24, 257, 8)  # PTX ISA, "setmaxnreg"
_REGISTER_UNIT: Final = 8  # the registers of a thread are allotted in such units
_ONCE: Final = ("when", "otherwise", "only_if", "role")  # blocks whose body does not run again
_NAMED_BARRIERS: Final = 15  # 1 … 15; barrier 0 is that of the whole CTA


class RoleUser(Protocol):
    """An object of roles, such as a ring, with code before the first role and at the beginning of each. With
    `spans_cluster` other CTAs of the cluster reach it, from the beginning to the end of the kernel.
    """

    spans_cluster: bool

    def prepare(self) -> None:
        """Emit what one thread does before any role begins, such as initialising mbarriers."""

    def enter(self, role: Role) -> None:
        """Emit what the threads of `role` do when it begins."""

    def leave(self, role: Role) -> None:
        """Check what the code of `role` has done with this object, where the code ends."""


class Roles(GuardedStores):
    """Divides the warps of a CTA into roles, in the order of their declaration."""

    def __init__(self, name: str, target: Target, block_shape: Extents, min_ctas: int) -> None:
        super().__init__(name, target, block_shape)
        self.min_ctas = min_ctas
        self.flight = Flight()
        self._roles: list[Role] = []
        self._role: Role | None = None  # the one whose code is being built
        self._chain: list[Role] = []  # roles whose code follows one another without anything between
        self._barriers = 0  # named barriers allotted
        self._users: list[RoleUser] = []
        self.ends: list[Callable[[], None]] = []  # what the kernel does when all its roles have ended
        self._end: ir.Label | None = None  # after all roles of the present chain

    # ------------------------------------------------------------------------------ declaring roles

    def warp_role(self, name: str, *, warps: int = 1, registers: int = 0) -> Role:
        """Give the next `warps` warps a role: `with role:` holds the code that they alone run.

        `registers` of each thread are set at its beginning (`setmaxnreg`, 24 to 256 in steps of 8),
        for whole warpgroups of an `a` or `f` target. Raises `ConfigError` if fewer warps or registers are
        left.
        """
        self._require_top("warp_role", name)
        taken = sum(role.warps for role in self._roles)
        total = self.threads // WARP_SIZE
        if self.threads % WARP_SIZE:
            raise ConfigError(
                f"warp_role {name!r}: roles are for CTAs of whole warps, but the kernel has {self.threads} "
                f"threads; make them a multiple of {WARP_SIZE}"
            )
        if not is_count(warps) or taken + warps > total:
            raise ConfigError(
                f"warp_role {name!r}: warps must be 1 to {total - taken}, which the {total} warps of the CTA "
                f"have left, got {shown(warps)}"
            )
        role = Role(self, name, taken, warps, registers)
        if registers:
            self.check_registers(role)
        self._roles.append(role)
        return role

    def warpgroup_role(self, name: str, *, warpgroups: int = 1, registers: int = 0) -> Role:
        """A role of `warpgroups` warpgroups, each of four warps, the first of which has an index
        divisible by four; see `warp_role`.
        """
        if not is_count(warpgroups):
            raise ConfigError(
                f"warpgroup_role {name!r}: warpgroups must be a positive integer, got {shown(warpgroups)}"
            )
        taken = sum(role.warps for role in self._roles)
        if taken % WARPGROUP:
            raise ConfigError(
                f"warpgroup_role {name!r}: a warpgroup begins at a warp divisible by {WARPGROUP}, but "
                f"{taken} warps have a role; declare the warpgroups first, or give the role before "
                f"{-taken % WARPGROUP} more warps"
            )
        return self.warp_role(name, warps=warpgroups * WARPGROUP, registers=registers)

    def named_barrier(self, *roles: Role, threads: int = 0) -> NamedBarrier:
        """A barrier for the threads of `roles`, or for `threads` threads of whole warps.

        There are 15 in a CTA. Raises `ConfigError` if all are taken.
        """
        if any(getattr(role, "k", None) is not self for role in roles):
            raise ConfigError(f"named_barrier: the roles must be those of this kernel, got {shown(roles)}")
        count = sum(role.threads for role in roles) if roles else threads
        if (roles and threads) or not is_count(count) or count % WARP_SIZE or count > self.threads:
            raise ConfigError(
                f"named_barrier: it takes roles, or threads= as a multiple of {WARP_SIZE} up to "
                f"{self.threads}, got {shown(roles)} and threads={shown(threads)}"
            )
        if self._barriers == _NAMED_BARRIERS:
            raise ConfigError(f"named_barrier: a CTA has {_NAMED_BARRIERS}, and all are taken")
        self._barriers += 1
        return NamedBarrier(self, self._barriers, count, roles)

    def take_barriers(self, caller: str, count: int) -> int:
        """Allot `count` named barriers; returns the number of the first. Raises `ConfigError` if fewer are
        left.
        """
        if self._barriers + count > _NAMED_BARRIERS:
            raise ConfigError(
                f"{caller}: a CTA has {_NAMED_BARRIERS} named barriers, and {self._barriers} are taken"
            )
        self._barriers += count
        return self._barriers - count + 1

    @property
    def _all_roles(self) -> list[Role]:
        """All roles, each before those within it."""
        return [one for role in self._roles for one in (role, *role.roles)]

    def add_role_user(self, user: RoleUser, what: str = "a ring") -> None:
        """Have `user`, which errors call `what`, prepared before the first role begins."""
        self._require_top(what, "")
        if any(role.entered for role in self._roles):
            raise ConfigError(f"{what} must be made before the first role begins, so that all threads see it")
        self._users.append(user)

    def at_end(self, end: Callable[[], None]) -> None:
        """Have `end` emit what frees tensor memory when all roles have ended, without new registers."""
        self.ends.append(end)

    def require_role(self, caller: str, role: Role) -> None:
        """Raise `TypeMismatchError` unless the kernel is in the code of the warp role `role`."""
        if not role.has(self._role):
            inside = "outside of all roles" if self._role is None else f"in the role {self._role.name!r}"
            raise TypeMismatchError(
                f"{caller} belongs into 'with' of the role {role.name!r}, but is {inside}"
            )

    def require_roles_entered(self) -> None:
        """Raise `ConfigError` if a declared role has no `with role:` block."""
        idle = [repr(role.name) for role in self._all_roles if not role.entered]
        if idle:
            raise ConfigError(
                f"kernel {self.name!r}: role {' and '.join(idle)} has no code; enter it: 'with role:'"
            )

    def require_whole_role(self, caller: str, role: Role) -> None:
        """Raise `TypeMismatchError` unless all threads of `role` come here."""
        self.require_role(caller, role)
        self.refuse_predicated(caller)
        if self._divergent and self._divergent[-1] != "role":
            raise TypeMismatchError(
                f"{caller} inside '{self._divergent[-1]}': all threads of the role {role.name!r} must come "
                "here; move it out, or promise that they agree with k.when(condition, uniform=True)"
            )

    def require_present(self, caller: str) -> None:
        """Raise `TypeMismatchError` unless all threads of the present role, or of the CTA outside of
        roles, come here.
        """
        self.refuse_predicated(caller)
        if self._role is None:
            self.require_all_threads(caller)
        else:
            self.require_whole_role(caller, self._role)

    def require_warps(self, caller: str) -> None:
        """Raise `TypeMismatchError` unless whole warps come here: all threads of the present role, or of the
        CTA outside of roles, or those of blocks that are promised `uniform="warp"`.
        """
        blocks = sum(kind != "role" for kind in self._divergent)
        if blocks and blocks == self._promised:
            self.refuse_predicated(caller)
        else:
            self.require_present(caller)

    def require_branch(self, caller: str) -> None:
        """Raise `TypeMismatchError` outside of the branches in which one thread may be alone."""
        self.refuse_predicated(caller)
        if not {"when", "otherwise"} & set(self._divergent):
            raise TypeMismatchError(
                f"{caller} is for one thread, but several come here; put it into 'with k.when(role.leads):', "
                "or outside of roles into 'with k.when(k.thread_id() == 0):'"
            )

    @property
    def block_depth(self) -> int:
        """The number of open `with` blocks, such as loops and branches, at this point of the kernel."""
        return len(self._open)

    @property
    def present_role(self) -> Role | None:
        """The role whose `with` block the kernel is in; None outside of roles."""
        return self._role

    # ------------------------------------------------------------------------------ the code of a role

    def _block(
        self, kind: str, *, divergent: Uniform = False, splits: Splits | None = None, is_loop: bool = False
    ) -> AbstractContextManager[None]:
        body = super()._block(kind, divergent=divergent, splits=splits, is_loop=is_loop)
        return body if kind in _ONCE else self._repeated(body)

    @contextmanager
    def _repeated(self, body: AbstractContextManager[None]) -> Iterator[None]:
        start, reads = self.flight.mark(), self.pending_reads.mark()
        with body:
            yield
        self.flight.replay(start)
        self.pending_reads.replay(reads)

    @contextmanager
    def role_block(self, role: Role) -> Iterator[None]:
        """The code of a role, as a branch of one if-else chain over the warps, of the CTA or of the role
        that it is within.
        """
        self.refuse_predicated(f"role {role.name!r}")
        self._require_around(role)
        if not any(known.entered for known in self._roles):
            self._prepare()
        notes = self._last_notes()
        end = self._end
        if end is not None and self._statements[-1] is end:  # the role before has ended just here
            self._statements.pop()
            skip = self._statements.pop()
            self._branch(end)  # its threads skip this one
            self._statements.append(skip)
        else:
            end, self._chain = self._label("roles"), []
        self._statements += notes
        chain, (low, high) = self._chain, self._warps_around(role)
        chain.append(role)
        after: list[ir.Statement] = [end]
        if sum(r.warps for r in chain) < high - low:
            skip = self._label("role")
            self._branch(skip, self._outside(role))
            after = [skip, end]
        role.entered = True
        self._role = role
        try:
            with self._block("role", divergent=role.warps < high - low):
                role.begin()
                for user in self._users:
                    user.enter(role)
                yield
                for user in self._users:
                    user.leave(role)
        finally:
            self._role = role.within
            self.flight.land()
            self.pending_reads.land()
            self._end, self._chain = end, chain
            self._statements += after

    def _last_notes(self) -> list[ir.Statement]:
        """Remove and return the notes after the last instruction or label."""
        count = 0
        while count < len(self._statements) and isinstance(self._statements[-1 - count], ir.Note):
            count += 1
        notes = self._statements[len(self._statements) - count :]
        del self._statements[len(self._statements) - count :]
        return notes

    def _outside(self, role: Role) -> Value:
        """Whether this warp does not have the role, but is one of those around it."""
        warp, (low, high) = self.warp_index, self._warps_around(role)
        if role.first == low:
            return warp >= role.first + role.warps
        if role.first + role.warps == high:
            return warp < role.first
        return warp - role.first >= role.warps  # a warp before the first wraps to a large number

    def _warps_around(self, role: Role) -> tuple[int, int]:
        """The first warp, and the end of the warps, of the CTA or of the role that a role is within."""
        outer = role.within
        return (0, self.threads // WARP_SIZE) if outer is None else (outer.first, outer.first + outer.warps)

    def _require_around(self, role: Role) -> None:
        """Raise `ConfigError` unless the code of a role is outside of blocks, or that of a role within
        another one directly inside its code.
        """
        outer = role.within
        if outer is None:
            self._require_top("role", role.name)
        elif self._role is not outer or self._open[-1] != "role":
            raise ConfigError(
                f"role {role.name!r} is within role {outer.name!r}: enter it directly inside "
                f"'with' of the role {outer.name!r}"
            )

    @cached_property
    def warp_index(self) -> Value:
        """The index of this warp in its CTA, u32, from lane 0, so that the assembler knows that it is
        the same in all lanes.
        """
        return self.shfl(self.thread_index() >> _LOG_WARP, 0, WARP_SIZE - 1, -1, mode="idx")

    def _prepare(self) -> None:
        """Let one thread initialise what roles share, such as mbarriers, and make it visible to all
        threads.
        """
        _ = self.warp_index  # computed before the first branch
        if not self._users:
            return
        with self.when(self.thread_index() == 0):
            for user in self._users:
                user.prepare()
            self.fence_mbarrier_init()
        if self._spans_cluster:
            self.cluster_barrier()
        else:
            self.barrier()

    @property
    def _spans_cluster(self) -> bool:
        return any(user.spans_cluster for user in self._users)

    def end_roles(self) -> int:
        """Emit code that keeps a CTA alive while others of its cluster access it, and what `at_end` noted;
        returns the number of instructions.
        """
        before = len(self._statements)
        if self.ends:
            self.tcgen05_fence_before()
        if self._spans_cluster:
            self.cluster_barrier()
        elif self.ends:
            self.barrier()
        for end in self.ends:
            end()
        return len(self._statements) - before

    def cluster_barrier(self) -> None:
        """Wait for all threads of the cluster's CTAs; their earlier writes are visible afterwards."""
        self.require_all_threads("cluster.barrier")
        self.barrier_cluster_arrive(sem="release", aligned=True)
        self.barrier_cluster_wait(sem="acquire", aligned=True)

    def arrive_in_cluster(self, at: Pointer) -> None:
        """Arrive at a barrier in the shared memory of the cluster, whose state cannot be returned."""
        self.mbarrier_arrive_ordered(at, sem="release", scope="cluster", space="shared::cluster")
        arrival = self._statements.pop()
        assert isinstance(arrival, ir.Instr)  # which has just been appended
        operands = (ir.Sink(), *arrival.operands[1:])
        self._statements.append(ir.Instr(arrival.opcode, operands, arrival.guard, arrival.origin))

    def _require_top(self, what: str, name: str) -> None:
        if self._open:
            called = f"{what} {name!r}" if name else what
            raise ConfigError(f"{called} is inside '{self._open[-1]}'; move it before the block, or after it")

    # ------------------------------------------------------------------------------ registers

    @property
    def _entry_registers(self) -> int:
        """The registers that a thread has when the kernel begins, with `setmaxnreg`."""
        most = self.target.registers_per_sm // (self.threads * max(self.min_ctas, 1))
        return min(most // _REGISTER_UNIT * _REGISTER_UNIT, _REGISTERS[-1])

    def check_registers(self, role: Role) -> None:
        """Raise `ConfigError` for registers of a new role that `setmaxnreg` or the CTA does not have."""
        if not is_count(role.registers) or role.registers not in _REGISTERS:
            raise ConfigError(
                f"warp_role {role.name!r}: registers must be a multiple of 8 from 24 to 256, got "
                f"{shown(role.registers)}"
            )
        if role.warps % WARPGROUP or role.first % WARPGROUP:
            raise ConfigError(
                f"warp_role {role.name!r}: registers are set for whole warpgroups of {WARPGROUP} warps, but "
                f"the role has warps {role.first} to {role.first + role.warps - 1}; use warpgroup_role"
            )
        self.min_ctas = max(self.min_ctas, 1)  # without it the assembler ignores `setmaxnreg`
        entry = self._entry_registers
        asked = [(r.name, r.threads, r.registers) for r in (*self._all_roles, role) if r.registers]
        needed = sum(threads * registers for _, threads, registers in asked)
        have = self.threads * entry
        left = (self.threads - sum(threads for _, threads, _ in asked)) * _REGISTERS[0]
        if needed + left > have:
            listed = " + ".join(f"{registers} x {threads} ({name})" for name, threads, registers in asked)
            raise ConfigError(
                f"warp_role {role.name!r}: the CTA has {have} registers ({entry} for each of its "
                f"{self.threads} threads), but the roles need {needed + left}: {listed}"
                f"{f', and {left} for threads without a role yet' if left else ''}; give a role fewer"
            )

    def set_registers(self, role: Role) -> None:
        """Emit `setmaxnreg` for the registers of `role`'s threads, if the role asks for any."""
        entry = self._entry_registers
        if role.registers and role.registers != entry:
            self.setmaxnreg(role.registers, action="inc" if role.registers > entry else "dec")
