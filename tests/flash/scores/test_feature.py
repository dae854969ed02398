"""What a feature of scores has to define."""

from __future__ import annotations

from typing import Any

import pytest

from flash.scores.feature import Applied


class Tilted(Applied):
    """A feature in a kernel, without its derivatives."""


def test_a_feature_without_its_gradient_is_named() -> None:
    nothing: Any = None
    for method, kind in (("row_gradients", "rows"), ("first_gradient", "first")):
        with pytest.raises(TypeError) as caught:
            getattr(Tilted(), method)(nothing, nothing)
        assert str(caught.value) == (
            f"Tilted must define {method}, which kernels call for a feature with gradient_of={kind!r}"
        )
