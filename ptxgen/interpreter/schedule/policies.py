"""The policies that choose the lanes that run next: the lockstep order, and orders drawn from a
seed.

`PCT` is the scheduler of Burckhardt, Kothari, Musuvathi and Nagarakatte, "A Randomized Scheduler
with Probabilistic Guarantees of Finding Bugs" (ASPLOS 2010), for warps. Each warp gets a random
priority. The warp with the highest priority of those that can run does run, until it waits or ends;
at a few random change points the running warp gets the lowest priority. An order of d decisions
that breaks a kernel is found with a probability that does not vanish with the length of the run;
uniform choices of the next warp do not have this property.

Three things differ from the paper. The change points, depth - 1 of them, are drawn again for every
doubling of the run, since its length is not known in advance. A warp that has run many times
without waiting also gets the lowest priority, so that a warp that spins on a flag cannot keep the
writer of the flag from running. And the same warp of all CTAs (of all clusters) of a batch has one
priority, so that these warps run at once, unless `apart` asks for separate priorities; such warps
interact only if CTAs wait for each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from ptxgen.errors import LaunchError, did_you_mean, shown
from ptxgen.interpreter.machine.lanes import WARP, Selection
from ptxgen.interpreter.machine.waiting import Delays, LateAgents
from ptxgen.interpreter.machine.wgmma_late import LateProducts

if TYPE_CHECKING:
    from ptxgen.interpreter.machine.lane_machine import LaneMachine

    Lanes = np.ndarray[Any, np.dtype[Any]]

Point = tuple[int, int]  # a block, and the index of one of its parts
Ready = dict[Point, Selection]  # the lanes that could run, by the point that they have come to

LOCKSTEP: Final = "lockstep"
DEPTH: Final = 3  # most bugs of order need one or two decisions; this is one more
_FORMS: Final = (LOCKSTEP, "pct:SEED", "pct:SEED:DEPTH")

_NEVER: Final = np.iinfo(np.int64).max
_PATIENCE: Final = 20_000  # instructions after which lanes that lockstep leaves waiting come first
_POLL: Final = 1_000  # weight of a polling instruction in instructions; less than _PATIENCE
_FIRST_CHANGES: Final = 256  # instructions within which the first change points of PCT lie
_SERVINGS: Final = 512  # runs of a warp after which it gets the lowest priority
_VISITS: Final = 128  # visits of a warp to a point after which its lanes elsewhere come first


@dataclass(frozen=True, slots=True)
class PCT:
    """A schedule of random priorities: the same `seed`, from 0, gives the same run.

    `depth`, from 1, is the number of decisions that a bug needs to be found: depth - 1 change
    points are drawn for each doubling of the run. With `apart`, every CTA has priorities of its
    own: this is for kernels whose CTAs communicate, and slower in proportion to their number.

    Raises `LaunchError` for other values.
    """

    seed: int
    depth: int = DEPTH
    apart: bool = False

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("depth", 1)):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or _is_flag(value) or value < least:
                raise LaunchError(f"PCT: {name} must be an integer from {least}, got {shown(value)}")
            object.__setattr__(self, name, int(value))
        if not _is_flag(self.apart):
            raise LaunchError(f"PCT: apart must be True or False, got {shown(self.apart)}")


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


Schedule = PCT | str


def schedule_of(schedule: object) -> PCT | None:
    """The `PCT` of a schedule as `run` takes it, or None for lockstep. Raises `LaunchError`."""
    if isinstance(schedule, PCT):
        return schedule
    text = schedule if isinstance(schedule, str) else ""
    if text == LOCKSTEP:
        return None
    numbers = re.fullmatch(r"pct:([0-9]+)(?::([0-9]+))?", text)
    if numbers is None:
        raise LaunchError(
            f"schedule must be {', '.join(map(repr, _FORMS))} with numbers, or a PCT, got "
            f"{shown(schedule)}{did_you_mean(text, (LOCKSTEP, 'pct:0'))}"
        )
    return PCT(int(numbers[1]), DEPTH if numbers[2] is None else int(numbers[2]))


class Policy(Protocol):
    """Chooses the lanes that run next."""

    @property
    def change(self) -> int:
        """The number of instructions of the batch after which the policy chooses again, even in the
        middle of a block.
        """

    def came(self, point: Point, now: int) -> None:
        """Lanes have come to a point; `now` counts the instructions of the batch."""

    def polled(self, count: int) -> None:
        """The lanes that run next execute `count` instructions that may poll."""

    def next(self, ready: Ready, now: int) -> tuple[Point, Selection]:
        """Take the lanes that run next out of `ready`, which is not empty."""


def policy_of(schedule: PCT | None, machine: LaneMachine) -> Policy:
    """The policy for one batch; `PCT` also delays the machine's asynchronous agents."""
    return Lockstep() if schedule is None else Priorities(schedule, machine)


