"""A plan on DALI: prebuilt pipelines of stock operators. May import plan and other executors.

`operations` and `support` do not need DALI; the other modules import it.
"""
