"""Processes: workers and the local manager. May import executors, scheduler, shm and plan."""
