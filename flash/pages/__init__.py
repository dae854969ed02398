"""Where the rows of each cached sequence lie, and how a call that fails is undone."""
