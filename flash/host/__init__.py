"""The caller's arrays: reads, checks and copies them, and makes arrays for results."""
