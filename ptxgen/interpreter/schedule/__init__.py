"""Who runs next: the order of warps, and threads that wait or are in calls."""
