"""Serves a small model: clients in an event loop submit JPEGs, the model gets dynamic batches.

python examples/inference.py
"""

from __future__ import annotations

import asyncio

import torch
from sample_images import data_folder, parser_of
from torch import nn
from torchvision import transforms

from fusionloader.addons.inference import Preprocessor

SIZE = 64


def model() -> nn.Module:
    torch.manual_seed(0)
    pooled = nn.Sequential(nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
    return nn.Sequential(pooled, nn.Flatten(), nn.Linear(256, 10)).eval()


async def client(prepare: Preprocessor, images: list[bytes]) -> list[int]:
    """Asks for the label of one image after the other."""
    return [int(await prepare.asubmit(image)) for image in images]


async def serve(prepare: Preprocessor, images: list[bytes], clients: int) -> list[int]:
    shares = [images[number::clients] for number in range(clients)]
    answers = await asyncio.gather(*(client(prepare, share) for share in shares))
    return [label for answer in answers for label in answer]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=5)
    options = parser.parse_args()
    files = sorted(data_folder(options).rglob("*.jpg"))
    images = [file.read_bytes() for file in files]
    transform = transforms.Compose(
        [transforms.Resize(SIZE), transforms.CenterCrop(SIZE), transforms.ToTensor()]
    )
    net = model()

    @torch.inference_mode()
    def infer(batch: torch.Tensor) -> torch.Tensor:
        return net(batch).argmax(1)

    with Preprocessor(transform, num_workers=options.workers, infer=infer) as prepare:
        print(prepare.explain())
        labels = asyncio.run(serve(prepare, images, options.clients))
        stats = prepare.stats()
    assert stats.latency_p50 is not None and stats.latency_p99 is not None
    print(f"{len(labels)} labels in {stats.batches} batches of {stats.mean_batch_size:.1f} images")
    print(f"latency: {stats.latency_p50 * 1e3:.1f} ms, p99 {stats.latency_p99 * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
