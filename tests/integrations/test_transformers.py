"""The mixin for transformers' Trainer."""

import functools

import pytest
import torch
from support.frameworks import Lazy
from toy import Points

from fusionloader import FusionLoader

transformers = Lazy("transformers")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.seen = []

    def forward(self, points, labels=None):
        self.seen += labels.tolist()
        loss = self.layer(points / 100).square().mean()
        return {"loss": loss, "logits": points}


class Labelled(Points):
    def __getitem__(self, index):
        point, number = super().__getitem__(index)
        return {"points": point, "labels": number}


@functools.cache
def trainer_class():
    pytest.importorskip("accelerate", reason="pip install transformers accelerate")
    from fusionloader.addons.integrations.transformers import FusionTrainerMixin

    class Trainer(FusionTrainerMixin, transformers.Trainer):
        fusion_options = {"seed": 9}

    return Trainer


def test_a_trainer_trains_and_evaluates_with_fusionloaders(tmp_path):
    settings = transformers.TrainingArguments(
        str(tmp_path),
        num_train_epochs=1,
        per_device_train_batch_size=4,
        dataloader_num_workers=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
    )
    model = Model()
    trainer = trainer_class()(model, settings, train_dataset=Labelled(), eval_dataset=Labelled(9))
    loader = trainer.get_train_dataloader()
    assert isinstance(loader.base_dataloader, FusionLoader)
    assert loader.base_dataloader.seed == 9
    trainer.train()
    assert sorted(model.seen) == list(range(22))
    assert trainer.evaluate()["eval_loss"] >= 0
