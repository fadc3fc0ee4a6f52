"""Epochs of a loader, their saved states, and resharding to another number of ranks."""
