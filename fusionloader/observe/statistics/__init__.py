"""What is counted while training runs: waits, stages, workers; and the snapshot of it."""
