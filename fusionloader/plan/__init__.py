"""What to do to a sample, as data: typed stages, and transforms compiled to them."""
