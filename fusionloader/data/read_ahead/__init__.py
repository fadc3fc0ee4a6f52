"""A process that reads ranges of URLs ahead of a loader's workers, and both ends of it."""
