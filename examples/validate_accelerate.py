"""Accelerate: validates the prepared model while the next epoch trains.

python examples/validate_accelerate.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from overlapped_validation import evaluate, images
from sample_images import data_folder, parser_of
from torchvision import transforms

from fusionloader import FusionLoader
from fusionloader.addons.integrations.accelerate import prepare
from fusionloader.addons.validation import OverlappedValidation


def main() -> None:
    parser = parser_of(__doc__)
    options = parser.parse_args()
    accelerator = Accelerator()
    dataset = images(data_folder(options), transforms.RandomResizedCrop(32))
    val_set = images(data_folder(options, "val"), transforms.Resize(32), transforms.CenterCrop(32))
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, len(dataset.classes))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = FusionLoader(dataset, 16, shuffle=True, num_workers=2)
    model, optimizer, loader = prepare(accelerator, model, optimizer, loader)
    val = FusionLoader(val_set, 16, num_workers=1)
    with OverlappedValidation(evaluate, val, device=accelerator.device) as validation:
        for epoch in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
                optimizer.step()
            # All ranks are here: what they found is added up, and the next one begins.
            for result in validation.finish():
                whole = result.all_reduce() if accelerator.num_processes > 1 else result
                accelerator.print(f"epoch {whole.epoch}: {whole.metrics}")
            validation.start(model, epoch)
    for result in validation.results():
        whole = result.all_reduce() if accelerator.num_processes > 1 else result
        accelerator.print(f"epoch {whole.epoch}: {whole.metrics}")


if __name__ == "__main__":
    main()
