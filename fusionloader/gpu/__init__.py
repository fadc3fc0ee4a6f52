"""The GPU worker: whether there is one, its process, its control, and what training lends it."""
