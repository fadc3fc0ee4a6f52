"""What goes wrong between machines."""


class TransportError(Exception):
    """A peer cannot be reached or is not to be spoken to; the text says why, about the peer."""
