"""Results that are kept by key, in bounded memory."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_MOST: Final = 512  # decoding has a new key at every step


class Kept(dict[_Key, _Value], Generic[_Key, _Value]):
    """Results by key. All are forgotten before there are too many."""

    def keep(self, key: _Key, value: _Value) -> _Value:
        """Keep a result, and return it."""
        if len(self) >= _MOST:
            self.clear()
        self[key] = value
        return value
