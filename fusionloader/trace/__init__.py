"""Timelines of a loader: what workers and training did when, recorded, written and read again."""
