"""timm's transforms and arguments, with a FusionLoader.

python examples/train_timm.py
"""

from __future__ import annotations

import timm
import torch
from sample_images import data_folder, parser_of
from timm.data import create_dataset

from fusionloader.addons.integrations.timm import create_loader


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="resnet18", help="any of timm's (resnet18)")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = create_dataset("", str(data_folder(options)))
    loader = create_loader(
        dataset,
        input_size=(3, 64, 64),
        batch_size=16,
        is_training=True,
        auto_augment="rand-m9-mstd0.5-inc1",
        re_prob=0.25,
        num_workers=2,
        device=device,
    )
    print(loader.explain())
    classes = len(dataset.reader.class_to_idx)
    model = timm.create_model(options.model, num_classes=classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), targets)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.2f} after {len(loader)} batches")
    loader.close()


if __name__ == "__main__":
    main()
