"""What to do to a sample, as data: typed stages, and transforms compiled to them.

``transforms`` compiles a transform: it takes containers apart and looks up the stage of each part
in ``torchvision/``, ``timm/`` and ``registry`` (this package's policies, such as
``deep_autoaugment``). ``arguments`` checks their arguments, ``patches`` finds changed classes,
``sizes`` computes the size of results. ``stages`` has the result, a ``Plan``. ``exchange`` sends
plans to other machines, ``parts`` names what time is counted by.
"""
