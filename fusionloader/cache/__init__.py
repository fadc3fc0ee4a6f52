"""Caches of encoded files and decoded images, for one loader, one machine or several."""
