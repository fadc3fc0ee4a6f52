"""Your own decoder for the GPU worker: a thread pool that simulates a decoder card.

Commands go into a queue, like that of a card, and its units finish them in any order.

    python examples/own_decoder.py
"""

from __future__ import annotations

import io
import queue
import threading
import time
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageOps
from sample_images import data_folder, parser_of
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import DecodeCommand, Decoded, FusionLoader, GpuWorker


class CardDecoder:
    """Decodes by ``units`` threads."""

    def __init__(self, units: int = 2) -> None:
        self.units = units  # what is pickled; all else comes with start()

    def start(self, device: int | None, capacity: int) -> None:
        if device is not None:
            raise RuntimeError('this card writes to host memory: GpuWorker(device="cpu")')
        self._commands: queue.SimpleQueue[DecodeCommand | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Decoded] = queue.SimpleQueue()
        for _ in range(self.units):
            threading.Thread(target=self._unit, daemon=True).start()

    def submit(self, commands: Sequence[DecodeCommand]) -> None:
        for command in commands:
            self._commands.put(command)

    def finished(self, seconds: float) -> Sequence[Decoded]:
        results = []
        try:
            results.append(self._results.get(timeout=seconds))
            while True:
                results.append(self._results.get_nowait())
        except queue.Empty:
            return results

    def close(self) -> None:
        for _ in range(self.units):
            self._commands.put(None)

    def _unit(self) -> None:
        while (command := self._commands.get()) is not None:
            try:
                pixels = decode(command)
            except OSError as error:
                self._results.put(Decoded(command.ticket, None, type(error).__name__))
                continue
            buffer = command.buffer()
            buffer.numpy()[:] = pixels
            self._results.put(Decoded(command.ticket, buffer))


def decode(command: DecodeCommand) -> np.ndarray:
    x, y, width, height = command.window
    with Image.open(io.BytesIO(command.encoded)) as file:
        image = file.convert("RGB").crop((x, y, x + width, y + height))
    if image.size != (command.width, command.height):
        filter = Image.Resampling[command.filter.upper()]
        image = image.resize((command.width, command.height), filter)
    image = ImageOps.mirror(image) if command.hflip else image
    return np.asarray(ImageOps.flip(image) if command.vflip else image)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="to train at most (60)")
    options = parser.parse_args()
    transform = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])
    dataset = ImageFolder(str(data_folder(options)), transform)
    card = GpuWorker(device="cpu", sharing="spatial", decoder=CardDecoder(units=2))
    loader = FusionLoader(
        dataset, 32, shuffle=True, num_workers=1, persistent_workers=True, gpu_worker=card
    )
    print(loader.explain())
    decoded, deadline = 0, time.monotonic() + options.seconds
    with loader:
        while not decoded and time.monotonic() < deadline:
            for _images, _targets in loader:
                time.sleep(0.01)  # training
            decoded = loader.stats().gpu_worker["samples"]
        print(f"{decoded} images were decoded by the card")
        print(f"refused: {loader.stats().gpu_worker['refused']}")


if __name__ == "__main__":
    main()
