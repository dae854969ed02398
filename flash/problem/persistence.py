"""How the parts of a problem are dealt to CTAs: a part is one block of query rows of one head.

| scheduler | CTAs | offered |
|---|---|---|
| grid | one for each part; the GPU says which begins when | always |
| static | as many as run at once, N; CTA n takes the parts n, n + N, n + 2 N, … | see below |
| mirrored | the same, but every other round of parts is dealt from the last CTA to the first | see below |
| ticket | as many; each takes the next part, by a counter in memory, when it is done | see below |

With causality the parts with the most keys come first (`flash/device/cta_order.py`). Mirrored, a CTA that
has had a long part of one round has a short one of the next.

The last three are offered for f16 and bf16 with `wgmma` and head_dim up to 256, static and mirrored ones also
with `tcgen05`, but not for a cache or for splits of the keys. What is not offered is computed with a grid, and `explain` says why.
"""

from __future__ import annotations

from typing import Final

from flash.families.choice import AnyTiling, family_of
from ptxgen.target import Target

GRID: Final = "grid"
STATIC: Final = "static"
MIRRORED: Final = "mirrored"
TICKET: Final = "ticket"
SCHEDULERS: Final = (GRID, STATIC, MIRRORED, TICKET)


def why_grid(tiling: AnyTiling, cached: bool, scheduler: str) -> str:
    """Why a CTA takes one part of the problem; the empty string if `scheduler` may deal it several. `cached`
    is whether keys are in a cache or in pages.
    """
    family = family_of(tiling)
    why = family.why_one_block or (family.why_no_tickets if scheduler == TICKET else "")
    return why or ("keys are in a cache, where splits of the keys divide the work" if cached else "")


def scheduled(scheduler: str, tiling: AnyTiling, cached: bool, target: Target) -> tuple[str, AnyTiling]:
    """The scheduler of a kernel for which `scheduler` was asked, and its tiling."""
    if scheduler not in SCHEDULERS or scheduler == GRID or why_grid(tiling, cached, scheduler):
        return GRID, tiling
    return scheduler, family_of(tiling).persistent(tiling, target)
