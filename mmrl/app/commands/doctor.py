"""`mmrl doctor`: what this machine has, what is missing, and what is installed but cannot be imported."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from itertools import chain
from pathlib import Path

from mmrl.app.errors import waiting
from mmrl.app.inspect.show import columns
from mmrl.runtime.sandbox.lock import landlock_version, missing

EXTRA = re.compile(r"^([\w.-]+).*;.*extra == ['\"]([\w-]+)['\"]")

USED = {
    "transformers": "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
    "diffusers": "diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3",
}
"""Package -> a module of it that imports what only its first use would."""
LONGEST_S = 600
ASKED, FAILED = "imports ", "fails "
IMPORTS = f"""
import importlib, os, sys
told = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for name in sys.argv[1:]:
    print("{ASKED}" + name, file=told, flush=True)
    try:
        importlib.import_module(name)
    except BaseException as error:
        print("{FAILED}" + " ".join(f"{{type(error).__name__}}: {{error}}".split())[:300], file=told, flush=True)
"""
"""The child's program: each module's name before it is imported, and behind it what went wrong; what modules print is lost."""
REMEDY = "packages that go together: pip install -c constraints.txt ... (constraints.txt lies beside mmrl's README)"


def diagnosis() -> str:
    """Versions, devices, memory, disk, extras: one fact a line; packages are imported, in a process of their own."""
    needed, further = packages(), extra_packages()
    there = [name for name in dict.fromkeys([*needed, *chain(*further.values())]) if installed(name) and name != "mmrl"]
    modules = modules_of(there)
    with waiting("importing what is installed"):
        reasons = broken_imports(list(modules.values()))
    broken = {name: reasons[module] for name, module in modules.items() if module in reasons}
    found = [("accelerator", "unknown: torch cannot be imported")] if "torch" in broken else [*devices()]
    rows = [(name, with_reason(installed(name) or "not installed", [name], broken)) for name in needed]
    parts = [columns([*machine(), *found]), columns(rows), columns(extras(further, broken))]
    return "\n\n".join("\n".join(part) for part in [*parts, *([[REMEDY]] if broken else [])])


def with_reason(said: str, names: Sequence[str], broken: Mapping[str, str]) -> str:
    """The words about packages, and why they cannot be imported."""
    return "; ".join([said, *(f"{name} CANNOT BE IMPORTED ({broken[name]})" for name in names if name in broken)])


def modules_of(names: Sequence[str]) -> dict[str, str]:
    """Installed package -> the module that is imported of it."""
    tops: dict[str, list[str]] = {}
    for module, owners in packages_distributions().items():
        for owner in owners:
            tops.setdefault(plain(owner), []).append(module)
    own = {
        name: sorted(tops.get(plain(name), []), key=lambda module: (plain(module) != plain(name), module[:1] == "_", module))
        for name in names
    }
    return {name: USED.get(name, found[0]) for name, found in own.items() if found}


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def broken_imports(modules: Sequence[str]) -> dict[str, str]:
    """Module -> why it cannot be imported; they are imported one after the other, in a process that may die of it."""
    left, found = list(modules), dict[str, str]()
    while left:
        words = [sys.executable, "-P", "-c", IMPORTS, *left]
        try:
            done = subprocess.run(
                words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=LONGEST_S, check=False
            )
            said, end = done.stdout, f"its import ends the process with exit code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired as error:
            said, end = bytes(error.stdout or b"").decode("utf-8", "replace"), f"its import takes more than {LONGEST_S} s"
        module = ""
        for line in said.splitlines():
            if line.startswith(ASKED):
                module = line.removeprefix(ASKED)
            elif line.startswith(FAILED):
                found[module] = line.removeprefix(FAILED)
        if not end or not module:
            return found
        found[module] = end
        left = left[left.index(module) + 1 :]
    return found


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


def packages() -> list[str]:
    """The names of what every installation needs."""
    return ["mmrl", *(re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in requirements() if "extra ==" not in line)]


def extra_packages() -> dict[str, list[str]]:
    """Extra -> the packages that it needs."""
    needs: dict[str, list[str]] = {}
    for line in requirements():
        found = EXTRA.match(line)
        if found and found[1] != "mmrl":
            needs.setdefault(found[2], []).append(found[1])
    return needs


def extras(needs: Mapping[str, Sequence[str]], broken: Mapping[str, str]) -> list[tuple[str, str]]:
    """Extra -> installed, or what to type."""
    rows = []
    for extra, names in needs.items():
        missing = [name for name in names if not installed(name)]
        said = f'pip install "mmrl[{extra}]" ({", ".join(missing)} missing)' if missing else "installed"
        rows.append((f"[{extra}]", with_reason(said, names, broken)))
    return rows


def requirements() -> list[str]:
    """Requirement lines of the installed mmrl."""
    try:
        return requires("mmrl") or []
    except PackageNotFoundError:
        return []


def installed(name: str) -> str:
    """A package's version; empty where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
