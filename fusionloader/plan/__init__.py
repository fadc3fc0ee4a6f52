"""What to do to a sample, as data. Imports nothing else of the package."""
