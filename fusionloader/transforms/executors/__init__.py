"""A plan, or user code, applied to a tiny-batch. May import plan, gpu_memory and shm.

``native`` runs a plan on the CPU, ``device/`` on a GPU worker by pipelines of ``dali/``, ``replay``
by torchvision for comparison. ``python`` calls user code. ``layout`` writes samples into batches,
``collate`` says whether it may. ``nvidia_packages`` says where CUDA's packages are.
``compiled_plan`` is the public face of a compiled transform.
"""
