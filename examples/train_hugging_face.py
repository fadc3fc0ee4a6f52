"""A Hugging Face dataset with an image column, as it is: ``set_transform`` runs in the workers.

    python examples/train_hugging_face.py

With ``--stream`` the dataset is an iterable one, and from a checkpoint in mid-epoch every worker
continues in its own shards.
"""

from __future__ import annotations

from typing import Any

import torch
from datasets import ClassLabel, Dataset, Features, Image
from sample_images import data_folder, parser_of
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader

to_tensor = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])


def of_folder(images: ImageFolder) -> Dataset:
    columns = {
        "image": [path for path, _ in images.samples],
        "label": [target for _, target in images.samples],
    }
    features = Features({"image": Image(), "label": ClassLabel(names=images.classes)})
    return Dataset.from_dict(columns, features=features)


def transformed(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    pictures = [to_tensor(picture.convert("RGB")) for picture in rows["image"]]
    return {"image": pictures, "label": rows["label"]}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--stream", action="store_true", help="iterate instead of indexing")
    options = parser.parse_args()
    images = ImageFolder(str(data_folder(options)))
    dataset = of_folder(images)
    if options.stream:
        stream = dataset.to_iterable_dataset(num_shards=4).shuffle(seed=0)
        loader = FusionLoader(stream.map(transformed, batched=True), 16, num_workers=2)
    else:
        dataset.set_transform(transformed)
        loader = FusionLoader(dataset, 16, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, len(images.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        samples = 0
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples += len(batch["label"])
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, {samples} samples")


if __name__ == "__main__":
    main()
