"""FastAPI and uvicorn: requests of about the same time are one batch of the model.

    python examples/serve_fastapi.py --port 8000
    curl --data-binary @photo.jpg http://127.0.0.1:8000/predict

With several uvicorn workers each has its own `Preprocessor`: `lifespan` runs in each of them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from served_model import Classifier, answer, evaluation_transform

from fusionloader.addons.inference import BadImage, Preprocessor, QueueFull


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    workers = int(os.environ.get("WORKERS", "2"))
    with Preprocessor(
        evaluation_transform(), num_workers=workers, infer=Classifier(), when_full="raise"
    ) as app.state.prepare:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/predict")
async def predict(request: Request) -> dict[str, Any]:
    try:
        scores = await request.app.state.prepare.asubmit(await request.body())
    except BadImage as error:
        raise HTTPException(422, str(error)) from error
    except QueueFull as error:
        raise HTTPException(503, str(error)) from error
    return answer(scores)


@app.get("/stats")
async def stats(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = request.app.state.prepare.stats().as_dict()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free (8000)")
    options = parser.parse_args()
    uvicorn.run(app, port=options.port)


if __name__ == "__main__":
    main()
