"""timm's transforms and arguments, with a FusionLoader."""

from __future__ import annotations

import timm
import torch
from sample_images import image_folder
from timm.data import create_dataset

from fusionloader.integrations.timm import create_loader


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = create_loader(
        create_dataset("", str(image_folder(200))),
        input_size=(3, 64, 64),
        batch_size=16,
        is_training=True,
        auto_augment="rand-m9-mstd0.5-inc1",
        re_prob=0.25,
        num_workers=2,
        device=device,
    )
    print(loader.explain())
    model = timm.create_model("resnet18", num_classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), targets).backward()
        optimizer.step()
    loader.close()


if __name__ == "__main__":
    main()
