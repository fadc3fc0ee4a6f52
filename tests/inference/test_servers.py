"""The server examples, asked by HTTP clients at the same time, and ended by SIGTERM."""

import importlib.util
import sys

import httpx
import pytest
from support import triton
from support.http_servers import (
    EXAMPLES,
    ask_at_once,
    check_scores,
    free_port,
    photographs,
    script,
    served,
)

BAD = b"no image at all"
_COMPLAINT = "cannot identify image"


@pytest.fixture(autouse=True)
def _examples(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    sys.modules.pop("served_model", None)


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"pip install {' '.join(missing)}")


def check_server(ask, scores_of, status, complaint_of):
    """Asks for five images at once, and again with a bad one among them."""
    images = photographs()
    good = ask_at_once(ask, images)
    assert [each.status_code for each in good] == [200] * len(images), [g.text for g in good]
    check_scores([scores_of(each.json()) for each in good], images)
    good = ask_at_once(ask, [*images[:2], BAD, *images[2:]])
    bad = good.pop(2)
    assert bad.status_code == status and _COMPLAINT in complaint_of(bad.json()), bad.text
    assert [each.status_code for each in good] == [200] * len(images), [g.text for g in good]
    check_scores([scores_of(each.json()) for each in good], images)


def check_example(ask):
    check_server(ask, lambda told: told["scores"], 422, lambda told: told["detail"])


@pytest.mark.servers
@needs("fastapi", "uvicorn")
def test_fastapi_answers_concurrent_clients(tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with served(script("serve_fastapi.py", port), f"{url}/stats", tmp_path / "log"):
        check_example(lambda client, image: client.post(f"{url}/predict", content=image))
        stats = httpx.get(f"{url}/stats").json()
        assert (stats["requests"], stats["failed"]) == (11, 1)


@pytest.mark.servers
@needs("litserve", "python_multipart")
def test_litserve_answers_concurrent_clients(tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with served(script("serve_litserve.py", port), f"{url}/health", tmp_path / "log"):
        check_example(lambda client, image: client.post(f"{url}/predict", files={"content": image}))


@pytest.mark.servers
@needs("ray", "fastapi", "uvicorn", "grpc", "grpc_reflection", "watchfiles")
def test_ray_serve_answers_concurrent_clients(tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    ready = f"{url}/-/healthz"
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": "local"}
    agents = "/ray/"  # they notice the end of a cluster within a minute
    command = script("serve_ray.py", port)
    with served(command, ready, tmp_path / "log", agents, **settings):
        check_example(lambda client, image: client.post(url, content=image))


@pytest.mark.servers
@pytest.mark.skipif(not triton.is_installed(), reason=triton.INSTALL)
def test_triton_answers_concurrent_clients(tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}/v2"
    command, environment = triton.server(EXAMPLES / "triton", port, tmp_path)
    with served(command, f"{url}/health/ready", tmp_path / "log", **environment):
        check_server(
            lambda client, image: triton.infer(client, f"{url}/models/classifier/infer", image),
            lambda told: told["outputs"][0]["data"],
            400,
            lambda told: told["error"],
        )
