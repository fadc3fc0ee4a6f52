"""The iterators that ``iter(loader)`` returns."""
