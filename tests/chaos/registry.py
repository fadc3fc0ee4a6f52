"""All kinds of epochs, by name; a training process imports its own alone."""

from chaos.kinds import (
    caches,
    gpu_workers,
    image_plans,
    jobs,
    own_images,
    pools,
    remote,
    serving,
    streams,
    user_code,
    written,
)

_ROOMS = (
    *(image_plans, own_images, user_code, pools, jobs, caches, written, remote, streams, serving),
    gpu_workers,
)
KINDS = {kind.name: kind for room in _ROOMS for kind in room.KINDS}
