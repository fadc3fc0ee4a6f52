"""The choice of how a loader is served, and the construction of its parts."""
