"""Lightning's Trainer with FusionLoader: unchanged user code, one process and two."""

import functools
from pathlib import Path

import pytest
import torch
from support import warm_start
from support.frameworks import Lazy
from support.torchrun import port
from toy import Points

from fusionloader import FusionLoader, WorkerPool

lightning = Lazy("lightning")
ROOT = Path(__file__).parents[2]


@functools.cache
def model_class():
    class Model(lightning.LightningModule):
        """Notes which points it saw, by epoch."""

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.seen = {}

        def training_step(self, batch, number):
            points, numbers = batch
            self.seen.setdefault(self.current_epoch, []).extend(numbers.tolist())
            return self.layer(points / 100).square().mean()

        def predict_step(self, batch, number):
            return batch[1].tolist()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    return Model


def trainer(folder, epochs=2, **others):
    arguments = {"accelerator": "cpu", "devices": 1, "logger": False, "max_epochs": epochs}
    arguments |= {"enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(default_root_dir=str(folder), **arguments | others)


def test_a_trainer_trains_with_a_fusionloader(tmp_path):
    model = model_class()()
    loader = FusionLoader(Points(), 4, shuffle=True, num_workers=2, persistent_workers=True)
    trainer(tmp_path).fit(model, loader)
    assert sorted(model.seen[0]) == sorted(model.seen[1]) == list(range(22))
    assert model.seen[0] != model.seen[1]
    assert loader.stats().batches >= 12
    loader.close()


def test_prediction_keeps_every_argument_of_the_loader(tmp_path):
    loader = FusionLoader(Points(), 4, num_workers=2, seed=7, on_error="skip", tiny_batch_size=2)
    running = trainer(tmp_path)
    found = running.predict(model_class()(), loader)
    assert [number for batch in found for number in batch] == list(range(22))
    rebuilt = running.predict_dataloaders
    assert type(rebuilt) is FusionLoader and rebuilt is not loader
    assert (rebuilt.seed, rebuilt.on_error, rebuilt.tiny_batch_size) == (7, "skip", 2)


def test_a_trainer_validates_in_mid_epoch_with_the_workers_that_train(tmp_path):
    class Validated(model_class()):
        def validation_step(self, batch, number):
            self.seen.setdefault("validation", []).extend(batch[1].tolist())

    model = Validated()
    with WorkerPool(2) as pool:
        train = FusionLoader(Points(), 4, shuffle=True, pool=pool)
        val = FusionLoader(Points(10), 4, pool=pool)
        running = trainer(tmp_path, num_sanity_val_steps=0, val_check_interval=3)
        running.fit(model, train, val)
        found = [number for batch in running.predict(model_class()(), val) for number in batch]
    assert found == list(range(10))
    assert running.predict_dataloaders.pool is pool  # rebuilt, with the same one
    assert sorted(model.seen[0]) == sorted(model.seen[1]) == list(range(22))
    assert model.seen["validation"] == list(range(10)) * 4


def test_a_checkpoint_in_mid_epoch_is_resumed_at_the_next_batch(tmp_path):
    def loader():
        return FusionLoader(Points(), 4, shuffle=True, num_workers=2, seed=1)

    keeping = lightning.pytorch.callbacks.ModelCheckpoint(
        tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1
    )
    first = model_class()()
    trainer(tmp_path, 1, callbacks=[keeping]).fit(first, loader())
    second = model_class()()
    trainer(tmp_path, 2).fit(second, loader(), ckpt_path=tmp_path / "step=2.ckpt")
    assert second.seen[0] == first.seen[0][8:]
    assert sorted(second.seen[1]) == list(range(22))


RANK = """
import sys, torch
from test_lightning import model_class, trainer
from toy import Points
from fusionloader import FusionLoader
if __name__ == "__main__":
    model = model_class()()
    loader = FusionLoader(Points(), 4, shuffle=True, num_workers=1, seed=4)
    running = trainer(sys.argv[1], devices=2, strategy="ddp")
    running.fit(model, loader)
    used = running.train_dataloader
    assert type(used) is FusionLoader and used.seed == 4
    assert type(used.sampler).__name__ == "DistributedSampler"
    with open(f"{sys.argv[1]}/rank{running.global_rank}", "w") as file:
        file.write(repr(model.seen))
"""


@pytest.mark.matrix
def test_two_processes_share_every_epoch(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{Path(__file__).parent}"}
    environment |= {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "MASTER_PORT": str(port())}
    done = warm_start.completed(script, tmp_path, env=environment | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    ranks = [eval((tmp_path / f"rank{rank}").read_text()) for rank in (0, 1)]
    for epoch in (0, 1):
        assert sorted(ranks[0][epoch] + ranks[1][epoch]) == list(range(22))
    assert ranks[0][0] != ranks[0][1]
