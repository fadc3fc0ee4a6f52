"""The exception of connections between machines."""


class TransportError(Exception):
    """Communication with a peer failed; the text says why, with the peer as the subject."""
