"""An S3 server on the loopback device: moto's, in a thread of the test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

BUCKET = "images"


@dataclass
class S3Server:
    """What is told to s3fs, and to boto3, to reach it."""

    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        """What tells the same to programs that are told nothing."""
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    @property
    def storage_options(self) -> dict[str, Any]:
        return {
            "key": "test",
            "secret": "test",
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )


@contextlib.contextmanager
def s3_with(objects: dict[str, bytes], bucket: str = BUCKET) -> Iterator[S3Server]:
    """A server with these objects in a bucket, within the block."""
    from moto.server import ThreadedMotoServer

    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        server = S3Server(f"http://{host}:{port}")
        client = server.client()
        client.create_bucket(Bucket=bucket)
        for name, data in objects.items():
            client.put_object(Bucket=bucket, Key=name, Body=data)
        yield server
    finally:
        running.stop()
