"""A plan on DALI: prebuilt pipelines of stock operators. May import plan and other executors.

``task`` is a pipeline with parameters as inputs, ``prebuilt`` one that can be dropped and built
again. ``head`` decodes windows, and resizes for ``families/``, by the steps that ``head_steps``
takes from plans. ``families/`` do the other operations, ``memory/`` is about DALI's memory.
``head_steps``, ``prebuilt``, ``errors``, ``families.steps``, ``families.support`` and most of
``memory/`` need no DALI.
"""
