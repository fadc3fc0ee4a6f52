"""What to do to a sample, as data: typed stages, and transforms compiled to them.

``transforms`` compiles a transform: it takes containers apart and asks ``torchvision/``, ``timm/``
and ``registry`` (this package's policies, ``deep_autoaugment`` among them) for the stage of each
part. ``arguments`` checks their arguments, ``patches`` whether a class was changed, ``sizes`` what
size results have. ``stages`` (with ``policy_stages`` and ``values``) are the result, a ``Plan``;
``operations`` are what is drawn from it.
"""
