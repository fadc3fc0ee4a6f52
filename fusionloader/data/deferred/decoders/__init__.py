"""Decoders of other libraries, which give arrays and tensors instead of Pillow's images."""
