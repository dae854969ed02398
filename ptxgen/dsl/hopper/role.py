"""A role of some warps of a CTA, and barriers among the threads of roles."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import cached_property
from types import TracebackType
from typing import Any, Final, Protocol

from ptxgen.dsl.early_exits import refuse_early_exits
from ptxgen.dsl.values import Value, is_count
from ptxgen.errors import ConfigError, TypeMismatchError, shown
from ptxgen.target import WARP_SIZE

LOG_WARPGROUP: Final = 2
WARPGROUP: Final = 1 << LOG_WARPGROUP  # warps; PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"


class RoleKernel(Protocol):
    """What a role uses of the kernel that it belongs to, a `Roles`."""

    name: str

    def role_block(self, role: Role) -> AbstractContextManager[None]:
        """A `with` block for the code of a role, which only the role's warps run."""

    def check_registers(self, role: Role) -> None:
        """Raise `ConfigError` for registers that a new role cannot have."""

    def set_registers(self, role: Role) -> None:
        """Emit `setmaxnreg`, which changes the registers of a role's threads, if the role asks for it."""

    def named_barrier(self, *roles: Role) -> NamedBarrier:
        """A named barrier (`bar.sync`) at which the threads of several roles meet."""

    def take_barriers(self, caller: str, count: int) -> int:
        """Allot named barriers (`bar.sync`) of the CTA; returns the number of the first."""

    def require_role(self, caller: str, role: Role) -> None:
        """Raise `TypeMismatchError` unless the kernel is in the code of the warp role `role`."""

    def refuse_predicated(self, what: str) -> None:
        """Raise `TypeMismatchError` for `what` inside `only_if`."""

    @property
    def present_role(self) -> Role | None:
        """The role whose `with` block the kernel is in; None outside of roles."""

    @cached_property
    def warp_index(self) -> Value:
        """The index of this warp in its CTA, u32."""

    def thread_index(self) -> Value:
        """The index of this thread in its CTA, u32."""

    def elect(self, members: Any, /) -> tuple[Value, Value]:
        """Emit `elect.sync`: the lane of the warp that is chosen, and a predicate that holds in this lane."""

    def barrier(self, number: int, threads: int) -> None:
        """Wait at named barrier `number` of the CTA until `threads` threads have arrived."""

    def bar_sync(self, number: Any, threads: Any, /) -> None:
        """Emit `bar.sync`, whose barrier number may be a u32 value."""

    def bar_arrive(self, number: Any, threads: Any, /) -> None:
        """Emit `bar.arrive`: arrive at a named barrier without waiting."""


