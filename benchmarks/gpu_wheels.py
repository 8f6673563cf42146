"""Collect the wheels that benchmarks/gpu.py needs on a machine with torch and without a network: at most 50 MiB.

    python benchmarks/gpu_wheels.py gpu-wheels --python 3.12

The machine itself is to bring torch and torchvision for its card, numpy, scipy, pillow and what these and pip's usual company
bring (requests, PyYAML, psutil, packaging, regex, pytest). Versions are those of constraints.txt. TRL comes along for the
comparison; it also wants pandas and pyarrow, which are too large: without them its row says what is missing. PyAV (34 MiB) is
left out, for nothing is measured on clips.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST = 50 * 2**20
"""Bytes."""
NEEDED = (
    "transformers",
    "tokenizers",
    "huggingface_hub",
    "hf-xet",
    "httpx2",
    "httpcore2",
    "truststore",
    "h11",
    "anyio",
    "idna",
    "certifi",
    "diffusers",
    "accelerate",
    "peft",
    "safetensors",
    "pydantic",
    "pydantic_core",
    "annotated-types",
    "typing-inspection",
    "typing_extensions",
    "jaxtyping",
    "wadler-lindig",
    "beartype",
    "typer",
    "annotated-doc",
    "shellingham",
    "click",
    "rich",
    "markdown-it-py",
    "mdurl",
    "pygments",
    "tomli-w",
    "importlib_metadata",
    "zipp",
)
COMPARED = ("trl", "datasets", "dill", "multiprocess", "xxhash")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64")


def download(folder: Path, python: str) -> list[Path]:
    """Fetch the wheels of that Python, in the versions the suite was tested with."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["--no-deps", "--only-binary", ":all:", "--python-version", python, "--dest", str(folder), "--quiet"]
    words += [f"--platform={platform}" for platform in PLATFORMS]
    words += ["--constraint", str(ROOT / "constraints.txt"), *NEEDED, *COMPARED]
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *words], check=True)
    return sorted(folder.glob("*.whl"))


def refuse_too_much(wheels: list[Path]) -> int:
    """Bytes of all wheels together.

    Raises:
        SystemExit: more than such a machine takes.
    """
    total = sum(wheel.stat().st_size for wheel in wheels)
    if total > MOST:
        largest = max(wheels, key=lambda wheel: wheel.stat().st_size)
        raise SystemExit(
            f"the wheels are {total / 2**20:.1f} MiB, more than {MOST // 2**20}: empty the folder and run it again, or take "
            f"{largest.name} out of NEEDED or COMPARED in benchmarks/gpu_wheels.py"
        )
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="version of the other machine's Python")
    args = parser.parse_args()
    wheels = download(args.folder, args.python)
    print(f"{len(wheels)} wheels in {args.folder}, {refuse_too_much(wheels) / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
