"""Real epochs of all parts under a seeded schedule of faults (docs/guide/faults.md)."""
