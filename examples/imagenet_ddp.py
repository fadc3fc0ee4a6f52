r"""ImageNet with one process per device: the usual recipe, resumed in mid-epoch after a kill.

    torchrun --standalone --nproc-per-node 8 examples/imagenet_ddp.py --data /data/imagenet \
        --model resnet50 --epochs 90 --batch-size 256 --workers 8 --amp --checkpoint run.pt

The learning rate follows the batch of all ranks (linear scaling), with a warm-up and a cosine;
--amp computes in bfloat16; the weights are averaged (EMA). After a kill the same command continues
with the next batch; another number of ranks shares the rest of the epoch.
NCCL on CUDA devices, gloo on the CPU. Ranks of a machine share idle workers.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sample_images import data_folder, parser_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data.distributed import DistributedSampler
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader

RANK, RANKS, LOCAL_RANK = (int(os.environ[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, images=2000)
    parser.add_argument("--model", default="resnet18", help="any of torchvision's (resnet18)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="of a rank (64)")
    parser.add_argument("--workers", type=int, default=1, help="CPU workers of a rank (1)")
    parser.add_argument("--size", type=int, default=224, help="pixels of a side (224)")
    parser.add_argument("--lr", type=float, default=0.1, help="for 256 images a step (0.1)")
    parser.add_argument("--warm-up", type=float, default=0.2, help="epochs (0.2; 5 for ImageNet)")
    parser.add_argument("--amp", action="store_true", help="bfloat16 where it is safe")
    parser.add_argument("--ema", type=float, default=0.999, help="decay of the average (0.999)")
    parser.add_argument("--checkpoint", type=Path, help="resumed from if it is there, and written")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints (100)")
    return parser.parse_args()


def learning_rate(options: argparse.Namespace, epochs: float) -> float:
    """Returns the rate after so many epochs: linear scaling, linear warm-up, cosine to 0."""
    whole = options.lr * options.batch_size * RANKS / 256
    if epochs < options.warm_up:
        return float(whole * (0.01 + 0.99 * epochs / options.warm_up))
    left = (epochs - options.warm_up) / (options.epochs - options.warm_up)
    return float(whole * 0.5 * (1 + math.cos(math.pi * left)))


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
        self._dataset = ImageFolder(str(folder), transform)
        self.loader: FusionLoader[Any] = FusionLoader(
            self._dataset,
            options.batch_size,
            sampler=DistributedSampler(self._dataset, RANKS, RANK, seed=0),
            num_workers=options.workers,
            persistent_workers=options.workers > 0,
            drop_last=True,
            device=device if device.type == "cuda" else None,
            seed=0,
        )
        torch.manual_seed(0)
        model = models.get_model(options.model, num_classes=len(self._dataset.classes)).to(device)
        devices = [device.index] if device.type == "cuda" else None
        self._model = DistributedDataParallel(model, device_ids=devices)
        average = get_ema_multi_avg_fn(options.ema)
        self._average = AveragedModel(model, multi_avg_fn=average, use_buffers=True)
        self._optimizer = torch.optim.SGD(
            model.parameters(), lr=0.0, momentum=0.9, weight_decay=1e-4, nesterov=True
        )
        self.epoch = self.steps = 0
        self._seen = 0  # samples of the epoch, by all ranks

    def run(self) -> None:
        """Trains to the end."""
        while self.epoch < self._options.epochs:
            self.loader.set_epoch(self.epoch)
            started, before = time.perf_counter(), self._seen
            for images, targets in self.loader:
                loss = self._step(images, targets)
                self.steps += 1
                self._seen += len(targets) * RANKS
                if self.steps % self._options.every == 0:
                    self.save()
            rate = (self._seen - before) / (time.perf_counter() - started)
            if RANK == 0 and self._seen > before:
                print(f"epoch {self.epoch + 1}: loss {loss:.3f}, {rate:.0f} samples/s", flush=True)
            self.epoch, self._seen = self.epoch + 1, 0
        self.save()

    def _step(self, images: torch.Tensor, targets: torch.Tensor) -> float:
        epochs = self.epoch + self._seen / len(self._dataset)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self._options, epochs)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._options.amp):
            outputs = self._model(images)
            loss = nn.functional.cross_entropy(outputs, targets.to(self._device))
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._average.update_parameters(self._model.module)
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
                "average": self._average.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "loaders": loaders,
                "epoch": self.epoch,
                "seen": self._seen,
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
        self._average.load_state_dict(state["average"])
        self._optimizer.load_state_dict(state["optimizer"])
        # As many ranks as before go on with their own batches, others share what is left.
        self.loader.load_state_dict(state["loaders"], ranks="reshard")
        self.epoch, self._seen, self.steps = state["epoch"], state["seen"], state["steps"]
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
    if RANK == 0:
        data_folder(options)  # makes images, where there are none
    dist.barrier()
    training = Training(options, data_folder(options), device)
    training.resume()
    training.run()
    stats = training.loader.stats()
    training.loader.close()
    print(f"rank {RANK}: {stats.samples} samples after {training.steps} steps", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
