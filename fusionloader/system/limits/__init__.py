"""Limits of this process: memory, processes, CPUs and open files."""
