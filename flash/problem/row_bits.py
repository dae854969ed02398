"""Kernels in which the bits of a row depend on the row, its keys and the config alone: those of launches
whose caller gives a number of splits.

A caller who fixes the splits wants the same bits of a row in every batch, so nothing that decides them may
follow what else is in the batch, how many queries there are or which device computes. These bits are decided
by how keys are cut into tiles and by the order in which sums of a row are taken: `row_arithmetic` of a tiling
says both. Kernels of several sizes of blocks may have the same. Which other rows are in a warp decides
nothing where each row has its own shift and moves it by its own scores, as it has in all kernels but those
that check sums (`flash/device/sum_checked_softmax.py`): there a warp weighs all of its rows again if one has
to move its shift, in another order of sums. These kernels have a variant that takes maxima of all tiles.
"""

from __future__ import annotations

from flash.families.choice import AnyTiling, family_of


def by_rows(tiling: AnyTiling) -> AnyTiling:
    """The tiling of the same sizes in whose kernel no bits of a row depend on other rows of its warp."""
    changed: AnyTiling = family_of(tiling).by_rows(tiling)
    return changed
