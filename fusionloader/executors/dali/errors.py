"""What DALI cannot do. No DALI here."""

from __future__ import annotations


class NotOnDali(ValueError):
    """The head cannot do an operation; the message says what and why."""
