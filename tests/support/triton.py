"""Triton's server with its Python backend, out of PyTriton's package.

The package pins an older NumPy, which only its own Python code needs: it is installed without its
dependencies, and nothing of it is imported here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import stat
import sys
import sysconfig
from pathlib import Path

import httpx

INSTALL = "pip install --no-deps nvidia-pytriton"


def is_installed() -> bool:
    return importlib.util.find_spec("pytriton") is not None


def server(models: Path, port: int, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command of a server for a repository of models, and its environment.

    Args:
        models: the repository.
        port: of HTTP, which is all that it speaks.
        folder: for the backend with the stub of this version of Python.
    """
    found = importlib.util.find_spec("pytriton")
    assert found is not None and found.origin is not None
    package = Path(found.origin).parent
    triton = package / "tritonserver"
    backend = folder / "backends" / "python"
    shutil.copytree(triton / "backends" / "python", backend)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = triton / "python_backend_stubs" / version / "triton_python_backend_stub"
    shutil.copy(stub, backend)
    (backend / stub.name).chmod(stat.S_IRWXU)
    libraries = [package.parent / "nvidia_pytriton.libs", sysconfig.get_config_var("LIBDIR")]
    command = [
        str(triton / "bin" / "tritonserver"),
        f"--model-repository={models}",
        f"--backend-directory={backend.parent}",
        "--disable-auto-complete-config",  # for which it would load the model once more
        *("--http-address=127.0.0.1", f"--http-port={port}"),
        *("--allow-grpc=false", "--allow-metrics=false", "--allow-gpu-metrics=false"),
    ]
    return command, {
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        # The stub embeds Python, which finds its packages by the first python3 on the path.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }


def infer(client: httpx.Client, url: str, image: bytes) -> httpx.Response:
    """Asks for the scores of an image, whose bytes follow the JSON (KServe v2, binary data)."""
    tensor = {
        "name": "image",
        "shape": [1, len(image)],
        "datatype": "UINT8",
        "parameters": {"binary_data_size": len(image)},
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return client.post(url, content=head + image, headers=headers)
