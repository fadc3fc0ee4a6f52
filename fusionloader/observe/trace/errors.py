"""What is wrong with the file of a trace."""


class TraceError(ValueError):
    """The file is empty, cut off, or no trace of a loader; the message says which."""
