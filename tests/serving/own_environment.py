"""Make the environment of a reward that cannot share the trainer's: mediapipe 0.10.21 wants numpy below 2.

python tests/serving/own_environment.py FOLDER
"""

import subprocess
import sys
import venv
from pathlib import Path

ALONE = [
    "mediapipe==0.10.21",
    "numpy==1.26.4",
    "protobuf==4.25.8",
    "absl-py",
    "attrs",
    "flatbuffers",
    "opencv-contrib-python-headless==4.11.0.86",
    "sounddevice",
    "cffi",
    "pycparser",
]
"""Without what they depend on: mediapipe also asks for jax and others that segmentation never imports."""
WITH_DEPENDENCIES = ["numpy==1.26.4", "matplotlib", "fastapi", "uvicorn", "safetensors", "typer", "pillow"]
DONE = "complete"


def make(folder: Path) -> Path:
    """The environment's Python; made once."""
    python = folder / "bin" / "python"
    if not (folder / DONE).exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--only-binary=:all:"]
        subprocess.run([*pip, "--no-deps", *ALONE], check=True)
        subprocess.run([*pip, *WITH_DEPENDENCIES], check=True)
        (folder / DONE).touch()
    return python


if __name__ == "__main__":
    make(Path(sys.argv[1]))
