"""Epochs whose images are cropped without a resize, so that good decoders give the same bits."""

BATCHES = [list(range(start, start + 20)) for start in range(0, 40, 20)] * 3
