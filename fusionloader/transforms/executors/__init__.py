"""Runs a plan, or user code, on a tiny-batch.

``native`` runs a plan on the CPU, ``device/`` on a GPU worker that decodes by ``decoders/`` and
``dali/``, ``replay`` with torchvision, for comparison. ``python`` calls user code. ``layout`` and
``row_writer`` write samples into batches, if ``collate`` finds torch's own functions.
``batch_transport`` sends whole batches from a worker, and ``batch_pickling`` what is not in their
memory. ``compiled_plan`` is the public face of a
compiled transform. ``nvidia_packages`` finds CUDA's packages.
"""
