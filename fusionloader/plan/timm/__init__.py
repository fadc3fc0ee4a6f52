"""timm's transforms to stages."""
