"""Checks of a module: names, operands, types, definitions and limits; all problems at once."""

from ptxgen.check.verify.verifier import require_valid, verify

__all__ = ["require_valid", "verify"]
