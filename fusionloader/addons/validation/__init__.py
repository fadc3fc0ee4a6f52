"""Validation beside training, of a copy of the model, in parts that run concurrently."""

from fusionloader.addons.validation.overlapped import OverlappedValidation
from fusionloader.addons.validation.results import ValidationResult, ValidationStats
from fusionloader.addons.validation.serial import validate
from fusionloader.addons.validation.sums import Total

__all__ = ["OverlappedValidation", "Total", "ValidationResult", "ValidationStats", "validate"]
