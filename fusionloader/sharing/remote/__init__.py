"""Tiny-batches prepared on other machines."""
