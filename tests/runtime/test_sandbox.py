"""The sandbox: what it gives to code, takes from it and keeps; each layer of its lock by itself; code that tries to get out."""

import errno
import os
import platform
import re
import select
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mmrl.runtime.sandbox import lock
from mmrl.runtime.sandbox import sandbox as module
from mmrl.runtime.sandbox.sandbox import MODULES, Pixels, Sandbox, SandboxError, SandboxLimits
from tests.attacks.sandbox import TRIES, Target, Try, target
from tests.support.refused import refused

needs_lock = pytest.mark.skipif(bool(lock.missing()), reason=f"no sandbox here: {lock.missing()}")
RED_BLUE = Pixels(2, 1, b"\xff\0\0\0\0\xff")
SLOW = SandboxLimits(seconds=60.0, text=20, pictures=2, pixels=100)


@pytest.fixture(scope="module")
def box():
    with Sandbox(SLOW) as found:
        yield found


@needs_lock
def test_pictures_go_in_and_come_out_as_they_are(box: Sandbox):
    output = box.run("show(images[0])", [RED_BLUE])
    assert output.pictures == (RED_BLUE,), output.error
    turned = box.run("import numpy as np\nimage.show(); show(np.asarray(image)[:, ::-1])")
    assert turned.pictures == (RED_BLUE, Pixels(2, 1, b"\0\0\xff\xff\0\0")), turned.error


@needs_lock
def test_what_tools_need_works_inside(box: Sandbox):
    code = (
        "import io, math, numpy as np\nfrom PIL import Image, ImageDraw, ImageFilter\n"
        "im = Image.new('RGB', (640, 480), 'white')\nImageDraw.Draw(im).text((9, 9), 'hello', fill='red')\n"
        "im = im.crop((5, 5, 200, 200)).resize((400, 400), Image.BICUBIC).rotate(10).filter(ImageFilter.SHARPEN)\n"
        "file = io.BytesIO(); im.save(file, 'PNG'); again = Image.open(io.BytesIO(file.getvalue()))\n"
        "print(again.size, round(np.linalg.svd(np.eye(50))[1].sum()))"
    )
    output = box.run(code)
    assert output.text == "(400, 400) 50\n", output.error


@needs_lock
@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        ("print(1)\n1 / 0", "1\n", "ZeroDivisionError in line 2: division by zero"),
        ("def f():\n    raise KeyError\nf()", "", "KeyError in line 2"),
        ("raise ValueError('a\\n\\nb')", "", "ValueError in line 1: a b"),
        ("x = (", "", "SyntaxError in line 1: '(' was never closed"),
        ("print(2); exit()", "2\n", ""),
        ("print('x' * 30)", "x" * 20 + " ... (the rest is cut)", ""),
        ("print('\\ud800')", "?\n", ""),
        ("raise ValueError('x' * 10**6)", "", "ValueError in line 1: " + "x" * 478),
        ("input()", "", "EOFError in line 1: EOF when reading a line"),
        ("'\0'", "", "source code string cannot contain null bytes"),
        ("#" + "x" * 70_000, "", "the code is 70001 characters long, and may be 65536"),
    ],
)
def test_what_goes_wrong_is_a_sentence(box: Sandbox, code: str, text: str, error: str):
    output = box.run(code)
    assert output.text == text and output.error.endswith(error) and bool(output.error) == bool(error)


@needs_lock
def test_after_a_death_the_next_piece_begins_anew(box: Sandbox):
    box.run("x = 1")
    assert box.run("import os; os._exit(3)").error == "its process ended with exit code 3: its variables are lost"
    assert box.run("x").error == "NameError in line 1: name 'x' is not defined"


@needs_lock
def test_random_numbers_repeat():
    code = "import random, numpy as np\nprint(random.random(), np.random.rand(), hash('x'))"
    texts = []
    for seed in (1, 1, 2):
        with Sandbox(seed=seed) as box:
            texts.append(box.run(code).text)
    assert texts[0] == texts[1] != texts[2] and len(texts[0]) > 20


@needs_lock
def test_processor_time_is_bounded_over_all_pieces():
    with Sandbox(SandboxLimits(seconds=60.0, cpu=1)) as box:
        assert "killed by SIGKILL" in box.run("while True: pass").error


