"""A cache that is distributed over machines: owners of samples, and requests to them."""
