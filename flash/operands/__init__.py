"""Arguments of kernels: element types, and the declarations of arrays and scalars."""

import sys

_parent = sys.modules["flash"]
if getattr(_parent, "__distribution__", None) != "ptxgen":  # its __init__.py is another's
    from ptxgen.distribution import replaced

    raise ImportError(replaced(str(_parent.__file__), "flash", "ptxgen"))
