"""`mmrl watch`: a page on this machine that follows a run."""

import getpass
import platform
from pathlib import Path

from mmrl.app.errors import Terminal
from mmrl.app.run.folder import RunDir
from mmrl.app.watch.server import Server


def watch(path: Path, port: int) -> None:
    """Serve the page until Ctrl-C.

    Raises FileNotFoundError if the folder holds no run, and ValueError if the port is taken.
    """
    server = Server(RunDir.open(path), port)
    Terminal(soft_wrap=True).print("\n".join(greeting(path, server)))
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        Terminal().print("closed; the run is as it was")
    finally:
        server.server_close()


def greeting(path: Path, server: Server) -> list[str]:
    """Where the page is, from here and from elsewhere."""
    tunnel = f"ssh -L {server.port}:127.0.0.1:{server.port} {user()}@{platform.node()}"
    return [
        f"watching {path}: {server.address}",
        f"from another machine: {tunnel}, then the same address",
        "Ctrl-C closes the page and does not touch the run",
    ]


def user() -> str:
    """This user's name; a placeholder where the machine knows none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "USER"
