"""Attention of `flash` in programs of JAX: under `jit`, `vmap` and `grad`.

    from flash.adapters.jax import attention

    @jax.jit
    def loss(q, k, v):
        return attention(q, k, v, causal=True).sum()

    jax.grad(loss, argnums=(0, 1, 2))(q, k, v)

Needs jax.
"""

from flash.adapters.jax.functions import attention, attention_varlen

__all__ = ["attention", "attention_varlen"]
