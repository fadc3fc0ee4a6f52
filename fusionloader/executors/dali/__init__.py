"""DALI as a decoder of the GPU worker. May import plan and other executors.

``prebuilt`` is a pipeline that can be dropped and built again, ``task`` what pipelines run on and
are fed with. ``head`` decodes windows, by the steps that ``head_steps`` takes from plans.
``memory/`` is about DALI's memory. ``head_steps``, ``prebuilt``, ``errors`` and most of ``memory/``
need no DALI.
"""
