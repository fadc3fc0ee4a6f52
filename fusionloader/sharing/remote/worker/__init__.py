"""The worker: answers requests of loaders on other machines. Imports no torch."""
