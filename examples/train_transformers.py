"""transformers' Trainer with FusionLoaders: a small vision transformer on a dataset with images.

    python examples/train_transformers.py

``set_transform`` opens its images with Pillow, in the workers, and they are decoded natively.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

from datasets import ClassLabel, Dataset, Features, Image
from sample_images import data_folder, parser_of
from torchvision import transforms
from torchvision.datasets import ImageFolder
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from fusionloader.addons.integrations.transformers import FusionTrainerMixin

SIZE = 64
to_tensor = transforms.Compose([transforms.RandomResizedCrop(SIZE), transforms.ToTensor()])


class FusionTrainer(FusionTrainerMixin, Trainer):
    fusion_options = {"seed": 0}


def of_folder(images: ImageFolder) -> Dataset:
    columns = {
        "image": [path for path, _ in images.samples],
        "labels": [target for _, target in images.samples],
    }
    features = Features({"image": Image(), "labels": ClassLabel(names=images.classes)})
    return Dataset.from_dict(columns, features=features)


def transformed(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    pixels = [to_tensor(picture.convert("RGB")) for picture in rows["image"]]
    return {"pixel_values": pixels, "labels": rows["labels"]}


def main() -> None:
    images = ImageFolder(data_folder(parser_of(__doc__).parse_args()))
    dataset = of_folder(images).with_transform(transformed)
    model = ViTForImageClassification(
        ViTConfig(
            image_size=SIZE,
            patch_size=16,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_labels=len(images.classes),
        )
    )
    with TemporaryDirectory() as place:
        arguments = TrainingArguments(
            place,
            num_train_epochs=2,
            per_device_train_batch_size=16,
            dataloader_num_workers=2,
            dataloader_persistent_workers=True,
            remove_unused_columns=False,
            save_strategy="no",
            report_to=[],
        )
        trainer = FusionTrainer(model, arguments, train_dataset=dataset)
        result = trainer.train()
    print(f"{result.global_step} steps, loss {result.training_loss:.2f}")


if __name__ == "__main__":
    main()
