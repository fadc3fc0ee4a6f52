"""Coordinated preparation: jobs of a machine prepare each mini-batch once, for all of them."""
