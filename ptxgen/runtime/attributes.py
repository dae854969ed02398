"""Launch attributes: clusters, cooperative grids, and grids that begin before the preceding grid ends."""

from __future__ import annotations

from typing import Final

from ptxgen.records import dataclass


@dataclass(frozen=True)
class LaunchAttributes:
    """The attributes of a launch besides its extents (CUDA Driver API, `CUlaunchAttributeID`).

    `cluster` is the CTAs of a cluster along x, y and z; `cooperative` has all CTAs on the device at
    once; `programmatic` lets the grid begin when the grid before it in the stream allows it or ends
    (`griddepcontrol`).
    """

    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    programmatic: bool = False

    def canonical(self) -> LaunchAttributes:
        """These attributes; `NO_ATTRIBUTES` itself if nothing is asked for, which launches look for."""
        return NO_ATTRIBUTES if self == NO_ATTRIBUTES else self


NO_ATTRIBUTES: Final = LaunchAttributes()
