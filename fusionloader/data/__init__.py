"""Which samples there are, and what they are."""
