"""Epochs, what ``state_dict`` saves of them, and resharding to another number of ranks."""
