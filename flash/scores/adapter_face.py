"""What adapters to other libraries and attention across ranks know of a feature of scores."""

from __future__ import annotations

from typing import Any, ClassVar

from flash.operands.dtypes import DType


class AdapterFace:
    """The face of a feature for adapters, which loop over `flash.scores.features.SCORES`."""

    default: ClassVar[Any] = None  # of its argument
    # The type of the elements of its array, if no config chooses it.
    array_dtype: ClassVar[DType | None] = None
    # The type of what `plain` returns in a PyTorch operator, such as "float?"; "" for arrays and functions.
    schema: ClassVar[str] = ""
    # Its argument where models of transformers call attention; "" if they have none.
    in_transformers: ClassVar[str] = ""

    @classmethod
    def plain(cls, argument: Any) -> Any:
        """The argument of a call as numbers alone, which functions of `flash` take, too."""
        return argument

    @classmethod
    def factor(cls, query: Any, key: Any) -> Any:
        """The factor of a head's number in the term that is added to the score of a query and a key at these
        positions: integers, arrays, or values of a function of scores. Features with `uses_position` and
        `gradient_of` "rows" define it; others raise TypeError.
        """
        raise TypeError(f"{cls.__qualname__} must define factor, by which ranks apply it and its gradient")
