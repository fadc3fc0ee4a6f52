"""transformers' Trainer with FusionLoaders, on a Hugging Face dataset with an image column."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import Trainer, TrainingArguments

from fusionloader.integrations.transformers import FusionTrainerMixin


class FusionTrainer(FusionTrainerMixin, Trainer):
    fusion_options = {"seed": 0}


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3 * 32 * 32, 2)

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(pixels.flatten(1))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def to_tensors(rows: dict[str, Any]) -> dict[str, Any]:
    pixels = [torch.tensor(row, dtype=torch.float32) / 255 for row in rows["pixels"]]
    return {"pixels": pixels, "labels": rows["labels"]}


def main() -> None:
    images = np.random.default_rng(0).integers(0, 256, (64, 3, 32, 32), dtype=np.uint8)
    dataset = Dataset.from_dict({"pixels": images.tolist(), "labels": [i % 2 for i in range(64)]})
    dataset.set_transform(to_tensors)
    with TemporaryDirectory() as place:
        arguments = TrainingArguments(
            place,
            num_train_epochs=1,
            per_device_train_batch_size=8,
            dataloader_num_workers=2,
            remove_unused_columns=False,
            save_strategy="no",
            report_to=[],
        )
        FusionTrainer(Classifier(), arguments, train_dataset=dataset).train()


if __name__ == "__main__":
    main()
