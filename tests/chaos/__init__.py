"""Real epochs of every part of the loader under a seeded schedule of faults: docs/faults.md."""
