"""Ray Serve: each replica of the deployment has its own `Preprocessor`.

    python examples/serve_ray.py --port 8000
    curl --data-binary @photo.jpg http://127.0.0.1:8000/

A replica requests a CPU from Ray for each of its workers, which are separate processes.
"""

from __future__ import annotations

import argparse
import signal
from typing import Any

import ray
from fastapi import Request
from fastapi.responses import JSONResponse
from ray import serve
from served_model import Classifier, answer, evaluation_transform

from fusionloader.addons.inference import BadImage, Preprocessor, QueueFull


@serve.deployment
class Served:
    """Answers an image in the body of a request with its label and scores."""

    def __init__(self, workers: int) -> None:
        self.prepare = Preprocessor(
            evaluation_transform(), num_workers=workers, infer=Classifier(), when_full="raise"
        )

    async def __call__(self, request: Request) -> Any:
        try:
            return answer(await self.prepare.asubmit(await request.body()))
        except BadImage as error:
            return JSONResponse({"detail": str(error)}, status_code=422)
        except QueueFull as error:
            return JSONResponse({"detail": str(error)}, status_code=503)

    def __del__(self) -> None:
        self.prepare.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, default=8000, help="(8000)")
    parser.add_argument("--replicas", type=int, default=1, help="(1)")
    parser.add_argument("--workers", type=int, default=2, help="processes of a replica (2)")
    options = parser.parse_args()
    ray.init(include_dashboard=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # in place of Ray's
    served = Served.options(  # type: ignore[attr-defined]
        num_replicas=options.replicas,
        max_ongoing_requests=256,
        ray_actor_options={"num_cpus": options.workers},
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": options.port})
        serve.run(served.bind(options.workers), blocking=True)
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
