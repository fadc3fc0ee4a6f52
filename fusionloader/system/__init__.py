"""Processes, messages, memory and limits: what knows no samples."""
