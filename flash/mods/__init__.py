"""Functions of scores that a user writes: `score_mod` changes a score, `mask_mod` says which keys a
query sees. They are traced once; what follows is computed from the trace. This module has the
functions of values that such a function may use beside operators.
"""

from __future__ import annotations

from flash.mods.values import absolute, as_float, exp, log, logical_not, maximum, minimum, sqrt, tanh, where

__all__ = ["absolute", "as_float", "exp", "log", "logical_not", "maximum", "minimum", "sqrt", "tanh", "where"]
