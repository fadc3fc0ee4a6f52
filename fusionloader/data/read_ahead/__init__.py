"""A process that reads ranges of URLs ahead of a loader's workers, and its two clients."""
