"""Types of the native extension; private. See csrc/bindings."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import Buffer

# --- plan ---------------------------------------------------------------------------------------

def simd_level() -> str: ...
def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> list[int]: ...

class Executor:
    """Runs a plan on one sample at a time; statuses are 0 (done) and 1 (for Pillow)."""

    def __init__(
        self,
        stages: Sequence[tuple[Any, ...]],
        convert: tuple[str, str, bytes] | None,
        height: int,
        width: int,
        fast_decode: bool,
        vertical_first_allowed: bool,
        simd: str | None = None,
    ) -> None: ...
    @property
    def result_bytes(self) -> int: ...
    @property
    def conversion(self) -> str: ...
    @property
    def simd_level(self) -> str: ...
    def draw(
        self, seed: int, epoch: int, index: int, occurrence: int, width: int, height: int
    ) -> list[tuple[Any, ...]]: ...
    def run(
        self, encoded: Buffer, seed: int, epoch: int, index: int, occurrence: int, out: Buffer
    ) -> int: ...
    def run_with(
        self, encoded: Buffer, parameters: Sequence[tuple[Any, ...]], out: Buffer
    ) -> int: ...
    def run_pixels(
        self, rgb: Buffer, seed: int, epoch: int, index: int, occurrence: int, out: Buffer
    ) -> None: ...
    def run_pixels_with(
        self, rgb: Buffer, parameters: Sequence[tuple[Any, ...]], out: Buffer
    ) -> None: ...
    def pixels(
        self, encoded: Buffer, seed: int, epoch: int, index: int, occurrence: int
    ) -> tuple[bytes, tuple[int, int]] | None: ...
    def pixels_of_pixels(
        self, rgb: Buffer, seed: int, epoch: int, index: int, occurrence: int
    ) -> tuple[bytes, tuple[int, int]]: ...
    def image_size(self, encoded: Buffer) -> tuple[int, int] | None: ...
