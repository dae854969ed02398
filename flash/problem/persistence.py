"""How the parts of a problem are dealt to CTAs: a part is one block of query rows of one head.

| scheduler | CTAs | offered |
|---|---|---|
| grid | one for each part; the GPU says which begins when | always |
| static | as many as run at once, N; CTA n takes the parts n, n + N, n + 2 N, … | see below |
| mirrored | the same, but every other round of parts is dealt from the last CTA to the first | see below |
| ticket | as many; each takes the next part, by a counter in memory, when it is done | see below |

With causality the parts with the most keys come first (`flash/device/cta_order.py`). Mirrored, a CTA that
has had a long part of one round has a short one of the next.

The last three are offered for f16 and bf16 with `wgmma` and head_dim up to 256, and with `tcgen05` where no
array has an element for each score and a CTA has all columns of V (tickets up to 128 columns and not with
varlen, unless `block_q` is 128), but not for a cache or for splits of the keys. What is not offered is
computed with a grid, and `explain` says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flash.families.choice import AnyTiling, family_of
from ptxgen.target import Target

if TYPE_CHECKING:
    from flash.problem.features import Features

GRID: Final = "grid"
STATIC: Final = "static"
MIRRORED: Final = "mirrored"
TICKET: Final = "ticket"
SCHEDULERS: Final = (GRID, STATIC, MIRRORED, TICKET)


def why_grid(tiling: AnyTiling, features: Features, scheduler: str) -> str:
    """Why a CTA takes one work tile, as text; the empty string if `scheduler` may deal it several."""
    family = family_of(tiling)
    for is_met, why in (
        (True, family.why_one_block),
        (scheduler == TICKET, family.why_no_tickets(tiling, varlen=features.varlen)),
        (features.hides_anywhere, family.why_no_planes),
        (tiling.value_slices > 1, "several CTAs have the columns of V of the same rows"),
        (features.cached, "keys are in a cache, where splits of the keys divide the work"),
    ):
        if is_met and why:
            return why
    return ""


def scheduled(scheduler: str, tiling: AnyTiling, features: Features, target: Target) -> tuple[str, AnyTiling]:
    """The scheduler that a kernel gets if `scheduler` is asked for, and the kernel's tiling."""
    if scheduler not in SCHEDULERS or scheduler == GRID or why_grid(tiling, features, scheduler):
        return GRID, tiling
    return scheduler, family_of(tiling).persistent(tiling, target)
