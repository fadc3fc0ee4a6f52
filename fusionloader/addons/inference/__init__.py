"""Preprocessing for inference: encoded images in, tensors out, by the loader's workers."""

from fusionloader.addons.inference.errors import BadImage, PreprocessorClosed, QueueFull
from fusionloader.addons.inference.preprocessor import Preprocessor
from fusionloader.addons.inference.stats import PreprocessorStats

__all__ = ["BadImage", "Preprocessor", "PreprocessorClosed", "PreprocessorStats", "QueueFull"]
