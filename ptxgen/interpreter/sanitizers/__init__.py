"""The sanitizers: races, bounds, uninitialised memory, and rules of barriers and asynchronous copies."""
