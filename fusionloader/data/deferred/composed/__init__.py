"""``Compose`` on deferred images: its transforms are recorded without torchvision's code.

``compose`` runs a list, ``recorders`` draw as torchvision does, ``trials`` compare both, and
``snapshots`` notices when the program changes a transform.
"""
