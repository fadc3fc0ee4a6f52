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
        fusion_options = {"seed": 9, "on_error": "skip"}

    return Trainer


class Damaged(Labelled):
    def __getitem__(self, index):
        if index == 21:
            raise OSError("cannot be read")
        return super().__getitem__(index)


def settings_for(folder, **options):
    return transformers.TrainingArguments(
        str(folder),
        num_train_epochs=1,
        per_device_train_batch_size=4,
        dataloader_num_workers=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **options,
    )


def test_a_trainer_trains_and_evaluates_with_fusionloaders(tmp_path):
    settings, model = settings_for(tmp_path, save_strategy="no"), Model()
    trainer = trainer_class()(model, settings, train_dataset=Labelled(), eval_dataset=Labelled(9))
    loader = trainer.get_train_dataloader()
    assert isinstance(loader.base_dataloader, FusionLoader)
    assert loader.base_dataloader.seed == 9
    trainer.train()
    assert sorted(model.seen) == list(range(22))
    assert trainer.evaluate()["eval_loss"] >= 0


def test_a_trainer_goes_on_from_a_checkpoint_with_a_fusionloader(tmp_path):
    settings = settings_for(tmp_path, save_steps=3, data_seed=1)
    first, second = Model(), Model()
    trainer_class()(first, settings, train_dataset=Damaged()).train()
    again = trainer_class()(second, settings, train_dataset=Damaged())
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert sorted(first.seen) == list(range(21))
    assert second.seen == first.seen[-len(second.seen) :]
    assert 8 <= len(second.seen) <= 10  # three of six mini-batches
