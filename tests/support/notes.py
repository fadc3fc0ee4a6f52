"""What an error says together with its notes."""

from __future__ import annotations

HAS_NOTES = hasattr(BaseException, "add_note")
"""Whether errors have notes: since Python 3.11."""


def said(error: BaseException) -> str:
    """Returns the text of an error and its notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])
