"""DALI's allocations: in borrowed memory, and what it keeps for itself."""
