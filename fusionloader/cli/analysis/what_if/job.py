"""Predicts epochs of a job: its ranks go step by step together, at the pace of the slowest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fusionloader.cli.analysis.findings import LoaderFindings, LoaderShape
from fusionloader.cli.analysis.service import SampleService
from fusionloader.cli.analysis.what_if.model import Model, Prediction
from fusionloader.cli.analysis.what_if.questions import Question

_MOST_MODELS = 8  # ranks that are simulated, the slowest


class JobModel:
    """The ranks of a job, as far as their speed goes; a training of one process is one of one rank.

    Attributes:
        shape: shape of the slowest rank's loader.
        service: what its samples cost.
        training_rate: samples a second of all ranks on data in memory.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        """There is a model of each rank."""
        self._batch_size = sum(model.shape.batch_size for model in models)
        pace = {model: _step_seconds(model, model.predict(Question())) for model in models}
        self._models = sorted(models, key=lambda model: -pace[model])[:_MOST_MODELS]
        slowest = self._models[0]
        self.shape: LoaderShape = slowest.shape
        self.service: SampleService = slowest.service
        self.training_rate = self._batch_size / max(model.step_seconds for model in models)

    @classmethod
    def of(cls, findings: LoaderFindings) -> JobModel | None:
        """Returns the model of a loader; ``None`` where too little was measured."""
        return _of_all([Model.of(each) for each in findings.ranks or (findings,)])

    def with_index(self) -> JobModel | None:
        """Returns the model with a JPEG index; ``None`` where it was not measured."""
        return self._changed(Model.with_index)

    def fused(self) -> JobModel | None:
        """Returns the model with ``FusionLoader`` for torch's; ``None`` where it is one."""
        return self._changed(Model.fused)

    def _changed(self, change: Callable[[Model], Model | None]) -> JobModel | None:
        made = _of_all([change(model) for model in self._models])
        if made is not None:
            made._batch_size = self._batch_size
        return made

    def why_not(self, question: Question) -> str:
        """Returns why a question cannot be answered from what was measured; empty if it can."""
        return next((why for model in self._models if (why := model.why_not(question))), "")

    def predict(self, question: Question) -> Prediction:
        """Simulates an epoch of each rank, and returns that of the slowest with the job's rate.

        Raises:
            ValueError: what is asked was not measured.
        """
        predicted = [(model, model.predict(question)) for model in self._models]
        model, slowest = max(predicted, key=lambda pair: _step_seconds(*pair))
        return replace(slowest, rate=slowest.rate * self._batch_size / model.shape.batch_size)


def _of_all(models: Sequence[Model | None]) -> JobModel | None:
    known = [model for model in models if model is not None]
    return JobModel(known) if len(known) == len(models) else None


def _step_seconds(model: Model, prediction: Prediction) -> float:
    return model.shape.batch_size / prediction.rate
