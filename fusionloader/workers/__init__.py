"""CPU worker processes: how they start, what they run, what they send, how they fail."""
