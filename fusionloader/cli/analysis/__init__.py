"""What limits a training, measured in phases on the user's own script; and what would help."""
