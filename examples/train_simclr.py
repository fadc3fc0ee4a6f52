"""SimCLR: two views of each image, and a model that finds which two are of one image.

    python examples/train_simclr.py --data /data/imagenet

The views are two samples of a compiled plan, not one sample of a Python callable that calls its
transform twice: the sampler gives each index twice, and each time is drawn anew. Reading, decoding
and all augmentations run natively, as explain() shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from sample_images import data_folder, parser_of
from torch import nn
from torch.utils.data import RandomSampler, Sampler
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader


class Twice(Sampler[int]):
    """Gives each index of a sampler twice, one after the other."""

    def __init__(self, sampler: Sampler[int]) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        return (index for index in self.sampler for _ in range(2))

    def __len__(self) -> int:
        return 2 * len(self.sampler)  # type: ignore[arg-type]


def augmentation(size: int) -> transforms.Compose:
    """Returns the augmentation of SimCLR's section 3 and appendix A."""
    jitter = transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)
    blur = transforms.GaussianBlur(size // 10 | 1, sigma=(0.1, 2.0))
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([jitter], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.RandomApply([blur], p=0.5),
            transforms.ToTensor(),
        ]
    )


def nt_xent(features: torch.Tensor, temperature: float = 0.5) -> torch.Tensor:
    """Returns SimCLR's loss of 2N features, of which two neighbours are of one image each."""
    features = nn.functional.normalize(features, dim=1)
    similarity = features @ features.T / temperature
    similarity.fill_diagonal_(-torch.inf)
    other = torch.arange(len(features), device=features.device) ^ 1
    return nn.functional.cross_entropy(similarity, other)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="resnet18", help="any of torchvision's (resnet18)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="images (16)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=64, help="pixels of a side (64)")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    dataset = ImageFolder(data_folder(options), augmentation(options.size))
    loader: FusionLoader[Any] = FusionLoader(
        dataset,
        2 * options.batch_size,
        sampler=Twice(RandomSampler(dataset)),
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        drop_last=True,
        device=device if device.type == "cuda" else None,
    )
    print(loader.explain())

    model = models.get_model(options.model, num_classes=128).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(options.epochs):
        loader.set_epoch(epoch)
        for views, _ in loader:
            loss = nt_xent(model(views))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    loader.close()


if __name__ == "__main__":
    main()
