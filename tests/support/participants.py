"""The participants of a manager, for tests that look at them."""


def participant(manager, kind):
    """Returns the participant of a class."""
    return next(each for each in manager.participants if isinstance(each, kind))
