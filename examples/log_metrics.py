"""Logs metrics of the loader beside the loss: as JSON lines, to TensorBoard, or to Prometheus.

python examples/log_metrics.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import torch
from sample_images import data_folder, parser_of
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader

Log = Callable[[Mapping[str, float], int], None]


def to_json() -> Log:
    def log(scalars: Mapping[str, float], step: int) -> None:
        print(json.dumps({"step": step, **scalars}))

    return log


def to_tensorboard(folder: str) -> Log:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)

    def log(scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tensorboard", metavar="FOLDER", help="write there, instead of JSON")
    parser.add_argument("--prometheus", type=int, metavar="PORT", help="serve counters there")
    options = parser.parse_args()
    steps = [transforms.RandomResizedCrop(32), transforms.ToTensor()]
    photos = ImageFolder(data_folder(options), transforms.Compose(steps))
    loader: FusionLoader[list[torch.Tensor]] = FusionLoader(photos, 10, shuffle=True, num_workers=2)
    if options.prometheus is not None:
        from fusionloader.addons.integrations import prometheus

        exporter = prometheus.export(loader, port=options.prometheus, address="127.0.0.1")
        print(f"http://127.0.0.1:{exporter.port}/metrics")
    log = to_tensorboard(options.tensorboard) if options.tensorboard else to_json()
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, len(photos.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    for _ in range(2):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 4 == 0:  # with W&B: run.log({"loss": loss, **loader.stats().scalars()})
                log({"loss": loss.item(), **loader.stats().scalars()}, step)
    print(repr(loader))


if __name__ == "__main__":
    main()
