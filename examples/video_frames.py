"""Frames of many video files: decoders stay open, and each worker keeps to files of its own.

python examples/video_frames.py
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import cv2
import numpy as np
import torch
from torch.utils.data import Dataset

from fusionloader import FusionLoader
from fusionloader.data.sources import OpenFiles

FRAMES, SIZE = 20, (96, 64)  # of a video; width and height


class Frames(Dataset[torch.Tensor]):
    """Single frames of video files, as tensors of 3 x height x width."""

    def __init__(self, videos: list[str]) -> None:
        self.videos = videos
        # With torchcodec: OpenFiles(VideoDecoder, most=32)
        self.captures: OpenFiles[str, cv2.VideoCapture] = OpenFiles(cv2.VideoCapture, most=32)

    def __len__(self) -> int:
        return len(self.videos) * FRAMES

    def sample_file(self, index: int) -> str:
        """Names the file of a sample: those of one file are made by one worker where they can."""
        return self.videos[index // FRAMES]

    def __getitem__(self, index: int) -> torch.Tensor:
        capture = self.captures[self.sample_file(index)]
        capture.set(cv2.CAP_PROP_POS_FRAMES, index % FRAMES)
        found, frame = capture.read()
        if not found:
            raise RuntimeError(f"{self.sample_file(index)} has no frame {index % FRAMES}")
        return torch.from_numpy(frame).permute(2, 0, 1)


def write_videos(folder: Path, count: int) -> list[str]:
    """Writes ``count`` videos of noise that moves to the right."""
    paths = [str(folder / f"{number}.mp4") for number in range(count)]
    for number, path in enumerate(paths):
        noise = np.random.default_rng(number).integers(0, 256, (SIZE[1], SIZE[0], 3), np.uint8)
        writer = cv2.VideoWriter(path, cv2.VideoWriter.fourcc(*"mp4v"), 25, SIZE)
        for frame in range(FRAMES):
            writer.write(np.roll(noise, 2 * frame, axis=1))
        writer.release()
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=240, help="frames to write (240)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        frames = Frames(write_videos(Path(folder), options.images // FRAMES))
        loader: FusionLoader[torch.Tensor] = FusionLoader(frames, 16, shuffle=True, num_workers=2)
        for epoch in range(2):
            brightness = [batch.float().mean().item() for batch in loader]
            print(f"epoch {epoch + 1}: mean {sum(brightness) / len(brightness):.1f}")
        stats = loader.stats()
        print(f"{stats.files_opened} files opened, {stats.files_reused} times one was open")
        print(loader.explain())


if __name__ == "__main__":
    main()
