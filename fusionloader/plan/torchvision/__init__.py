"""torchvision's transforms to stages."""
