"""Ranks that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from distributed_ranks import Ranks


@pytest.fixture(scope="session")
def ranks(torch: ModuleType) -> Iterator[Ranks]:  # noqa: ARG001  # the ranks need it
    """Four ranks, of which the first two are a group of their own as well."""
    result = Ranks(4)
    for world in (2, 4):
        result.run("group_of_none", world)
    yield result
    result.close()
