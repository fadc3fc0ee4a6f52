"""``Compose`` on deferred images: its transforms are recorded without torchvision's code.

``compose`` runs a list. ``recorders`` draw as torchvision does. ``trials`` compares a recorder with
its transform. ``snapshots`` detects when the program changes a transform.
"""
