"""Processes, messages, memory and limits. Nothing here knows of samples."""
