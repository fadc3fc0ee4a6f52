"""Decisions of who reads ranges of URLs: what next, when again, when a second time."""
