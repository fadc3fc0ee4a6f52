"""A GPU worker's work on a group of samples. May import executors.dali.

``make_task`` builds a ``task``: a head, then ``fused_augment``, the fused kernel. ``program`` makes
the kernel's programs and ``launchers`` run them, on a device with what ``kernel`` compiles by
``nvrtc``. ``support`` says which plans it can run. ``launch_memory`` is about borrowed memory.
"""
