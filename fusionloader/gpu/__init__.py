"""The GPU worker: the choice whether there is one, its process, its control, memory lending."""
