"""A plan on DALI: prebuilt pipelines of stock operators. May import plan and other executors.

`operations` and `support` do not need DALI, nor do `borrowing`, `prebuilt` and `resource_library`,
which processes without it import too; what builds pipelines does.
"""