class Role:
    """Some warps of a CTA, from warp `first` on: they alone run the code in `with role:`.

    It is made by `k.warp_role` or `k.warpgroup_role`, and entered once. A role `within` another one, made by
    its `warp_role`, has some of its warps, and is entered inside it.
    """

    def __init__(
        self, k: RoleKernel, name: str, first: int, warps: int, registers: int, within: Role | None = None
    ) -> None:
        self.k = k
        self.name = name
        self.first = first
        self.warps = warps
        self.registers = registers
        self.within = within
        self.roles: list[Role] = []  # those within this one
        self.entered = False
        self._first_barrier = 0  # that of the first warpgroup; 0: none allotted
        self._block: Any = None

    def __repr__(self) -> str:
        return f"Role({self.name!r}, warps {self.first} to {self.first + self.warps - 1})"

    def __enter__(self) -> Role:
        if self.entered:
            raise ConfigError(f"role {self.name!r} has its code already; a role is one branch of the kernel")
        refuse_early_exits(self.k.name, "warp_role", sys._getframe(1))
        self._block = self.k.role_block(self)
        self._block.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, traceback)

    def has(self, role: Role | None) -> bool:
        """Whether the code of `role` uses what belongs to this role: it is this one, or a variant of it."""
        return role is self or (role is not None and role.within is self and role.registers > 0)

    @property
    def threads(self) -> int:
        """The number of threads of the role."""
        return self.warps * WARP_SIZE

    @property
    def warpgroups(self) -> int:
        """The number of warpgroups of the role; 0 if it does not consist of whole ones."""
        return 0 if self.warps % WARPGROUP or self.first % WARPGROUP else self.warps // WARPGROUP

    def warp_role(self, name: str, *, warps: int = 1, registers: int = 0) -> Role:
        """Give the next `warps` warps of this role a role within it: `with inner:`, directly inside `with
        outer:`, holds the code that they alone run. All warps of this role have executed its change of
        registers before, as `setmaxnreg` demands of a warpgroup; so a loading warp and a storing warp may
        share a warpgroup.

        With `registers` of its threads, if this role sets none, the inner role is a variant of this one, of
        whole warpgroups: its code uses the rings, barriers and indices of this role as the code of this role
        does, and all variants come to the same steps of them.

        It is declared before this role is entered. Raises `ConfigError` after that, in a role within
        another one, and if fewer warps or registers are left (PTX ISA, "setmaxnreg").
        """
        if self.entered or self.within is not None:
            raise ConfigError(
                f"role {self.name!r}: warp_role {name!r} is declared "
                f"{'in a role within another one' if self.within else 'after the role has begun'}; declare "
                "it in the outer role, before its 'with'"
            )
        taken = sum(role.warps for role in self.roles)
        if not is_count(warps) or taken + warps > self.warps:
            raise ConfigError(
                f"role {self.name!r}: warp_role {name!r}: warps must be 1 to {self.warps - taken}, which the "
                f"{self.warps} warps of the role have left, got {shown(warps)}"
            )
        if registers and self.registers:
            raise ConfigError(
                f"role {self.name!r}: warp_role {name!r} has {shown(registers)} registers, but the outer "
                f"role sets {self.registers} of all its threads; leave out one of both"
            )
        role = Role(self.k, name, self.first + taken, warps, registers, self)
        if registers:
            self.k.check_registers(role)
        self.roles.append(role)
        return role

    def begin(self) -> None:
        """Emit the change of registers (`setmaxnreg`), and the indices that each thread of the role has."""
        self.k.set_registers(self)
        self._thread = self.k.thread_index() - self.first * WARP_SIZE if self.first else self.k.thread_index()
        self._lane = self.k.thread_index() & (WARP_SIZE - 1)
        self._is_first_lane = self._lane == 0
        _, chosen = self.k.elect(-1)
        self._leads = (self.k.warp_index == self.first) & chosen

    @cached_property
    def barrier(self) -> NamedBarrier:
        """The barrier of the role's threads; one of the 15 of the CTA, taken at its first use."""
        return self.k.named_barrier(self)

    @property
    def thread(self) -> Value:
        """The index of this thread in the role, u32."""
        self.k.require_role(f"{self.name}.thread", self)
        return self._thread

    @property
    def leads(self) -> Value:
        """Whether this thread is the one of the role that does what one thread does: one that
        `elect.sync` has chosen in the role's first warp, so that the assembler knows that it is alone.
        """
        self.k.require_role(f"{self.name}.leads", self)
        return self._leads

    @property
    def lane(self) -> Value:
        """The index of this thread in its warp, u32."""
        self.k.require_role(f"{self.name}.lane", self)
        return self._lane

    @property
    def is_first_lane(self) -> Value:
        """Whether this thread is the first of its warp, a predicate."""
        self.k.require_role(f"{self.name}.is_first_lane", self)
        return self._is_first_lane

    @property
    def warpgroup(self) -> Value | int:
        """The index of this warpgroup in the role, u32; the int 0 if the role has one."""
        self._require_warpgroups("warpgroup")
        if self.warpgroups == 1:
            return 0
        number = self.k.warp_index >> LOG_WARPGROUP
        return number - self.first // WARPGROUP if self.first else number

    @property
    def warpgroup_leads(self) -> Value:
        """Whether this thread is the one of its warpgroup that does what one thread does, such as starting a
        bulk copy: a predicate of `elect.sync` in the first warp of each warpgroup. All threads of the
        warpgroup come here; each use emits the election, so that it is best taken before a loop.

        Raises `ConfigError` for a role without whole warpgroups (PTX ISA, "elect.sync").
        """
        self._require_warpgroups("warpgroup_leads")
        if self.warpgroups == 1:
            return self._leads
        self.k.refuse_predicated(f"{self.name}.warpgroup_leads")
        _, chosen = self.k.elect(-1)
        return (self.k.warp_index & (WARPGROUP - 1) == 0) & chosen

    @property
    def warpgroup_barrier(self) -> WarpgroupBarrier:
        """The barrier of the threads of each warpgroup by itself, `role.warpgroup_barrier.sync()`: the first
        use takes one of the 15 named barriers of the CTA for each warpgroup of the role. Each use emits the
        number, so that it is best taken before a loop.

        Raises `ConfigError` for a role without whole warpgroups, and if fewer barriers are left (PTX ISA,
        "bar").
        """
        self._require_warpgroups("warpgroup_barrier")
        if not self._first_barrier:
            caller = f"role {self.name!r}: warpgroup_barrier"
            self._first_barrier = self.k.take_barriers(caller, self.warpgroups)
        if self.warpgroups == 1:
            return WarpgroupBarrier(self, self._first_barrier)
        group, first = self.k.warp_index >> LOG_WARPGROUP, self._first_barrier - self.first // WARPGROUP
        return WarpgroupBarrier(self, group + first if first > 0 else group - -first if first else group)

    def _require_warpgroups(self, what: str) -> None:
        """Raise `ConfigError` or `TypeMismatchError` unless the role has whole warpgroups, and its code is
        being built.
        """
        self.k.require_role(f"{self.name}.{what}", self)
        if not self.warpgroups:
            raise ConfigError(f"role {self.name!r} has {self.warps} warps, which are no whole warpgroups")


