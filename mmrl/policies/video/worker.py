"""A process that decodes clips for another one: `python -m mmrl.policies.video.worker`. Imports no torch.

It reads pickled (Video, FrameRule, hashed) from its standard input and answers on its standard output, until the input ends. A
process of its own program neither inherits locks, as a fork would (decord hangs then), nor runs the parent's main file again.
"""

import os
import pickle
import signal
import sys
from dataclasses import replace
from typing import BinaryIO

import numpy as np

from mmrl.policies.video.decode import fetch

NOTHING = np.zeros((0, 0, 0, 3), np.uint8)


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """An answer is a pickled error, or pickled Frames without pixels, their shape, and then the pixels as they are."""
    while True:
        try:
            video, rule, hashed = pickle.load(asked)  # noqa: S301 - from the process that started this one
        except EOFError:
            return
        try:
            frames = fetch(video, rule, hashed)
        except (ValueError, OSError) as error:
            pickle.dump(error, answers)
        else:
            pickle.dump((replace(frames, pixels=NOTHING), frames.pixels.shape), answers)
            answers.write(np.ascontiguousarray(frames.pixels).data)
        answers.flush()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGHUP):
        # the terminal sends them to the whole run, which decides what becomes of its processes
        signal.signal(number, signal.SIG_IGN)
    # Libraries that print would otherwise write into the answers.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, out)
