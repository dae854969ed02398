"""The functions of flash-attn 2.8 for PyTorch tensors, computed by this project's kernels.

Names, order and defaults of the arguments, layouts ([batch, seqlen, heads, head_dim]), and results
are those of `flash_attn` (https://github.com/Dao-AILab/flash-attention, `flash_attn_interface.py`),
so that a program changes one import:

    from flash.adapters.flash_attn import flash_attn_func

`bert_padding` beside them has `unpad_input`, `pad_input` and `index_first_axis`.

What is taken beyond flash-attn: float32, tensors on the CPU, head_dim_v other than head_dim, pages
of any size, `cache_batch_idx` and `cache_leftpad` with pages, softcap with dropout. What differs: a
row that sees no key has LSE -inf, not +inf (its output is 0 in both). The functions are those of
`flash.adapters.torch`, so torch.compile and autograd know them; calls over a cache or pages refuse
tensors that require gradients.
`docs/migration.md` has each argument beside that of `flash.attention`.

Tensors on a GPU are computed there, on the current stream; tensors on the CPU by numpy. flash-attn
has no argument for that choice: `using_backend("interpreter")` is a context, and PTXGEN_BACKEND an
environment variable, that make another.
"""

from flash.adapters.flash_attn.calls import using_backend
from flash.adapters.flash_attn.dense import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
)
from flash.adapters.flash_attn.kvcache import flash_attn_with_kvcache
from flash.adapters.flash_attn.varlen import (
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "using_backend",
]
