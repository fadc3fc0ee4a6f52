"""A GPU worker's work on a group of samples. May import executors.dali.

``make_task`` builds a ``task``: a head, then an augment task, which is ``cuda_augment`` (the fused
kernel, by ``program``), ``dali_augment`` (DALI's op families) or the native executor. ``support``
says which plans it can run. ``launch_memory``, ``torch_pool`` and ``release_blocks`` are about
borrowed memory.
"""
