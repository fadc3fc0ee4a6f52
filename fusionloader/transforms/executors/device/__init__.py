"""A GPU worker's work on a group of samples.

``make_task`` builds a ``task``, which decodes and then runs ``fused_augment``, the fused kernel.
``program`` makes programs of the kernel, and ``launchers`` run them; for a device ``kernel``
compiles it by ``nvrtc``. ``support`` says which plans can run. ``launch_memory`` borrows memory.
"""
