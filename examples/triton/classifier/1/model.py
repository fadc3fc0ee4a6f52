"""Triton's Python backend: encoded images in, scores out.

    tritonserver --model-repository examples/triton

Triton passes the requests of a dynamic batch together. Their images have different sizes in bytes
(`allow_ragged_batch`), are prepared at the same time, and are one batch of the model.
"""

from __future__ import annotations

import json
from concurrent.futures import Future
from typing import Any

import torch
import triton_python_backend_utils as triton
from served_model import Classifier, evaluation_transform
from torch import Tensor

from fusionloader.addons.inference import BadImage, Preprocessor


class TritonPythonModel:
    """What Triton calls in the backend's process; each instance has its own workers."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        workers = int(parameters["workers"]["string_value"])
        self.prepare = Preprocessor(evaluation_transform(), num_workers=workers)
        self.model = Classifier()

    def execute(self, requests: list[Any]) -> list[Any]:
        futures = [self.prepare.submit(encoded(request)) for request in requests]
        found = [prepared(future) for future in futures]
        good = [each for each in found if isinstance(each, Tensor)]
        scores = iter(self.model(torch.stack(good)) if good else ())
        return [
            response(next(scores)) if isinstance(each, Tensor) else failure(each) for each in found
        ]

    def finalize(self) -> None:
        self.prepare.close()


def encoded(request: Any) -> Any:
    """Returns the bytes of a request's image; its tensor is [1, bytes]."""
    tensor = triton.get_input_tensor_by_name(request, "image")
    return torch.from_dlpack(tensor.to_dlpack()).flatten().numpy()


def prepared(future: Future[Tensor]) -> Tensor | BadImage:
    try:
        return future.result()
    except BadImage as error:
        return error


def response(scores: Tensor) -> Any:
    output = triton.Tensor.from_dlpack("scores", torch.to_dlpack(scores[None].contiguous()))
    return triton.InferenceResponse([output])


def failure(error: BadImage) -> Any:
    """Answers one request with an error: status 400 over HTTP."""
    return triton.InferenceResponse(
        [], error=triton.TritonError(str(error), triton.TritonError.INVALID_ARG)
    )
