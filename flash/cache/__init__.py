"""The KV cache of keys and values, and attention of new queries to it."""