@needs_lock
def test_code_prints_and_keeps_its_variables_beyond_the_thread_that_used_it_first():
    with Sandbox() as box, ThreadPoolExecutor(1) as pool:
        assert pool.submit(box.run, "x = 6").result().text == ""
        pool.shutdown()
        assert box.run("print(x * 7)").text == "42\n"


@needs_lock
def test_it_ends_with_its_parent():
    program = (
        "import os, signal\nfrom mmrl.runtime.sandbox.sandbox import Sandbox\nbox = Sandbox()\n"
        "print(box.run('import os; print(os.getpid())').text.strip(), flush=True)\ninput()\nbox.run('while True: pass')"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdin is not None and parent.stdout is not None
    handle = os.pidfd_open(int(parent.stdout.readline()))
    parent.stdin.write("\n")
    parent.stdin.flush()
    parent.kill()
    parent.communicate()
    assert select.select([handle], [], [], 30)[0], "it lives on"
    os.close(handle)


@needs_lock
def test_closing_ends_the_process():
    box = Sandbox()
    handle = os.pidfd_open(int(box.run("import os; print(os.getpid())").text))
    box.close()
    assert select.select([handle], [], [], 0)[0]
    assert box.run("print(1)").text == "1\n", "it may be used again"
    box.close()
    os.close(handle)


@needs_lock
def test_an_interrupt_leaves_no_answer_for_the_next_piece(monkeypatch: pytest.MonkeyPatch):
    with Sandbox() as box:
        box.run("x = 1")

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(module, "read", interrupt)
            with pytest.raises(KeyboardInterrupt):
                box.run("print('late')")
        assert box.run("print('in time')").text == "in time\n"


@needs_lock
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module", "did not start: No module named 'no_such_module'"),
        ("starts_a_thread", "started threads, which the lock would not cover"),
    ],
)
def test_a_module_that_cannot_be_loaded_or_starts_threads_is_refused(name, said, tmp_path: Path, monkeypatch):
    thread = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (tmp_path / "starts_a_thread.py").write_text(thread)
    monkeypatch.syspath_prepend(tmp_path)
    refused(said, Sandbox(modules=[*MODULES, name]).run, "1", error=SandboxError)


def test_deaths_have_words():
    found = [module.death(code) for code in (3, -signal.SIGSYS, -99)]
    assert found == ["ended with exit code 3", "was killed by SIGSYS", "was killed by signal 99"]


@pytest.mark.parametrize("size", [(0, 1, b""), (2, 1, b"abc"), (-1, -1, b"abc")])
def test_pixels_fit_their_size(size: tuple[int, int, bytes]):
    refused(f"are no picture of {size[0]} x {size[1]} pixels", Pixels, *size)


@needs_lock
def test_so_many_run_in_a_process_and_no_more(monkeypatch: pytest.MonkeyPatch):
    with Sandbox() as first, Sandbox() as second:
        first.run("1")
        monkeypatch.setattr(module, "MOST", len(module._RUNNING))
        refused("which are the most: let fewer episodes run at a time", second.run, "1", error=SandboxError)
        first.close()
        assert second.run("print(1)").text == "1\n"


BEGIN = (
    "import ctypes, os, socket\nfrom mmrl.runtime.sandbox import lock\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    "libc.prctl(38, 1, 0, 0, 0)\n"
    "def says(f, *a):\n try: return f(*a) and 'done'\n except OSError as e: return e.strerror\n"
)


def alone(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, timeout=60, check=False)


FILES = "says(os.listdir, '/'), says(open, '/etc/passwd'), says(os.mkdir, '/tmp/nobodys')"


@needs_lock
@pytest.mark.parametrize("version", [1, 2, 4, 6, 99])
def test_landlock_alone_closes_files(version: int):
    """By the rules of every version up to the kernel's own."""
    code = f"version = min({version}, lock.landlock_version())\nlock.landlock_version = lambda: version\nlock.close_files()\n"
    code += f"print({FILES}, sep=', ')"
    assert alone(code).stdout.strip() == ", ".join(["Permission denied"] * 3)


