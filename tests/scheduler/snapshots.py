"""Snapshots as ``torch.cuda.memory_snapshot()`` gives them, made by hand."""

MIB = 1 << 20


def block(size, state="inactive"):
    """A block; ``segment`` gives it its address."""
    used = size if state == "active_allocated" else 0
    return {"address": None, "size": size, "requested_size": used, "state": state, "frames": []}


def segment(address, blocks, *, device=0, stream=0, pool=(0, 0), expandable=False, addresses=True):
    """A segment of these blocks, one behind the other, with every key that torch 2.15 writes."""
    at = address
    for part in blocks:
        if addresses:
            part["address"] = at
        at += part["size"]
    sizes = {
        state: sum(part["size"] for part in blocks if part["state"] in state)
        for state in (("active_allocated",), ("active_allocated", "active_pending_free"))
    }
    allocated, active = sizes.values()
    return {
        "device": device,
        "address": address,
        "total_size": at - address,
        "allocated_size": allocated,
        "active_size": active,
        "requested_size": allocated,
        "stream": stream,
        "segment_type": "large",
        "segment_pool_id": pool,
        "is_expandable": expandable,
        "frames": [],
        "blocks": blocks,
    }
