"""Lightning's Trainer validates beside the next epoch."""

import csv

import pytest
import torch
from support.frameworks import Lazy
from test_lightning import model_class, trainer
from toy import Points

from fusionloader import FusionLoader, WorkerPool

lightning = Lazy("lightning")


def evaluate(model, batches):
    total, count = 0.0, 0
    for points, _ in batches:
        total += float(model.layer(points / 100).square().sum())
        count += len(points)
    return {"loss": (total, count)}


def callback(*arguments, **options):
    from fusionloader.addons.integrations.lightning import OverlappedValidationCallback

    return OverlappedValidationCallback(evaluate, *arguments, **options)


def test_each_epoch_is_validated_as_its_model_was(tmp_path):
    class Noting(model_class()):
        def on_train_epoch_end(self):
            with torch.no_grad():
                expected.append(evaluate(self, iter(torch.utils.data.DataLoader(Points(10), 4))))

    expected, heard = [], []
    with WorkerPool(1) as pool:
        train = FusionLoader(Points(), 4, shuffle=True, pool=pool)
        val = FusionLoader(Points(10), 4, pool=pool.background())
        validates = callback(val, on_result=heard.append)
        logger = lightning.pytorch.loggers.CSVLogger(tmp_path)
        trainer(tmp_path, 3, callbacks=[validates], logger=logger).fit(Noting(), train)
    assert [result.epoch for result in validates.results] == [0, 1, 2]
    assert heard == validates.results
    wanted = [total / count for total, count in (each["loss"] for each in expected)]
    found = [result.metrics["loss"] for result in validates.results]
    assert found == pytest.approx(wanted) and len(set(found)) == 3
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["val/loss"]]
    assert [(int(row["epoch"]), float(row["val/loss"])) for row in rows] == [
        (number, pytest.approx(loss)) for number, loss in enumerate(found)
    ]


def test_only_every_second_epoch_is_validated_if_so_wished(tmp_path):
    validates = callback(FusionLoader(Points(10), 4), every_n_epochs=2)
    loader = FusionLoader(Points(), 4)
    trainer(tmp_path, 4, callbacks=[validates]).fit(model_class()(), loader)
    assert [result.epoch for result in validates.results] == [1, 3]
    with pytest.raises(ValueError, match="every_n_epochs should be a positive int, not 0"):
        callback(loader, every_n_epochs=0)


def test_an_error_of_a_validation_ends_the_training(tmp_path):
    class Odd(Points):
        def __getitem__(self, index):
            raise OSError("no such point")

    validates = callback(FusionLoader(Odd(10), 4))
    with pytest.raises(OSError, match="no such point"):
        trainer(tmp_path, 3, callbacks=[validates]).fit(model_class()(), FusionLoader(Points(), 4))
    assert validates.results == []
