"""How a loader is served, and why; what it is made of is put together here."""
