"""User code on remote workers: a loader's dataset, which Ray brings to the workers that it starts.

What is pickled goes from the training process to the process that speaks to Ray, and through Ray to
the actors. The workers' own ports never take anything pickled: a loader says there by a digest
which dataset it means.
"""
