"""`mmrl doctor` imports what it lists, in a process of its own, and says what is broken and why."""

from pathlib import Path

import pytest

from mmrl.app.commands import doctor

MODULES = {
    "fine": "print('fails is printed by a module')",
    "raises": "raise RuntimeError('operator torchvision::nms\\n does not exist')",
    "leaves": "raise SystemExit(3)",
    "dies": "import os; os._exit(7)",
    "last": "import fine",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return [*MODULES, "absent"]


def test_whatever_an_import_does_is_told_of_that_module_alone(
    modules: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert doctor.broken_imports(modules) == {
        "raises": "RuntimeError: operator torchvision::nms does not exist",
        "leaves": "SystemExit: 3",
        "dies": "its import ends the process with exit code 7",
        "absent": "ModuleNotFoundError: No module named 'absent'",
    }
    (tmp_path / "waits.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "LONGEST_S", 2)
    assert doctor.broken_imports(["fine", "waits"]) == {"waits": "its import takes more than 2 s"}


def test_nothing_in_the_working_directory_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "numpy.py").write_text("raise RuntimeError('mine')")
    monkeypatch.chdir(tmp_path)
    assert doctor.broken_imports(["numpy"]) == {}


def test_what_is_broken_is_named_with_the_remedy(modules: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "modules_of", lambda names: {"torchvision": "raises", "torch": "dies", "pyarrow": "leaves"})
    said = doctor.diagnosis()
    assert "CANNOT BE IMPORTED (RuntimeError: operator torchvision::nms does not exist)" in said
    assert "accelerator" in said and "unknown: torch cannot be imported" in said
    (data,) = [line for line in said.splitlines() if line.startswith("[data]")]
    assert data.endswith("installed; pyarrow CANNOT BE IMPORTED (SystemExit: 3)")
    assert "pip install -c constraints.txt" in said


def test_the_module_of_every_package_that_is_needed_is_known():
    needed = [name for name in doctor.packages() if name != "mmrl"]
    found = doctor.modules_of(needed)
    assert found.keys() == set(needed)
    assert found["pillow"] == "PIL" and found["pyyaml"] == "yaml" and found["open-clip-torch"] == "open_clip"
