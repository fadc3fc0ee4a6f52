"""A plan or user code applied to a tiny-batch. May import plan and shm."""
