"""Messages between machines: authenticated connections, listeners, and their clients."""
