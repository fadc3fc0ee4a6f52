"""Says how to install what an integration needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Has imports within the block say which extra of the package has what is missing.

    Raises:
        ImportError: a package is missing; with the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise ImportError(
            f"fusionloader.addons.integrations.{name} needs {package}: "
            f"pip install 'fusionloader[{name}]'",
            name=error.name,
        ) from error
