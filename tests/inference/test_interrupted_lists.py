"""An exception at a step of the thread that asks leaves nothing that ``close()`` waits for."""

import contextlib
import io
import threading

import numpy as np
from support.images import eval_transform, photo
from support.raised_at import Steps
from support.waiting import PATIENCE

from fusionloader.addons.inference import Preprocessor


def test_a_list_that_ctrl_c_has_ended_keeps_nobody_waiting():
    encoded = io.BytesIO()
    photo(np.random.default_rng(0), 60, 40).save(encoded, "JPEG")
    images, prepare = [encoded.getvalue()], Preprocessor(eval_transform(), num_workers=1)
    events = ("c_return",)  # where Ctrl-C is raised
    count = Steps("addons/inference/dispatcher.py", events=events).count(lambda: prepare(images))
    for position in range(count):
        steps = Steps("addons/inference/dispatcher.py", events=events)
        with contextlib.suppress(KeyboardInterrupt):
            steps.raise_at(position, KeyboardInterrupt(), lambda: prepare(images))
        assert len(prepare(images)) == 1, steps.place
    closing = threading.Thread(target=prepare.close, daemon=True)
    closing.start()
    closing.join(PATIENCE / 10)
    assert not closing.is_alive()
