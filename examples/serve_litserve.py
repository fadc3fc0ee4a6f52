"""LitServe: the images of a batch are prepared at the same time.

    python examples/serve_litserve.py --port 8000
    curl -F content=@photo.jpg http://127.0.0.1:8000/predict

`decode_request` only submits an image, so that those of a batch are prepared at the same time. An
exception there or in `predict` fails the whole batch in LitServe. The error of a bad image is
therefore passed on as a result, and answered at the end.
"""

import argparse
import signal
from concurrent.futures import Future

import torch
from fastapi import Request, Response
from fastapi.responses import JSONResponse
from litserve import LitAPI, LitServer
from served_model import Classifier, answer, evaluation_transform
from torch import Tensor

from fusionloader.addons.inference import BadImage, Preprocessor


# LitServe looks at annotations as they are: none may be a string here.
class ClassifierAPI(LitAPI):
    """Answers an image in the form field `content` with its label and scores."""

    def setup(self, device: str) -> None:
        self.prepare = Preprocessor(evaluation_transform(), num_workers=2)
        self.model = Classifier()

    def decode_request(self, request: Request) -> Future[Tensor]:
        # LitServe hands over the form in place of the request that it came in.
        return self.prepare.submit(request["content"].file.read())

    def batch(self, inputs: list[Future[Tensor]]) -> list[Tensor | BadImage]:
        return [prepared(each) for each in inputs]

    def predict(self, x: list[Tensor | BadImage]) -> list[Tensor | BadImage]:
        good = [each for each in x if not isinstance(each, BadImage)]
        scores = iter(self.model(torch.stack(good)) if good else ())
        return [each if isinstance(each, BadImage) else next(scores) for each in x]

    def unbatch(self, output: list[Tensor | BadImage]) -> list[Tensor | BadImage]:
        return output

    def encode_response(self, output: Tensor | BadImage) -> Response:
        if isinstance(output, BadImage):
            return JSONResponse({"detail": str(output)}, status_code=422)
        return JSONResponse(answer(output))


def prepared(future: Future[Tensor]) -> Tensor | BadImage:
    try:
        return future.result()
    except BadImage as error:
        return error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, default=8000, help="(8000)")
    options = parser.parse_args()
    # LitServe ends its processes at a KeyboardInterrupt; SIGTERM would end this one alone.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    api = ClassifierAPI(max_batch_size=32, batch_timeout=0.002)
    server = LitServer(api, accelerator="cpu", devices=1)
    server.run(host="127.0.0.1", port=options.port, generate_client_file=False)


if __name__ == "__main__":
    main()
