"""Runs a command for as long as whoever started this file lives, and ends all of its processes then.

`python watchdog.py COMMAND ...` with a pipe as its input: the pipe closes when the other end's process dies, however it dies.
Standard library only, and imported by nothing: it is run as a file.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

GRACE_S = 10.0


def main(command: list[str]) -> int:
    """The command's exit code; 128 and the number of the signal that ended it."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(os.getpgrp(), signal.SIGKILL))

    def wait_for_the_end() -> None:
        # unbuffered: a buffer that a thread still reads cannot be closed when Python ends
        while os.read(sys.stdin.fileno(), 1):
            pass
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(GRACE_S)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    code = server.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
