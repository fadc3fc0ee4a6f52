"""Trains on an image folder with one process per device; checkpoints resume in mid-epoch.

    torchrun --standalone --nproc-per-node 2 examples/imagenet_ddp.py /data/imagenet/train

NCCL on CUDA devices, gloo on the CPU. Ranks of a machine share idle CPU workers; nothing
has to be configured for that. Without a folder the script makes small images first.
"""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sample_images import image_folder
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader

RANK, RANKS, LOCAL_RANK = (int(os.environ[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, nargs="?", help="of class folders")
    parser.add_argument("--model", default="resnet18", help="any of torchvision's (resnet18)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="of a rank (64)")
    parser.add_argument("--workers", type=int, default=1, help="CPU workers of a rank (1)")
    parser.add_argument("--size", type=int, default=224, help="pixels of a side (224)")
    parser.add_argument("--images", type=int, default=2000, help="to make without a folder")
    parser.add_argument("--checkpoint", type=Path, help="resumed from if it is there, and written")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints (100)")
    parser.add_argument("--steps", type=int, help="stop after so many steps, as if interrupted")
    return parser.parse_args()


class Training:
    """A rank's model, optimizer and loader, and where the training stands."""

    def __init__(self, options: argparse.Namespace, folder: Path, device: torch.device) -> None:
        self._options = options
        self._device = device
        transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(options.size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )
        dataset = ImageFolder(str(folder), transform)
        self.loader: FusionLoader[Any] = FusionLoader(
            dataset,
            options.batch_size,
            sampler=DistributedSampler(dataset, RANKS, RANK, seed=0),
            num_workers=options.workers,
            persistent_workers=options.workers > 0,
            drop_last=True,
            device=device if device.type == "cuda" else None,
            seed=0,
        )
        torch.manual_seed(0)
        model = models.get_model(options.model, num_classes=len(dataset.classes)).to(device)
        devices = [device.index] if device.type == "cuda" else None
        self._model = DistributedDataParallel(model, device_ids=devices)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.epoch = self.steps = 0

    def run(self) -> None:
        """Trains to the end, or for as many steps as were asked for."""
        while self.epoch < self._options.epochs:
            self.loader.set_epoch(self.epoch)
            started, seen = time.perf_counter(), 0
            for images, targets in self.loader:
                loss = self._step(images, targets)
                seen += len(targets)
                self.steps += 1
                if self.steps % self._options.every == 0:
                    self.save()
                if self.steps == self._options.steps:
                    self.save()
                    return
            rate = seen * RANKS / (time.perf_counter() - started)
            if RANK == 0 and seen:
                print(f"epoch {self.epoch + 1}: loss {loss:.3f}, {rate:.0f} samples/s", flush=True)
            self.epoch += 1
        self.save()

    def _step(self, images: torch.Tensor, targets: torch.Tensor) -> float:
        outputs = self._model(images)
        loss = nn.functional.cross_entropy(outputs, targets.to(self._device))
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())

    def save(self) -> None:
        """Writes a checkpoint; every rank's loader stands at a place of its own."""
        path = self._options.checkpoint
        if path is None:
            return
        loaders: list[Any] = [None] * RANKS
        dist.all_gather_object(loaders, self.loader.state_dict())
        if RANK == 0:
            state = {
                "model": self._model.module.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "loaders": loaders,
                "epoch": self.epoch,
                "steps": self.steps,
            }
            partial = path.with_suffix(".partial")
            torch.save(state, partial)
            partial.replace(path)  # never half a checkpoint

    def resume(self) -> None:
        """Goes on where the checkpoint was written."""
        path = self._options.checkpoint
        if path is None or not path.exists():
            return
        state = torch.load(path, map_location=self._device)
        self._model.module.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        # As many ranks as before go on with their own batches, others share what is left.
        self.loader.load_state_dict(state["loaders"], ranks="reshard")
        self.epoch, self.steps = state["epoch"], state["steps"]
        if RANK == 0:
            print(f"resumed in epoch {self.epoch + 1} after {self.steps} steps", flush=True)


def main() -> None:
    options = arguments()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", LOCAL_RANK)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(minutes=10))
    if options.folder is None:
        if RANK == 0:
            image_folder(options.images)
        dist.barrier()
        options.folder = image_folder(options.images)
    training = Training(options, options.folder, device)
    training.resume()
    training.run()
    stats = training.loader.stats()
    training.loader.close()
    print(f"rank {RANK}: {stats.samples} samples after {training.steps} steps", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
