"""DALI as a decoder of the GPU worker. May import plan and other executors.

``prebuilt`` is a pipeline that can be dropped and built again, ``backend`` what pipelines run on.
``head`` decodes windows. ``memory/`` is about DALI's memory; most of it, and ``prebuilt``, need no
DALI.
"""