@needs_lock
def test_a_lock_takes_every_layer():
    """Without the filter, which hides the others."""
    code = (
        "import resource\nlock.filter_calls = lock.check = lambda: print('filter or check')\n"
        "lock.lock(1 << 30, 10, os.getppid())\n"
        "limits = (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK)\n"
        "print([resource.getrlimit(one) for one in limits], resource.getrlimit(resource.RLIMIT_AS)[0] > 1 << 30)\n"
        "death = ctypes.c_int()\nlibc.prctl(2, ctypes.byref(death), 0, 0, 0)\n"
        "print(says(open, '/etc/passwd'), 'dumpable', libc.prctl(3, 0, 0, 0, 0), 'dies by', death.value)"
    )
    assert alone(code).stdout.splitlines() == [
        "filter or check",
        "filter or check",
        "[(0, 0), (0, 0), (32, 32), (0, 0)] True",
        "Permission denied dumpable 0 dies by 9",
    ]


@needs_lock
def test_seccomp_alone_closes_files_and_the_network():
    code = f"lock.filter_calls()\nprint({FILES}, says(socket.socket), says(os.fork), says(os.kill, os.getppid(), 0), sep=', ')"
    assert alone(code).stdout.strip() == ", ".join(["Operation not permitted"] * 6)


@needs_lock
def test_calls_of_another_architecture_end_the_process():
    """Machine code from before the filter makes the call of i386 for a socket (int 0x80)."""
    code = (
        "import mmap\nm = mmap.mmap(-1, 4096, prot=7)\n"
        "m.write(bytes.fromhex('53b866010000bb0200000031c931d2cd805bc3'))\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\n"
        "lock.filter_calls()\nprint('ready', flush=True)\nprint(f())"
    )
    done = alone(code)
    assert done.returncode == -signal.SIGSYS and done.stdout == "ready\n"


@needs_lock
def test_a_lock_is_for_the_process_that_asked():
    done = alone("lock.lock(1 << 30, 10, os.getpid())")
    assert "LockError: the process that started it is gone" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="system calls of Linux")
def test_a_lock_that_does_not_hold_is_found():
    refused("the lock does not hold: a file can be opened", lock.check, error=lock.LockError)


def test_the_filter_jumps_to_lines_that_exist_and_ends_with_no():
    lines = lock.program()
    assert len(lines) < 4096, "the kernel's limit"
    for i, (operation, yes, no, _) in enumerate(lines):
        assert operation == 0x06 or i + 1 + max(yes, no) < len(lines)
    assert lines[-1] == (0x06, 0, 0, 0x00050000 | errno.EPERM)


@pytest.mark.parametrize(
    ("system", "machine", "reason"),
    [("darwin", "arm64", "it needs Linux"), ("linux", "aarch64", "is for x86-64, and this is aarch64")],
)
def test_other_machines_are_named(monkeypatch: pytest.MonkeyPatch, system: str, machine: str, reason: str):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert reason in lock.missing()
    refused(f"no sandbox on this machine: .*{reason}", Sandbox, error=SandboxError)


class Libc:
    """A kernel that answers every call with an error."""

    def __init__(self, error: int) -> None:
        self.error = error

    def prctl(self, *_: object) -> int:
        lock.ctypes.set_errno(self.error)
        return -1

    syscall = prctl


@pytest.mark.parametrize(
    ("error", "more", "reason"),
    [
        (errno.ENOSYS, {}, "the kernel has no Landlock"),
        (errno.EOPNOTSUPP, {}, "Landlock is switched off"),
        (errno.EPERM, {}, "a container may forbid it"),
        (errno.EINVAL, {"landlock_version": lambda: 7}, "no seccomp filters"),
        (errno.EPERM, {"landlock_version": lambda: 7}, "no seccomp filters"),
        (errno.EFAULT, {"landlock_version": lambda: 7}, "^$"),
    ],
)
def test_kernels_without_landlock_or_filters_say_why(monkeypatch, error: int, more: dict[str, object], reason: str):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    for name, value in {"_libc": lambda: Libc(error), **more}.items():
        monkeypatch.setattr(lock, name, value)
    assert re.search(reason, lock.missing())


@pytest.fixture(scope="module")
def aim(tmp_path_factory: pytest.TempPathFactory):
    with target(tmp_path_factory.mktemp("target")) as found:
        yield found


@needs_lock
@pytest.mark.parametrize("one", TRIES, ids=lambda one: one.name)
def test_code_stays_inside(aim: Target, one: Try):
    aim.attempt(one)
