"""How torch's warps of tensors are rounded, which depends on the processor."""

from fusionloader.transforms.plan.torchvision.on_tensors import UNFUSED, warps_natively


def rounding_here(rounding):
    """Returns a rounding of warps, or the one that torch has in its place on this machine."""
    return rounding if warps_natively("affine", "bilinear", rounding) else UNFUSED[rounding]
