"""The KV cache and attention over it."""
