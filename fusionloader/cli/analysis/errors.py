"""What ends an analysis."""

from __future__ import annotations


class AnalysisError(Exception):
    """Nothing can be measured; the message says what was found and what to do."""


class AnalysisDone(BaseException):
    """Everything is measured: ends the user's script.

    No ``Exception``, so that a script that goes on after errors does not go on after this.
    """
