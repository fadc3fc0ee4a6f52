"""Messages between machines: authenticated connections, and peers that come and go."""
