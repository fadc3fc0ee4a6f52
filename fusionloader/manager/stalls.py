"""How long nothing may come before a warning says where everybody is."""

WARN_SECONDS = 60.0
