"""Images in tar shards on S3, read as a stream and resumed in the middle of an epoch.

    python examples/stream_from_s3.py 's3://bucket/train-{000..146}.tar'

Without a URL it starts an S3 server and writes shards to it, which needs
pip install 'moto[s3]' flask flask-cors.
"""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sample_images import data_folder, parser_of
from torchvision import transforms

from fusionloader import FusionLoader
from fusionloader.data.sources import TarStream

SHARD_SAMPLES = 25


def shard_of(paths: list[Path], first: int) -> bytes:
    """Returns a tar archive as webdataset writes it: an image and its target, by one key."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number, path in enumerate(paths, first):
            target = str(number % 2).encode()
            for kind, content in (("jpg", path.read_bytes()), ("cls", target)):
                member = tarfile.TarInfo(f"{number:06d}.{kind}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


@contextmanager
def own_bucket(images: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the URL pattern of shards on a server that runs within the block, and its options."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    region = {"region_name": "us-east-1"}
    given = {"key": "test", "secret": "test", "endpoint_url": f"http://{host}:{port}"}
    client = boto3.client(
        "s3",
        endpoint_url=given["endpoint_url"],
        aws_access_key_id="test",
        aws_secret_access_key="test",
        **region,
    )
    client.create_bucket(Bucket="images")
    paths = sorted(images.rglob("*.jpg"))
    count = 0
    for first in range(0, len(paths), SHARD_SAMPLES):
        body = shard_of(paths[first : first + SHARD_SAMPLES], first)
        client.put_object(Bucket="images", Key=f"train-{count:03d}.tar", Body=body)
        count += 1
    try:
        yield f"s3://images/train-{{000..{count - 1:03d}}}.tar", {**given, "client_kwargs": region}
    finally:
        server.stop()


def loader_of(dataset: TarStream) -> FusionLoader[Any]:
    return FusionLoader(dataset, 16, sampler=dataset.sampler(seed=1), num_workers=2)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("urls", nargs="?", help="of shards, with braces")
    options = parser.parse_args()
    if options.urls is not None:
        train(options.urls, {})
        return
    with own_bucket(data_folder(options)) as (urls, storage_options):
        train(urls, storage_options)


def train(urls: str, storage_options: dict[str, Any]) -> None:
    transform = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])
    dataset = TarStream(urls, transform=transform, storage_options=storage_options)
    loader = loader_of(dataset)
    for images, _ in itertools.islice(loader, 3):
        assert images.shape[1:] == (3, 64, 64)
    state = loader.state_dict()  # a job that is ended here ...
    again = loader_of(dataset)
    again.load_state_dict(state)  # ... goes on there
    left = sum(len(targets) for _, targets in again)
    print(f"{len(dataset)} samples in {len(dataset.urls)} shards; {left} were left")
    stats = again.stats().stream
    if stats is not None:
        print(stats.explain())


if __name__ == "__main__":
    main()
