"""Lightning's Trainer with a FusionLoader: nothing but the loader's name changes.

python examples/train_lightning.py
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
from sample_images import data_folder, parser_of
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader


class Classifier(lightning.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, classes))

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        images, targets = batch
        return torch.nn.functional.cross_entropy(self.layers(images), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    options = parser_of(__doc__).parse_args()
    transform = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
    dataset = ImageFolder(data_folder(options), transform)
    loader = FusionLoader(dataset, 16, shuffle=True, num_workers=2, persistent_workers=True)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="auto", logger=False, enable_checkpointing=False
    )
    trainer.fit(Classifier(len(dataset.classes)), loader)
    print(f"{loader.stats().batches} batches")


if __name__ == "__main__":
    main()
