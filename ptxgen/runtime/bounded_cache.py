"""Results cached by key, in bounded memory."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_MOST: Final = 512  # decoding has a new key at every step


class BoundedCache(dict[_Key, _Value], Generic[_Key, _Value]):
    """Results by key. The cache is emptied when it is full."""

    def keep(self, key: _Key, value: _Value) -> _Value:
        """Cache a result, and return it."""
        if len(self) >= _MOST:
            self.clear()
        self[key] = value
        return value
