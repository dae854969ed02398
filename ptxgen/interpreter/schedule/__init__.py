"""The scheduling of lanes: the order of warps, waiting threads, and threads in calls."""
