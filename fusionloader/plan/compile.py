from __future__ import annotations
from dataclasses import dataclass
from typing import Any
@dataclass
class Compiled:
    plan: Any = None
    def explain(self): return "not compiled"
def compile_dataset(dataset, decode="exact"): return Compiled()
