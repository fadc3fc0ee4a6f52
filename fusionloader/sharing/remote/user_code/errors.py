"""Why a worker does not make the samples of user code that it was asked for."""

from __future__ import annotations


class NotBrought(Exception):
    """The dataset is not there; the text says so, about the worker."""


class NotLoaded(Exception):
    """The dataset does not run there; the text says why, about the worker."""


class NotMade(Exception):
    """Samples are left to the loader's machine; the text says why."""
