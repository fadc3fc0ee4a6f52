"""Validation beside training: of a copy of the model, in parts that run concurrently."""

from fusionloader.validation.overlapped import OverlappedValidation
from fusionloader.validation.results import ValidationResult, ValidationStats
from fusionloader.validation.serial import validate
from fusionloader.validation.sums import Total

__all__ = ["OverlappedValidation", "Total", "ValidationResult", "ValidationStats", "validate"]
