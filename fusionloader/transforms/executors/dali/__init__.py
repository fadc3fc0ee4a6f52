"""DALI as a decoder of the GPU worker.

``head`` decodes windows. ``prebuilt`` is a pipeline that can be dropped and built again; it can be
imported without DALI, and so can ``memory/``, which lets DALI use borrowed memory.
"""
