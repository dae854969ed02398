from __future__ import annotations

import pytest

from flash.device.cta_order import heads_per_section

MIB = 1 << 20


@pytest.mark.parametrize(
    ("heads", "group", "nbytes", "cache", "wanted"),
    [
        (32, 1, 4 * MIB, 50 * MIB, 8),  # nine fit, but would leave five
        (32, 4, 4 * MIB, 50 * MIB, 32),  # eight heads of K and V
        (32, 2, 4 * MIB, 50 * MIB, 18),  # nine and seven
        (7, 1, 4 * MIB, 50 * MIB, 7),
        (7, 1, 12 * MIB, 50 * MIB, 1),  # three fit: 3, 3, 1, and 2, 2, 2, 1
        (11, 1, 9 * MIB, 50 * MIB, 4),  # 4, 4, 3
        (8, 1, 100 * MIB, 50 * MIB, 1),
        (8, 8, 100 * MIB, 50 * MIB, 8),
        (5, 1, 0, 50 * MIB, 5),
        (4, 2, 1, 0, 2),
        (0, 1, 1, MIB, 1),
    ],
)
def test_a_section_fits_the_cache_and_the_last_is_not_small(
    heads: int, group: int, nbytes: int, cache: int, wanted: int
) -> None:
    assert heads_per_section(heads, group, nbytes, cache) == wanted
