"""What is left to remote workers: when, in which requests, and how much."""