class Lockstep:
    """Runs all lanes at the first point, in the program's order, that lanes have come to.

    Lanes that have waited for long come first for a while, so that threads which spin until others
    have done something do not spin for ever.
    """

    change = _NEVER

    def __init__(self) -> None:
        self._since: dict[Point, int] = {}  # when the first lanes came to a point
        self._late_until = 0  # until then, the last point comes first
        self._polls = 0

    def came(self, point: Point, now: int) -> None:
        """Record when lanes have come to a point."""
        self._since.setdefault(point, now + _POLL * self._polls)

    def polled(self, count: int) -> None:
        """Shorten the patience of the waiting lanes by `count` polls: the polling lanes may wait for them."""
        self._polls += count

    def next(self, ready: Ready, now: int) -> tuple[Point, Selection]:
        """All lanes of the point that runs next."""
        point = next(iter(ready)) if len(ready) == 1 else self._choose(ready, now)
        del self._since[point]
        return point, ready.pop(point)

    def _choose(self, ready: Ready, now: int) -> Point:
        spent = now + _POLL * self._polls
        if spent < self._late_until:
            return max(ready)
        if spent - min(self._since.values()) > _PATIENCE:
            self._late_until = spent + _PATIENCE
            self._since = dict.fromkeys(self._since, spent)
        return min(ready)


class Priorities:
    """The policy of `PCT` for one batch.

    Warps with one priority are a class. The lanes of the running class at the first point in the
    program's order run; points that the class has come to many times come after others.
    """

    def __init__(self, schedule: PCT, machine: LaneMachine) -> None:
        batch = machine.batch
        self._batch = batch
        # Another seed for each batch, so that the batches of a large grid differ.
        rng = np.random.default_rng([schedule.seed, schedule.depth, batch.first])
        warps = batch.width // WARP * (batch.ctas if schedule.apart else batch.cluster_size)
        self._class_of_warp: Lanes = np.arange(batch.lanes // WARP) % warps
        self._class_of_lane: Lanes = np.repeat(self._class_of_warp, WARP)
        self._priority: Lanes = rng.permutation(warps)
        self._lowest = 0
        self._changes = _changes(rng.spawn(1)[0], schedule.depth)
        self.change = next(self._changes)
        self._running = 0
        self._servings = np.zeros(warps, np.int64)
        self._visits: Counter[tuple[int, Point]] = Counter()
        self._cached: dict[Point, tuple[Selection, int, bool]] = {}
        self._delays = Delays(rng.spawn(1)[0])
        self._copies = machine.copies
        self._agents = machine.agents = LateAgents(self._delays)
        machine.copies.delays = self._delays
        self._late = machine.tensor_delays = Delays(rng.spawn(1)[0])
        if machine.wgmma is not None and machine.wgmma.late:
            machine.products = LateProducts(machine.wgmma, machine, self._late)
        self._products = machine.products
        self._machine = machine

    def came(self, point: Point, now: int) -> None:
        """Do nothing: the choice does not depend on when lanes came."""

    def polled(self, count: int) -> None:
        """Do nothing: a class that runs often gets the lowest priority anyway."""

    def next(self, ready: Ready, now: int) -> tuple[Point, Selection]:
        """The lanes of one class at one point."""
        self._let_agents_work(now)
        while now >= self.change:
            self._demote(self._running)
            self.change = next(self._changes)
        choices = [(self._key(point, s), point) for point, s in ready.items()]
        (_, _, number), point = min(choices)
        selection = self._take(ready, point, number)
        self._serve(number, point)
        return point, selection

    def _let_agents_work(self, now: int) -> None:
        self._delays.now = self._late.now = now
        if self._products is not None:
            self._products.work()
        if self._machine.tensor is not None:
            self._machine.tensor.work()
        self._agents.work()
        self._copies.work()

    def _key(self, point: Point, selection: Selection) -> tuple[int, int, int]:
        """The sort key of a point: the best class there comes first, then points that it has visited less."""
        number, _ = self._best(point, selection)
        often = self._visits[number, point] // _VISITS
        return -int(self._priority[number]), often, number

    def _best(self, point: Point, selection: Selection) -> tuple[int, bool]:
        """The class of highest priority at a point, and whether all lanes there belong to it."""
        cached = self._cached.get(point)
        if cached is not None and cached[0] is selection:
            return cached[1:]
        there = self._classes(selection)
        number = int(there[self._priority[there].argmax()])
        self._cached[point] = selection, number, bool((there == number).all())
        return self._cached[point][1:]

    def _classes(self, selection: Selection) -> Lanes:
        if selection.rows is not None:
            return self._class_of_warp[selection.rows]
        if selection.mask is None:
            return self._class_of_warp
        present = np.logical_or.reduce(selection.mask.reshape(-1, WARP), axis=1)
        return self._class_of_warp[present]

    def _take(self, ready: Ready, point: Point, number: int) -> Selection:
        selection = ready.pop(point)
        _, _, alone = self._cached.pop(point)
        if alone:
            return selection
        mask = selection.full_mask()
        mine = mask & (self._class_of_lane == number)
        ready[point] = Selection(self._batch, mask & ~mine)
        return Selection(self._batch, mine)

    def _serve(self, number: int, point: Point) -> None:
        self._running = number
        self._visits[number, point] += 1
        self._servings[number] += 1
        if self._servings[number] >= _SERVINGS:
            self._demote(number)

    def _demote(self, number: int) -> None:
        self._lowest -= 1
        self._priority[number] = self._lowest
        self._servings[number] = 0
        self._cached.clear()  # the best class depends on the priorities


def _changes(rng: np.random.Generator, depth: int) -> Iterator[int]:
    """The change points in rising order, in instructions: depth - 1 below _FIRST_CHANGES, as many
    up to its double, and so on.
    """
    start, end = 0, _FIRST_CHANGES
    while depth > 1:
        yield from sorted(rng.integers(start, end, depth - 1).tolist())
        start, end = end, 2 * end
    yield _NEVER
