"""DINO: a student sees small crops of images, a teacher (its average) large ones, and both agree.

    python examples/train_dino.py --data /data/imagenet

Crops of two sizes are two plans: one loader makes the two large crops of each image, another the
small ones, in the same order and with the workers of one pool. The sampler repeats each index, and
every repetition is drawn anew. Everything runs natively, as explain() shows, and no more of a JPEG
is decoded than each crop needs. (A callable that returns a list of crops works as well: it is
Python code, whose images are decoded natively.)
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from sample_images import data_folder, parser_of
from torch import nn
from torch.utils.data import Sampler
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, WorkerPool


class Repeated(Sampler[int]):
    """Gives each index some times in a row, in an order that is drawn from the epoch's number."""

    def __init__(self, length: int, times: int) -> None:
        self.length, self.times = length, times
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        return (index for index in order for _ in range(self.times))

    def __len__(self) -> int:
        return self.length * self.times


def crops(size: int, scale: tuple[float, float], blur: float, solarize: float) -> Any:
    """Returns DINO's augmentation for crops of one size."""
    jitter = transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size, scale=scale, interpolation=3),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([jitter], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.RandomApply([transforms.GaussianBlur(9, (0.1, 2.0))], p=blur),
            transforms.RandomSolarize(128, p=solarize),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )


def network(model: str, outputs: int) -> nn.Module:
    backbone = models.get_model(model, num_classes=256)
    return nn.Sequential(backbone, nn.GELU(), nn.Linear(256, outputs, bias=False))


def dino_loss(student: torch.Tensor, teacher: torch.Tensor, center: torch.Tensor) -> torch.Tensor:
    """Returns the cross entropy of all pairs of different crops (S x N x K, T x N x K)."""
    expected = ((teacher - center) / 0.04).softmax(-1).detach()
    found = (student / 0.1).log_softmax(-1)
    pairs = [(t, s) for t in range(len(expected)) for s in range(len(found)) if s != t]
    return torch.stack([-(expected[t] * found[s]).sum(-1).mean() for t, s in pairs]).mean()


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="resnet18", help="any of torchvision's (resnet18)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="images (16)")
    parser.add_argument("--small", type=int, default=4, help="small crops of an image (4)")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder, batch = data_folder(options), options.batch_size

    def loader_of(pool: WorkerPool, times: int, seed: int, transform: Any) -> FusionLoader[Any]:
        dataset = ImageFolder(folder, transform)
        return FusionLoader(
            dataset,
            times * batch,
            sampler=Repeated(len(dataset), times),
            pool=pool,
            seed=seed,
            drop_last=True,
            device=device if device.type == "cuda" else None,
        )

    student = network(options.model, 1024).to(device)
    teacher = copy.deepcopy(student).requires_grad_(False)
    center = torch.zeros(1024, device=device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=5e-4)
    with WorkerPool(options.workers) as pool:
        large = loader_of(pool, 2, 0, crops(96, (0.4, 1.0), blur=0.5, solarize=0.1))
        small = loader_of(pool, options.small, 1, crops(48, (0.05, 0.4), blur=0.5, solarize=0.0))
        print(large.explain(), small.explain(), sep="\n\n")
        for epoch in range(options.epochs):
            large.set_epoch(epoch)
            small.set_epoch(epoch)
            for (two, targets), (others, same) in zip(large, small, strict=True):
                assert torch.equal(targets[::2], same[:: options.small])  # of the same images
                seen = [student(each).unflatten(0, (batch, -1)) for each in (two, others)]
                with torch.no_grad():
                    known = teacher(two).unflatten(0, (batch, -1)).transpose(0, 1)
                loss = dino_loss(torch.cat(seen, 1).transpose(0, 1), known, center)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                center = 0.9 * center + 0.1 * known.mean((0, 1))
                with torch.no_grad():
                    for mine, its in zip(teacher.parameters(), student.parameters(), strict=True):
                        mine.lerp_(its, 1 - 0.996)
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
        large.close()
        small.close()


if __name__ == "__main__":
    main()
