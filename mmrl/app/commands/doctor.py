"""`mmrl doctor`: what this machine has, and what is missing."""

import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from mmrl.app.inspect.show import columns
from mmrl.runtime.sandbox.lock import landlock_version, missing

EXTRA = re.compile(r"^([\w.-]+).*;.*extra == ['\"]([\w-]+)['\"]")


def diagnosis() -> str:
    """Versions, devices, memory, disk, extras: one fact a line."""
    return "\n".join([*columns([*machine(), *devices()]), "", *columns(packages()), "", *columns(extras())])


def machine() -> list[tuple[str, str]]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    disk = shutil.disk_usage(Path.cwd())
    lacking = missing()
    return [
        ("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("processor cores", str(os.cpu_count())),
        ("memory", f"{total / 2**30:.0f} GiB" if total else "unknown"),
        ("disk here", f"{disk.free / 2**30:.0f} GiB free of {disk.total / 2**30:.0f}"),
        ("sandbox for code", f"none: {lacking}" if lacking else f"Landlock {landlock_version()} and seccomp"),
    ]


def devices() -> Iterator[tuple[str, str]]:
    """Accelerators, or that there is none."""
    import torch

    from mmrl.app.modality.on_cards import has_bfloat16

    for i in range(torch.cuda.device_count()):
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info(i))
        half = "with" if has_bfloat16() else "without"
        yield f"cuda:{i}", f"{torch.cuda.get_device_name(i)}, {free:.0f} GiB free of {total:.0f}, {half} bfloat16"
    if torch.backends.mps.is_available():
        yield "mps", "available"
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        yield "accelerator", "none: training runs on the CPU"


def packages() -> list[tuple[str, str]]:
    """Installed versions of what every installation needs."""
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in requirements() if "extra ==" not in line]
    return [(name, installed(name)) for name in ["mmrl", *names]]


def extras() -> list[tuple[str, str]]:
    """Extra -> installed, or what to type."""
    needs: dict[str, list[str]] = {}
    for line in requirements():
        found = EXTRA.match(line)
        if found and found[1] != "mmrl":
            needs.setdefault(found[2], []).append(found[1])
    rows = []
    for extra, names in needs.items():
        missing = [name for name in names if installed(name) == "not installed"]
        rows.append((f"[{extra}]", f'pip install "mmrl[{extra}]" ({", ".join(missing)} missing)' if missing else "installed"))
    return rows


def requirements() -> list[str]:
    """Requirement lines of the installed mmrl."""
    try:
        return requires("mmrl") or []
    except PackageNotFoundError:
        return []


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
