"""CPU worker processes: their start, their work, their messages, their failures."""
