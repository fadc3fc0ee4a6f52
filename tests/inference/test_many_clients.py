"""Threads and event loops that share one preprocessor, all at once."""

import asyncio
import random
import threading

import pytest
import torch
from support.encoded_images import expected
from support.images import eval_transform

from fusionloader.addons.inference import BadImage

THREADS, ROUNDS = 6, 40


def test_a_model_builds_no_graph(make, jpegs):
    weight = torch.ones((), requires_grad=True)
    prepare = make(infer=lambda images: images.sum((1, 2, 3)) * weight)
    assert not prepare([jpegs[0]])[0].requires_grad


@pytest.mark.few(1)
@pytest.mark.parametrize("infer", [None, list], ids=["rows", "model"])
def test_every_client_gets_what_it_has_asked_for(make, jpegs, infer):
    prepare = make(max_queued=16, max_batch=8, max_delay="1ms", infer=infer)
    wanted = [expected(eval_transform(), image) for image in jpegs]
    wrong, asked = [], []

    def check(place, got):
        if not torch.equal(got, wanted[place]):
            wrong.append(place)

    def client(number):
        draw = random.Random(number)
        for _ in range(ROUNDS):
            places = [draw.randrange(len(jpegs)) for _ in range(draw.randrange(1, 6))]
            asked.append(len(places))
            kind = draw.randrange(4)
            if kind == 0:
                for place, got in zip(places, prepare([jpegs[p] for p in places]), strict=True):
                    check(place, got)
            elif kind == 1:
                futures = [prepare.submit(jpegs[place]) for place in places]
                for future in futures[1::2]:
                    future.cancel()
                for place, future in zip(places[::2], futures[::2], strict=True):
                    check(place, future.result())
            elif kind == 2:
                assert isinstance(prepare.submit(b"bad").exception(), BadImage)
            else:
                asyncio.run(gather(places))

    async def gather(places):
        got = await asyncio.gather(*(prepare.asubmit(jpegs[place]) for place in places))
        for place, tensor in zip(places, got, strict=True):
            check(place, tensor)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(asked) == THREADS * ROUNDS
    prepare.close()
    assert prepare.stats().queued == 0
