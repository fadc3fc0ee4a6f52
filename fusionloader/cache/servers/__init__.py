"""A cache that several machines hold a part of each: who owns what, and how it is asked for."""
