"""Which rows of a sequence each rank of a group holds, as runs of evenly spaced positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from ptxgen.arguments import is_one_of
from ptxgen.errors import ConfigError, did_you_mean, shown

ShardLayout = Literal["zigzag", "striped", "contiguous"]
LAYOUTS: Final[tuple[str, ...]] = get_args(ShardLayout)


@dataclass(frozen=True, slots=True)
class Run:
    """Rows `start` to `start + count - 1` of a shard, which are the rows `first`, `first + step`, … of
    the sequence.
    """

    start: int
    first: int
    step: int
    count: int

    @property
    def rows(self) -> slice:
        """The rows of the shard, as a slice."""
        return slice(self.start, self.start + self.count)

    @property
    def positions(self) -> slice:
        """The rows of the sequence, as a slice."""
        return slice(self.first, self.first + self.count * self.step, self.step)


@dataclass(frozen=True)
class Sharding:
    """How the `world` ranks of a group share the rows of sequences.

    "contiguous": rank r holds one chunk of consecutive rows. "zigzag": the sequence is cut into
    2 * world chunks, of which rank r holds the chunks r and 2 * world - 1 - r, so that under causality
    all ranks compute as many scores. "striped": rank r holds rows r, r + world, …, which also balances
    windows and short documents. Chunk c of n begins at row c * length // n.

    Raises `ConfigError` for an unknown layout.
    """

    layout: ShardLayout
    world: int

    def __post_init__(self) -> None:
        if not is_one_of(self.layout, LAYOUTS):
            raise ConfigError(
                f"ContextParallel: layout must be one of {', '.join(LAYOUTS)}, got {shown(self.layout)}"
                f"{did_you_mean(self.layout, LAYOUTS)}"
            )

    @property
    def step(self) -> int:
        """The distance of a rank's adjacent rows in the sequence."""
        return self.world if self.layout == "striped" else 1

    def runs(self, rank: int, length: int) -> tuple[Run, ...]:
        """The rows of a sequence of `length` rows that a rank holds; runs may be empty."""
        world = self.world
        if self.layout == "striped":
            return (Run(0, rank, world, max(0, -(-(length - rank) // world))),)
        if self.layout == "contiguous":
            return (self._chunk(rank, world, length, 0),)
        first = self._chunk(rank, 2 * world, length, 0)
        return first, self._chunk(2 * world - 1 - rank, 2 * world, length, first.count)

    def rows(self, rank: int, length: int) -> int:
        """How many rows of a sequence of `length` rows a rank holds."""
        return sum(run.count for run in self.runs(rank, length))

    @staticmethod
    def _chunk(number: int, chunks: int, length: int, start: int) -> Run:
        first, end = number * length // chunks, (number + 1) * length // chunks
        return Run(start, first, 1, end - first)
