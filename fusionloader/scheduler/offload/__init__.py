"""What remote workers prepare: when, in which kind of request, and how much."""
