"""Preprocessing for inference: encoded images in, tensors out, by the loader's workers and plan."""

from fusionloader.inference.errors import BadImage, PreprocessorClosed, QueueFull
from fusionloader.inference.preprocessor import Preprocessor
from fusionloader.inference.stats import PreprocessorStats

__all__ = ["BadImage", "Preprocessor", "PreprocessorClosed", "PreprocessorStats", "QueueFull"]
