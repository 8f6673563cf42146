"""Send oneself Ctrl-C twice, while a run listens."""

import os
import signal
import sys

from mmrl.app.run.signals import listen
from mmrl.training.stopping import Stop


def say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with listen(Stop()):
        os.kill(os.getpid(), signal.SIGINT)
        say("still here")
        os.kill(os.getpid(), signal.SIGINT)
        say("too long")
