"""The execution of a batch of CTAs: memory, barriers, copies and registers."""
