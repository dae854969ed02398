"""Which emitted texts have run on a GPU, and what came of it."""
