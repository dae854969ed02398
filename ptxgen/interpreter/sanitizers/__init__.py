"""Who watches: races, bounds, uninitialised memory, and barriers and copies against their rules."""
