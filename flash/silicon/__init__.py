"""The emitted texts that have run on a GPU, each with its verdict."""
