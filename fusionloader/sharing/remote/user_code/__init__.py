"""User code on remote workers: Ray brings a loader's dataset to the workers that it starts.

The pickled dataset goes from the training process to the process that talks to Ray, and through Ray
to the actors. The workers' own ports accept nothing pickled: a loader names its dataset there by a
digest.
"""
