"""The steps of a plan on one rank, forward and backward."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flash.distributed.arrays import BY_POSITION, OF_ROWS, Arrays, of_heads
from flash.distributed.exchange import Event, Form, Peers, Traffic, Transfer
from flash.distributed.local import (
    MOST_RANDOM_NUMBERS,
    MOST_SUMMED,
    Part,
    Scores,
    TileAttention,
    merged_parts,
)
from flash.distributed.maxima import largest
from flash.distributed.plan import Plan, compacted
from flash.distributed.tiles import Tile

_AXIS_OF_HEADS = 1
_AXIS_OF_ROWS = 2


class Forward(NamedTuple):
    """The tensors of a forward pass that the backward pass reads: a node's rows of the rank's share of
    heads.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor


@dataclass(frozen=True)
class Engine:
    """One call on one rank. All tensors have heads first: [batch, heads, rows, head_dim]."""

    plan: Plan
    peers: Peers
    scores: Scores
    with_tops: bool = False  # whether the largest scores of heads are wanted

    @property
    def node(self) -> int:
        """The node of this rank."""
        return self.peers.rank // self.plan.degree

    @property
    def member(self) -> int:
        """The index of this rank in its node."""
        return self.peers.rank % self.plan.degree

    # ---------------------------------------------------------------------------------- forward

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, arrays: Arrays, traffic: Traffic
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Forward, Arrays]:
        """The results, the tensors that a backward pass reads, and the arrays of which heads were exchanged
        for rows. The results are out, of the type of q, and lse in float32 for the rank's rows; and for those
        of all ranks the largest scores of heads, float32, without elements if they are not wanted.
        """
        rows = q.shape[_AXIS_OF_ROWS]
        if self.plan.degree > 1:
            q, k, v = self._heads_for_rows((q,), (k, v), "heads of q, k and v", traffic)
        moved = self._moved(arrays, traffic)
        local_arrays = of_heads(arrays, self._share) | moved
        local = TileAttention(self.scores, local_arrays, self._share.start, self.plan.problem.heads)
        out = torch.zeros((*q.shape[:3], v.shape[3]), dtype=torch.float32, device=q.device)
        lse = torch.full(q.shape[:3], -torch.inf, device=q.device)
        p = self.plan.problem
        tops = lse.new_full((len(p.documents) or p.batch, p.heads), -torch.inf)
        for step, (k_part, v_part, tiles) in self._steps(k, v, self._most_scores(), traffic):
            with _computing(traffic, f"step {step}"):
                for tile in local.together(tiles):
                    for part in local.parts(q, k_part, v_part, tile, with_tops=self.with_tops):
                        _merge(out, lse, part)
                        _raise(tops[:, self._share], part)
                    traffic.scores += tile.scores * q.shape[0] * q.shape[1]
        for logits in local.first_logits(self._documents(q.device)).values():
            _merge(out, lse, Part(slice(None), torch.zeros_like(out), logits.expand_as(lse).contiguous()))
        out = out.to(q.dtype)
        saved = Forward(q, k, v, out, lse)
        if self.plan.degree > 1:
            lse, out = self._rows_for_heads((lse, out), rows, "heads of results", traffic)
        if self.with_tops:
            tops = largest(self.peers, tops, "largest scores of heads", traffic)
        return (out, lse, tops if self.with_tops else tops.new_empty((0,))), saved, moved

    # --------------------------------------------------------------------------------- backward

    def backward(
        self,
        dout: Tensor,
        dlse: Tensor | None,
        saved: Forward,
        arrays: Arrays,
        moved: Arrays,
        into: Arrays,
        traffic: Traffic,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of the rank's rows of q, k and v; those of arrays, as far as its queries add to
        them, are added to `into`.
        """
        rows = self.plan.rows(self.peers.rank)
        q, k, v, out, lse = saved
        if self.plan.degree > 1:
            row_gradients = (dout,) if dlse is None else (dlse, dout)
            results = self._heads_for_rows(row_gradients, (), "heads of gradients of results", traffic)
            dlse, dout = (None, *results) if dlse is None else results
        local = TileAttention(
            self.scores,
            {**of_heads(arrays, self._share), **moved},
            self._share.start,
            self.plan.problem.heads,
        )
        into_moved = {
            name: torch.zeros(array.shape, dtype=torch.float32, device=array.device)
            for name, array in moved.items()
            if name in into
        }
        of_rank, into = into, of_heads(into, self._share) | into_moved
        dq, dk, dv = (torch.zeros(t.shape, dtype=torch.float32, device=t.device) for t in (q, k, v))
        returning: list[tuple[int, Transfer]] = []
        most = self._most_scores(by_position=any(name in into for name in BY_POSITION))
        for step, (k_part, v_part, tiles) in self._steps(k, v, most, traffic):
            to_k = dk if step == 0 else torch.zeros_like(k_part, dtype=torch.float32)
            to_v = dv if step == 0 else torch.zeros_like(v_part, dtype=torch.float32)
            with _computing(traffic, f"step {step}"):
                for tile in local.together(tiles, into):
                    tile_gradient = local.gradient(dout, dlse, q, k_part, v_part, out, lse, tile, into)
                    dq[:, :, tile.queries] += tile_gradient.dq
                    to_k[:, :, tile.keys] += tile_gradient.dk
                    to_v[:, :, tile.keys] += tile_gradient.dv
                    traffic.scores += tile.scores * q.shape[0] * q.shape[1]
            if step:
                self._add_returned(returning, dk, dv, traffic)
                returning.append(
                    (step, self._return_gradients(step, to_k.to(k.dtype), to_v.to(v.dtype), k, v))
                )
        self._add_returned(returning, dk, dv, traffic)
        self._add_first(local, dout, dlse, out, lse, into)
        grad_q, grad_k, grad_v = dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
        if self.plan.degree == 1:
            return grad_q, grad_k, grad_v
        (grad_q,) = self._rows_for_heads((grad_q,), rows[0], "heads of the gradient of q", traffic)
        grad_k, grad_v = self._keys_for_heads(grad_k, grad_v, rows[1], traffic)
        for name, gradient in into_moved.items():
            self._array_for_heads(name, gradient.to(moved[name].dtype), of_rank[name], traffic)
        return grad_q, grad_k, grad_v

    def _add_first(
        self, local: TileAttention, dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, into: Arrays
    ) -> None:
        """Add -exp(logit - lse) (sum of dout * out, less dlse) of each row, for logits that belong to no key,
        such as sinks.
        """
        documents = self._documents(out.device)
        for name, logits in local.first_logits(documents).items():
            if name in into:
                delta = (dout.float() * out.float()).sum(-1)
                delta = delta if dlse is None else delta - dlse
                weight = torch.where(lse == -torch.inf, 0.0, torch.exp(logits - lse))
                local.add_first(into[name], -weight * delta, documents)

    # ----------------------------------------------------------------------------- between nodes

    def _steps(
        self, k: Tensor, v: Tensor, most_scores: int | None, traffic: Traffic
    ) -> Iterator[tuple[int, tuple[Tensor, Tensor, Sequence[Tile]]]]:
        """Each step with its keys, values and tiles of at most `most_scores`; those of the next step, or with
        `at_once` of all steps, arrive while the caller computes.
        """
        plan, node = self.plan, self.node
        ahead = len(plan.steps()) if plan.at_once else 1
        under_way = {step: self._ask(step, k, v) for step in plan.steps()[:ahead]}
        yield 0, (k, v, self._tiles(node, most_scores))
        for step in plan.steps():
            source = (node - step) % plan.nodes
            received = under_way.pop(step).wait(traffic)
            later = step + ahead
            if later < plan.nodes:
                under_way[later] = self._ask(later, k, v)
            runs, asked = plan.key_runs(source), plan.asked(node, source)
            tiles = compacted(self._tiles(source, most_scores), asked, runs)
            k_part, v_part = received[self._peer(source)]
            yield step, (k_part, v_part, tiles)

    def _ask(self, step: int, k: Tensor, v: Tensor) -> Transfer:
        """Start to send and receive the keys and values of a step."""
        plan, node = self.plan, self.node
        to, source = (node + step) % plan.nodes, (node - step) % plan.nodes
        sent = plan.asked(to, node)
        sends = {self._peer(to): [_rows_of(k, sent), _rows_of(v, sent)]}
        rows = _count(plan.asked(node, source))
        forms = {self._peer(source): [_form(k, rows), _form(v, rows)]}
        return self.peers.start(sends, forms, f"keys and values, step {step}", k)

    def _return_gradients(self, step: int, dk: Tensor, dv: Tensor, k: Tensor, v: Tensor) -> Transfer:
        """Start to send the gradients of a step's keys and values to their rank, and to receive those of this
        rank's.
        """
        plan, node = self.plan, self.node
        source, other = (node - step) % plan.nodes, (node + step) % plan.nodes
        rows = _count(plan.asked(other, node))
        forms = {self._peer(other): [_form(k, rows), _form(v, rows)]}
        what = f"gradients of keys and values, step {step}"
        return self.peers.start({self._peer(source): [dk, dv]}, forms, what, k)

    def _add_returned(
        self, returning: list[tuple[int, Transfer]], dk: Tensor, dv: Tensor, traffic: Traffic
    ) -> None:
        """Add the gradients that another node has computed, if any are under way."""
        while returning:
            step, transfer = returning.pop()
            other = (self.node + step) % self.plan.nodes
            parts = transfer.wait(traffic)[self._peer(other)]
            asked = self.plan.asked(other, self.node)
            for total, part in zip((dk, dv), parts, strict=True):
                at = 0
                for rows in asked:
                    end = at + rows.stop - rows.start
                    total[:, :, rows] += part[:, :, at:end]
                    at = end

    def _peer(self, node: int) -> int:
        """The rank of a node that computes the same heads as this rank."""
        return node * self.plan.degree + self.member

    def _most_scores(self, *, by_position: bool = False) -> int | None:
        """The most scores of a tile: of dropout for its random numbers, and for gradients that count
        positions for those of scores; None for any number.
        """
        most = [MOST_RANDOM_NUMBERS] if self.scores.dropout else []
        return min(most + ([MOST_SUMMED] if by_position else []), default=None)

    def _tiles(self, source: int, most_scores: int | None) -> tuple[Tile, ...]:
        """The tiles of a step, of at most `most_scores` scores."""
        p = self.plan.problem
        if most_scores is None:
            return self.plan.tiles(self.node, source)
        keys = max((run.count for run in self.plan.key_runs(source)), default=1)
        heads = p.batch * p.heads // self.plan.degree
        return self.plan.tiles(self.node, source, max(1, most_scores // max(1, heads * keys)))

    # ----------------------------------------------------------------------------- inside a node

    def _heads_for_rows(
        self, of_q: Sequence[Tensor], of_k: Sequence[Tensor], what: str, traffic: Traffic
    ) -> list[Tensor]:
        """The rows of the whole node for the rank's share of heads, of tensors like q and like k. An axis of
        one head is shared by all heads.
        """
        plan, rank = self.plan, self.peers.rank
        sends, forms = {}, {}
        for member, peer in enumerate(plan.members(self.node)):
            share = plan.share(member)
            if peer != rank:
                sends[peer] = [_heads_of(t, share.heads) for t in of_q]
                sends[peer] += [t[:, share.kv_heads] for t in of_k]
                rows, mine = plan.rows(peer), plan.share(self.member)
                forms[peer] = [_form(_heads_of(t, mine.heads), rows[0]) for t in of_q]
                forms[peer] += [_form(t[:, mine.kv_heads], rows[1]) for t in of_k]
        like = of_q[0]
        received = self.peers.start(sends, forms, what, like).wait(traffic)
        mine = plan.share(self.member)
        received[rank] = [_heads_of(t, mine.heads) for t in of_q] + [t[:, mine.kv_heads] for t in of_k]
        parts = zip(*[received[peer] for peer in plan.members(self.node)], strict=True)
        whole = [torch.cat(tensors, dim=_AXIS_OF_ROWS) for tensors in parts]
        order_q, order_k = plan.orders(self.node)
        orders = [order_q] * len(of_q) + [order_k] * len(of_k)
        return [_ordered(t, order) for t, order in zip(whole, orders, strict=True)]

    def _rows_for_heads(
        self, tensors: Sequence[Tensor], rows: int, what: str, traffic: Traffic
    ) -> list[Tensor]:
        """The rank's rows for all heads, of tensors with the heads of q."""
        received = self._return_rows(
            tensors, 0, rows, [t.shape[_AXIS_OF_HEADS] for t in tensors], what, traffic
        )
        parts = zip(*[received[peer] for peer in self.plan.members(self.node)], strict=True)
        return [torch.cat(each, dim=_AXIS_OF_HEADS) for each in parts]

    def _keys_for_heads(self, dk: Tensor, dv: Tensor, rows: int, traffic: Traffic) -> tuple[Tensor, Tensor]:
        """The gradients of the rank's keys for all heads; heads that several ranks share are summed."""
        plan = self.plan
        heads = dk.shape[_AXIS_OF_HEADS]
        received = self._return_rows(
            (dk, dv), 1, rows, [heads, heads], "heads of gradients of k and v", traffic
        )
        totals = []
        for n, like in enumerate((dk, dv)):
            shape = (like.shape[0], plan.problem.kv_heads, rows, like.shape[3])
            total = torch.zeros(shape, dtype=torch.float32, device=like.device)
            for member, peer in enumerate(plan.members(self.node)):
                total[:, plan.share(member).kv_heads] += received[peer][n]
            totals.append(total.to(like.dtype))
        return totals[0], totals[1]

    def _array_for_heads(self, name: str, gradient: Tensor, into: Tensor, traffic: Traffic) -> None:
        """Add the gradient of the rank's rows of an array for all heads; if all heads share one, the sum in
        the order of the ranks.
        """
        wide = _wide(into)
        heads = gradient.shape[_AXIS_OF_HEADS]
        what = f"heads of the gradient of {name}"
        received = self._return_rows((gradient,), 0, wide.shape[_AXIS_OF_ROWS], [heads], what, traffic)
        for member, peer in enumerate(self.plan.members(self.node)):
            part = _heads_of(wide, self.plan.share(member).heads)
            part += received[peer][0]

    def _return_rows(
        self,
        tensors: Sequence[Tensor],
        side: int,
        rows: int,
        heads: Sequence[int],
        what: str,
        traffic: Traffic,
    ) -> dict[int, list[Tensor]]:
        """Give each rank of the node its rows, of q with `side` 0 or of k with 1, and get those of this rank,
        with the heads of each rank.
        """
        plan, rank = self.plan, self.peers.rank
        order = plan.orders(self.node)[side]
        if order is not None:
            back = np.argsort(order).tolist()
            tensors = [_ordered(t, back) for t in tensors]
        sends, forms, start = {}, {}, 0
        local: list[Tensor] = []
        for peer in plan.members(self.node):
            count = plan.rows(peer)[side]
            parts = [t[:, :, start : start + count] for t in tensors]
            start += count
            if peer == rank:
                local = parts
                continue
            sends[peer] = parts
            forms[peer] = [
                Form((t.shape[0], n, rows, *t.shape[3:]), t.dtype)
                for t, n in zip(tensors, heads, strict=True)
            ]
        received = self.peers.start(sends, forms, what, tensors[0]).wait(traffic)
        received[rank] = local
        return received

    # ------------------------------------------------------------------------------------ pieces

    @property
    def _share(self) -> slice:
        """The heads of q that this rank computes."""
        return self.plan.share(self.member).heads

    def _moved(self, arrays: Arrays, traffic: Traffic) -> dict[str, Tensor]:
        """The arrays with rows, after the ranks of a node have exchanged heads for rows: the rank's share of
        heads, with the rows of the node. Empty if the arrays need no exchange.
        """
        have_rows = {array.name for array in self.plan.problem.of_rows}
        names = [name for name in OF_ROWS if self.plan.degree > 1 and name in have_rows]
        if not names:
            return {}
        names.sort(key=lambda name: -arrays[name].element_size())  # larger elements first
        wide = [_wide(arrays[name].detach()) for name in names]
        what = f"heads of {' and '.join(OF_ROWS)}"
        return dict(zip(names, self._heads_for_rows(wide, (), what, traffic), strict=True))

    def _documents(self, device: torch.device) -> Tensor:
        """The document of each row of the node, 0 without documents, -1 for rows of none."""
        p = self.plan.problem
        whole = torch.arange(p.queries, device=device)
        positions = torch.cat([whole[:0], *[whole[run.positions] for run in self.plan.query_runs(self.node)]])
        if not p.documents:
            return torch.zeros_like(positions)
        numbers = torch.full_like(positions, -1)
        for one in p.documents:
            numbers[(positions >= one.first_query) & (positions < one.end_query)] = one.number
        return numbers


def _merge(out: Tensor, lse: Tensor, part: Part) -> None:
    """Merge a part into the results so far, both float32."""
    rows = part.rows
    merged = merged_parts([out[:, :, rows], part.out], [lse[:, :, rows], part.lse])
    out[:, :, rows], lse[:, :, rows] = merged


def _raise(tops: Tensor, part: Part) -> None:
    """Raise the largest scores so far, `tops`, to those of a part, if the part has maxima."""
    if part.tops is None:
        return
    if not part.documents:
        tops.copy_(torch.maximum(tops, part.tops))
    for number, of_document in zip(part.documents, part.tops, strict=False):
        tops[number] = torch.maximum(tops[number], of_document)


def _rows_of(tensor: Tensor, rows: Sequence[slice]) -> Tensor:
    """The slices `rows` of a shard, one after another."""
    parts = [tensor[:, :, part] for part in rows if part.stop > part.start]
    if not parts:
        return tensor[:, :, :0]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=_AXIS_OF_ROWS)


def _ordered(tensor: Tensor, order: Sequence[int] | None) -> Tensor:
    """The rows of a tensor in the order `order`; unchanged if it is None."""
    if order is None:
        return tensor
    return tensor.index_select(_AXIS_OF_ROWS, torch.tensor(order, dtype=torch.int64, device=tensor.device))


def _wide(array: Tensor) -> Tensor:
    """A bias or a mask with all four axes, as a view."""
    return array[(None,) * (4 - array.dim())]


def _heads_of(tensor: Tensor, heads: slice) -> Tensor:
    """The slice `heads` of a tensor; a tensor of one head, which all share, is unchanged."""
    return tensor if tensor.shape[_AXIS_OF_HEADS] == 1 else tensor[:, heads]


def _form(like: Tensor, rows: int) -> Form:
    return Form((*like.shape[:2], rows, *like.shape[3:]), like.dtype)


def _count(rows: Sequence[slice]) -> int:
    return sum(part.stop - part.start for part in rows)


@contextmanager
def _computing(traffic: Traffic, what: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    traffic.events.append(Event("compute", what, begin, time.perf_counter()))
