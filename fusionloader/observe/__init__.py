"""What is seen of a loader: counters, snapshots and timelines."""