class WarpgroupBarrier:
    """The named barrier of this warpgroup of a role, whose number is a value if the role has several; see
    `role.warpgroup_barrier`.
    """

    def __init__(self, role: Role, number: Value | int) -> None:
        self._role = role
        self.number = number

    def sync(self) -> None:
        """Arrive, and wait until all 128 threads of the warpgroup have arrived, all of which come here. What
        they wrote before is visible to them after it (PTX ISA, "bar").
        """
        k = self._role.k
        k.require_role("warpgroup_barrier.sync", self._role)
        k.refuse_predicated("warpgroup_barrier.sync")
        k.bar_sync(self.number, WARPGROUP * WARP_SIZE)


class NamedBarrier:
    """Barrier `number` of the CTA, at which `threads` threads meet; see `k.named_barrier`."""

    def __init__(self, k: RoleKernel, number: int, threads: int, roles: tuple[Role, ...]) -> None:
        self._k = k
        self._roles = roles
        self.number = number
        self.threads = threads

    def sync(self) -> None:
        """Arrive, and wait until all threads of the barrier have arrived."""
        self._check("sync")
        self._k.barrier(self.number, self.threads)

    def arrive(self) -> None:
        """Arrive without waiting: other threads wait with `sync`."""
        self._check("arrive")
        self._k.bar_arrive(self.number, self.threads)

    def _check(self, what: str) -> None:
        role = self._k.present_role
        self._k.refuse_predicated(f"barrier.{what}")
        if self._roles and not any(one.has(role) for one in self._roles):
            names = " and ".join(repr(r.name) for r in self._roles)
            where = "outside of all roles" if role is None else f"in the role {role.name!r}"
            raise TypeMismatchError(
                f"barrier.{what}: barrier {self.number} is for the threads of {names}, but is used {where}"
            )
