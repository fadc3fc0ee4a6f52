"""Stores of encoded files and decoded images, in memory and on disk."""
