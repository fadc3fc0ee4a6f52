"""A trace of a training: where the time of workers and of the training process goes.

    python examples/trace_training.py

Open the files in https://ui.perfetto.dev. ``both.json.gz`` includes the operations of torch.
"""

from __future__ import annotations

from pathlib import Path

import torch
from sample_images import data_folder, parser_of
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.observe.trace import merge_traces, read_timeline


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--folder", type=Path, default=Path(), help="for the traces (here)")
    options = parser.parse_args()
    transform = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])
    dataset = ImageFolder(str(data_folder(options)), transform)
    loader = FusionLoader(dataset, 10, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, len(dataset.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> None:
        for images, targets in loader:
            loss = nn.functional.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    ours, theirs, both = (options.folder / f"{name}.json.gz" for name in ("run", "torch", "both"))
    with loader:
        train()  # the first epoch starts workers, and is not like the others
        with profile(activities=[ProfilerActivity.CPU]) as profiler, loader.trace(ours):
            train()
    profiler.export_chrome_trace(str(theirs))
    merge_traces([ours, theirs], both)

    timeline = read_timeline(ours)
    waited = sum(step.wait_ns for step in timeline.steps)
    total = timeline.steps[-1].delivered_ns - timeline.steps[0].asked_ns
    print(f"{len(timeline.steps)} steps, of which training waited {waited / total:.0%}")
    for part in ("read", "decode", "augment", "python", "write"):
        spent = sum(span.parts[part] for span in timeline.spans)
        print(f"{part:>8}: {spent / 1e6:8.1f} ms of the workers' time")
    print(f"open {both} in https://ui.perfetto.dev")


if __name__ == "__main__":
    main()
