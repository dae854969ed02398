"""Which rank computes and sends what: the steps of context-parallel attention, and the rule that chooses
them.

All schemes are one: the ranks form nodes of `degree` ranks that follow one another. Inside of such
a node heads are exchanged for rows (Ulysses, arXiv:2309.14509): each rank gets the rows of the whole
node for its share of the heads. Between nodes keys and values go to the queries (Ring Attention,
arXiv:2310.01889): in step d a rank sends its own to the node d further and receives those of the node d
before it, only the rows that some query there sees.

| scheme | degree | keys of other nodes |
|---|---|---|
| "ring" | 1 | those of the next step arrive while those of this one are used |
| "gather" | 1 | all are asked for at once |
| "ulysses" | world | there are none |
| "2d" | between | as "ring" |
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from flash.distributed.layouts import Run, Sharding
from flash.distributed.tiles import NO_LIMITS, Document, Limits, Tile, needed, tiles_of
from ptxgen.errors import ConfigError

Scheme = Literal["ring", "gather", "ulysses", "2d"]
SCHEMES: Final[tuple[str, ...]] = get_args(Scheme)
_SAMPLED: Final = 8  # the most ranks whose steps an estimate looks at
_LSE_BYTES: Final = 4
_SELF_STEP: Final = 0  # the step in which a rank attends to its local keys


@dataclass(frozen=True)
class Machine:
    """The assumptions of the cost rule: floating-point operations a second of a rank, bytes a second
    that a rank sends, and seconds until a message arrives.

    The defaults are published figures of an H100 SXM: 989e12 in bf16, half of which attention reaches,
    and NVLink's 450e9 each way.
    """

    flops: float = 495e12
    bandwidth: float = 450e9
    latency: float = 10e-6


class ScoreRows(NamedTuple):
    """A bias or a mask with the rows of its rank's queries: its axes other than rows, each of which may be 1,
    the bytes of an element, and whether it has a gradient.
    """

    name: str
    batch: int
    heads: int
    columns: int
    itemsize: int
    has_gradient: bool = False


@dataclass(frozen=True)
class Problem:
    """The sizes of a call over all ranks. `itemsize` is the bytes of an element of q, k and v; `of_rows`
    are the arrays whose rows lie on the ranks of their queries.
    """

    sharding: Sharding
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    itemsize: int
    queries: int
    keys: int
    limits: Limits = NO_LIMITS
    documents: tuple[Document, ...] = ()
    of_rows: tuple[ScoreRows, ...] = ()

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.sharding.world

    def why_not(self, degree: int) -> str:
        """Why heads cannot be divided among `degree` ranks; "" if they can."""
        if degree == 1:
            return ""
        if self.world % degree:
            return f"{degree} does not divide the {self.world} ranks"
        if self.heads % degree:
            return f"{self.heads} heads are not a multiple of {degree} ranks"
        each, group = self.heads // degree, self.heads // self.kv_heads
        if each % group and group % each:
            return f"{each} heads of a rank do not share whole heads of k, of which each has {group}"
        return ""


class HeadShare(NamedTuple):
    """The heads of q and of k that one rank of a node computes."""

    heads: slice
    kv_heads: slice


@dataclass(frozen=True)
class Plan:
    """The steps of a call. `degree` ranks exchange heads for rows; `at_once` says that keys of all nodes
    are asked for before the first are used. Ranks are numbered node by node.
    """

    problem: Problem
    degree: int = 1
    at_once: bool = False

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.problem.world // self.degree

    def members(self, node: int) -> range:
        """The ranks of a node."""
        return range(node * self.degree, (node + 1) * self.degree)

    def share(self, member: int) -> HeadShare:
        """The heads that rank number `member` of a node computes."""
        p = self.problem
        each, group = p.heads // self.degree, p.heads // p.kv_heads
        first = member * each
        return HeadShare(slice(first, first + each), slice(first // group, -(-(first + each) // group)))

    def rows(self, rank: int) -> tuple[int, int]:
        """The rows of q and of k that a rank holds."""
        p = self.problem
        return p.sharding.rows(rank, p.queries), p.sharding.rows(rank, p.keys)

    def query_runs(self, node: int) -> tuple[Run, ...]:
        """The queries of a node as runs, in the order of `orders`."""
        return _joined(self.problem.sharding, self.members(node), self.problem.queries)

    def key_runs(self, node: int) -> tuple[Run, ...]:
        """The keys of a node as runs, in the order of `orders`."""
        return _joined(self.problem.sharding, self.members(node), self.problem.keys)

    def orders(self, node: int) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """The order in which a node has the queries, and the keys, of its ranks: indices into the rows of the
        ranks one after another; None if the order is already the ranks' order.
        """
        p, ranks = self.problem, self.members(node)
        return _order(p.sharding, ranks, p.queries), _order(p.sharding, ranks, p.keys)

    def tiles(self, node: int, source: int, most_queries: int | None = None) -> tuple[Tile, ...]:
        """The tiles of the queries of a node and the keys of another, or of the same. With
        `most_queries`, tiles of at most this number of queries.
        """
        return _tiles(self.problem, self.degree, node, source, most_queries)

    def asked(self, node: int, source: int) -> tuple[slice, ...]:
        """The rows of keys of the node `source` that the queries of a node need, run by run."""
        return needed(self.tiles(node, source), self.key_runs(source))

    def steps(self) -> range:
        """The steps in which other nodes' keys are used."""
        return range(1, self.nodes)

    # ------------------------------------------------------------------------------------ costs

    def scores(self, rank: int, step: int | None = None) -> int:
        """How many scores a rank computes, for all batch items and its share of heads, in all steps or in
        one.
        """
        node, heads = rank // self.degree, self.problem.heads // self.degree
        steps = range(self.nodes) if step is None else (step,)
        counts = (_meeting(self.problem, self.degree, node, (node - d) % self.nodes).scores for d in steps)
        return sum(counts) * heads * self.problem.batch

    def ring_bytes(self, rank: int, step: int) -> int:
        """The bytes of keys and values that a rank sends in a step, of the forward pass."""
        p, node = self.problem, rank // self.degree
        share = self.share(rank % self.degree).kv_heads
        heads: int = share.stop - share.start
        rows = _meeting(p, self.degree, (node + step) % self.nodes, node).rows
        return rows * p.batch * heads * (p.head_dim + p.head_dim_v) * p.itemsize

    def exchange_bytes(self, rank: int) -> tuple[int, int]:
        """The bytes that a rank sends to the other ranks of its node: of q, k, v, bias and mask, and then
        of the results and their log-sum-exp.
        """
        p, local = self.problem, rank % self.degree
        rows_q, rows_k = self.rows(rank)
        there = back = 0
        each = p.heads // self.degree
        for member, peer in enumerate(self.members(rank // self.degree)):
            if member == local:
                continue
            kv = self.share(member).kv_heads
            there += rows_q * each * p.head_dim * p.itemsize
            there += rows_k * (kv.stop - kv.start) * (p.head_dim + p.head_dim_v) * p.itemsize
            back += self.rows(peer)[0] * each * (p.head_dim_v * p.itemsize + _LSE_BYTES)
        of_rows = sum(map(self._bytes_of_row, p.of_rows)) * rows_q * (self.degree - 1)
        return there * p.batch + of_rows, back * p.batch

    def _bytes_of_row(self, array: ScoreRows) -> int:
        """The bytes of a row of a bias or a mask that each rank of a node receives."""
        heads = 1 if array.heads == 1 else array.heads // self.degree
        return array.batch * heads * array.columns * array.itemsize

    def bytes(self, rank: int) -> int:
        """All bytes that a rank sends in the forward pass."""
        return sum(self.exchange_bytes(rank)) + sum(self.ring_bytes(rank, d) for d in self.steps())

    def gradient_bytes(self, rank: int) -> int:
        """All bytes that a rank sends in the backward pass: keys and values once more and the gradients
        of those of others once; in a node the gradients of results, and those of q, k, v and bias.
        """
        p, node, member = self.problem, rank // self.degree, rank % self.degree
        kv = self.share(member).kv_heads
        wide: int = p.batch * (kv.stop - kv.start) * (p.head_dim + p.head_dim_v) * p.itemsize
        sources = ((node - d) % self.nodes for d in self.steps())
        taken = sum(_meeting(p, self.degree, node, source).rows for source in sources)
        total = sum(self.ring_bytes(rank, d) for d in self.steps()) + taken * wide
        rows_q, each = self.rows(rank)[0], p.heads // self.degree
        of_rows = sum(self._bytes_of_row(array) for array in p.of_rows if array.has_gradient)
        for peer in self.members(node):
            if peer != rank:
                peer_q, peer_k = self.rows(peer)
                total += p.batch * rows_q * each * (p.head_dim_v * p.itemsize + _LSE_BYTES)
                total += p.batch * peer_q * each * p.head_dim * p.itemsize + peer_k * wide
                total += peer_q * of_rows
        return total

    def most_bytes(self) -> int:
        """The bytes that the rank that sends the most sends in the forward pass."""
        return max(map(self.bytes, self.sample()))

    def seconds(self, machine: Machine) -> float:
        """The estimated time of the forward pass: the longer of computing and receiving in each step, plus
        the exchanges inside nodes.
        """
        p = self.problem
        flops = 2.0 * (p.head_dim + p.head_dim_v)
        ranks = self.sample()
        compute = [max(self.scores(r, d) for r in ranks) * flops / machine.flops for d in range(self.nodes)]
        moved = [
            max(self.ring_bytes(r, d) for r in ranks) / machine.bandwidth + machine.latency
            for d in self.steps()
        ]
        if self.at_once:
            arriving = sum(moved) - machine.latency * max(0, len(moved) - 1)
            ring = max(compute[_SELF_STEP], arriving) + sum(compute[1:])
        else:
            ring = sum(max(c, m) for c, m in zip(compute, [*moved, 0.0], strict=True))
        if self.degree == 1:
            return ring
        both = max(sum(self.exchange_bytes(r)) for r in ranks)
        messages = 3 if p.of_rows else 2
        return ring + both / machine.bandwidth + messages * machine.latency

    def sample(self) -> Sequence[int]:
        """The ranks for which estimates are computed, evenly spaced."""
        last, count = self.problem.world - 1, min(self.problem.world, _SAMPLED)
        return [last * n // max(1, count - 1) for n in range(count)]

    def keeps_memory(self) -> bool:
        """Whether the keys and values of all ranks, which "gather" holds at once, take no more memory than
        the rows that a rank holds in any case.
        """
        p = self.problem
        if not self.at_once:
            return True
        gathered = p.keys * p.kv_heads * (p.head_dim + p.head_dim_v)
        return gathered * p.world <= (p.queries * p.heads + p.keys * p.kv_heads) * (p.head_dim + p.head_dim_v)


class _Meeting(NamedTuple):
    """The scores of the queries of a node with the keys of another, of one head, and the rows of those keys
    that they need.
    """

    scores: int
    rows: int


@functools.lru_cache(maxsize=1 << 17)
def _meeting(problem: Problem, degree: int, node: int, source: int) -> _Meeting:
    plan = Plan(problem, degree)
    tiles = tuple(tiles_of(plan.query_runs(node), plan.key_runs(source), problem.limits, problem.documents))
    rows = sum(part.stop - part.start for part in needed(tiles, plan.key_runs(source)))
    return _Meeting(sum(tile.scores for tile in tiles), rows)


@functools.lru_cache(maxsize=4096)
def _tiles(problem: Problem, degree: int, node: int, source: int, most: int | None) -> tuple[Tile, ...]:
    plan = Plan(problem, degree)
    queries = plan.query_runs(node)
    if most is not None:
        queries = tuple(part for run in queries for part in _split(run, most))
    return tuple(tiles_of(queries, plan.key_runs(source), problem.limits, problem.documents))


def _split(run: Run, most: int) -> Iterator[Run]:
    for at in range(0, run.count, most):
        yield Run(run.start + at, run.first + at * run.step, run.step, min(most, run.count - at))


def _joined(sharding: Sharding, ranks: range, length: int) -> tuple[Run, ...]:
    """The rows of several ranks as few runs, in the order of `_order`."""
    if sharding.layout == "striped" and 1 < len(ranks) == sharding.world:
        return (Run(0, 0, 1, length),)
    parts = [run for rank in ranks for run in sharding.runs(rank, length)]
    if sharding.layout != "striped":
        parts = sorted((run for run in parts if run.count), key=lambda run: run.first)
    runs: list[Run] = []
    start = 0
    for run in parts:
        last = runs[-1] if runs else None
        if last is not None and last.step == 1 and last.first + last.count == run.first:
            runs[-1] = replace(last, count=last.count + run.count)
        else:
            runs.append(replace(run, start=start))
        start += run.count
    return tuple(runs)


@functools.lru_cache(maxsize=64)
def _order(sharding: Sharding, ranks: range, length: int) -> tuple[int, ...] | None:
    """The indices, into the rows of the ranks one after another, of the rows of `_joined`, by position; None
    if these are in the ranks' order, as stripes of some ranks are.
    """
    if len(ranks) == 1 or (sharding.layout == "striped" and len(ranks) < sharding.world):
        return None
    whole = np.arange(length)
    rows = [whole[run.positions] for rank in ranks for run in sharding.runs(rank, length)]
    return tuple(np.argsort(np.concatenate(rows)).tolist())


def compacted(tiles: Sequence[Tile], rows: Sequence[slice], runs: Sequence[Run]) -> tuple[Tile, ...]:
    """The tiles with their keys renumbered for a tensor that holds only `rows` of each run of keys, one after
    another.
    """
    begins: list[tuple[Run, int]] = []
    at = 0
    for run, part in zip(runs, rows, strict=True):
        begins.append((run, at - part.start))
        at += part.stop - part.start
    moved = []
    for tile in tiles:
        shift = next(s for run, s in begins if run.start <= tile.keys.start < run.start + run.count)
        moved.append(replace(tile, keys=slice(tile.keys.start + shift, tile.keys.stop + shift)))
    return tuple(moved)


def plans(problem: Problem, schemes: Sequence[str] = SCHEMES) -> dict[str, Plan]:
    """The plans that can compute a problem, by scheme; of "2d" the one that sends the fewest bytes, which
    takes longer to find than the others and is left out unless it is one of `schemes`.
    """
    by_scheme = {"ring": Plan(problem), "gather": Plan(problem, at_once=True)}
    if problem.world > 1 and not problem.why_not(problem.world):
        by_scheme["ulysses"] = Plan(problem, problem.world)
    degrees = [n for n in range(2, problem.world) if problem.world % n == 0 and not problem.why_not(n)]
    if degrees and "2d" in schemes:
        by_scheme["2d"] = min((Plan(problem, n) for n in degrees), key=Plan.most_bytes)
    return by_scheme


def chosen(problem: Problem, scheme: str, degree: int | None, machine: Machine) -> tuple[str, Plan]:
    """The scheme of a call, and its plan: for "auto" the one that `Plan.seconds` estimates to be the
    fastest, the first in the order of `SCHEMES` if several are; "gather" only if `keeps_memory`.

    Raises `ConfigError` if the scheme cannot compute the problem.
    """
    if scheme == "auto":
        return _fastest(problem, machine)
    if scheme == "2d" and degree is not None:
        why = problem.why_not(degree)
        if why:
            raise ConfigError(f"ContextParallel: scheme '2d' with degree {degree} cannot be used: {why}")
        return scheme, Plan(problem, degree)
    if scheme == "ulysses" and (why := problem.why_not(problem.world)):
        raise ConfigError(
            f"ContextParallel: scheme 'ulysses' cannot be used: {why}; use scheme='ring', '2d' or 'auto'"
        )
    by_scheme = plans(problem, (scheme,))
    if problem.world == 1:
        return scheme, Plan(problem)
    if scheme not in by_scheme:
        raise ConfigError(
            f"ContextParallel: scheme '2d' cannot be used: no number between 1 and {problem.world} divides "
            f"the ranks and suits {problem.heads} heads of q, {problem.kv_heads} of k; use scheme='ring' or "
            "'auto'"
        )
    return scheme, by_scheme[scheme]


@functools.lru_cache(maxsize=256)
def _fastest(problem: Problem, machine: Machine) -> tuple[str, Plan]:
    by_scheme = {name: plan for name, plan in plans(problem).items() if plan.keeps_memory()}
    order = [name for name in SCHEMES if name in by_scheme]
    best = min(order, key=lambda name: by_scheme[name].seconds(machine))
    return best, by_scheme[best]


def explained(problem: Problem, scheme: str, chosen_plan: Plan, machine: Machine, asked: str) -> str:
    """A text that says what a call does, and why."""
    p, plan = problem, chosen_plan
    lines = [
        f"{p.queries} queries and {p.keys} keys on {p.world} ranks, {p.sharding.layout}: "
        f"{p.heads} heads of q, {p.kv_heads} of k",
        f"scheme {scheme}"
        + (f" of {plan.nodes} nodes of {plan.degree} ranks" if plan.degree > 1 else "")
        + (", as asked" if asked != "auto" else ", the fastest by estimate"),
    ]
    for name, one in plans(p).items():
        used = plan if name == scheme else one
        note = "" if used.keeps_memory() else ", needs memory for all keys"
        lines.append(
            f"  {name:<8} {used.most_bytes():>14,} bytes sent by a rank at most, "
            f"{used.seconds(machine) * 1e6:,.1f} us estimated{note}"
        )
    if why := p.why_not(p.world):
        lines.append(f"  {'ulysses':<8} not possible: {why}")
    work = [plan.scores(rank) for rank in plan.sample()]
    mean = sum(work) / len(work)
    lines.append(
        f"scores of a rank: {min(work):,} to {max(work):,}, the most {max(work) / max(mean, 1):.3f} of the "
        "mean"
    )
    lines.append(
        f"estimates for {machine.flops:.3g} flop/s, {machine.bandwidth:.3g} bytes/s and "
        f"{machine.latency:.3g} s a message"
    )
    return "\n".join(lines)
