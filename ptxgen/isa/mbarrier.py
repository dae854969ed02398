"""`mbarrier` objects in shared memory (PTX ISA, "Parallel Synchronization: mbarrier")."""
