"""Each layer of the lock by itself, and the reasons why a machine has none."""

import errno
import platform
import signal
import subprocess
import sys

import pytest

from mmrl.runtime.sandbox import lock

needs_lock = pytest.mark.skipif(bool(lock.missing()), reason=f"no sandbox here: {lock.missing()}")
BEGIN = (
    "import ctypes, os, socket\nfrom mmrl.runtime.sandbox import lock\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    "libc.prctl(38, 1, 0, 0, 0)\n"
    "def says(f, *a):\n try: return f(*a) and 'done'\n except OSError as e: return e.strerror\n"
)


def program(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, timeout=60, check=False)


@needs_lock
@pytest.mark.parametrize("version", [1, 2, 4, 6, 99])
def test_landlock_alone_closes_files(version: int):
    """By the rules of every version up to the kernel's own."""
    code = (
        f"version = min({version}, lock.landlock_version())\nlock.landlock_version = lambda: version\nlock.close_files()\n"
        "print(says(os.listdir, '/'), says(open, '/etc/passwd'), says(os.mkdir, '/tmp/nobodys'), sep=', ')"
    )
    assert program(code).stdout.strip() == ", ".join(["Permission denied"] * 3)


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
    assert program(code).stdout.splitlines() == [
        "filter or check",
        "filter or check",
        "[(0, 0), (0, 0), (32, 32), (0, 0)] True",
        "Permission denied dumpable 0 dies by 9",
    ]


@needs_lock
def test_seccomp_alone_closes_files_and_the_network():
    code = (
        "lock.filter_calls()\nprint(says(os.listdir, '/'), says(open, '/etc/passwd'), says(os.mkdir, '/tmp/nobodys'),"
        " says(socket.socket), says(os.fork), says(os.kill, os.getppid(), 0), sep=', ')"
    )
    assert program(code).stdout.strip() == ", ".join(["Operation not permitted"] * 6)


@needs_lock
def test_calls_of_another_architecture_end_the_process():
    """Machine code from before the filter makes the call of i386 for a socket (int 0x80)."""
    code = (
        "import mmap\nm = mmap.mmap(-1, 4096, prot=7)\n"
        "m.write(bytes.fromhex('53b866010000bb0200000031c931d2cd805bc3'))\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\n"
        "lock.filter_calls()\nprint('ready', flush=True)\nprint(f())"
    )
    done = program(code)
    assert done.returncode == -signal.SIGSYS and done.stdout == "ready\n"


@needs_lock
def test_a_lock_is_for_the_process_that_asked():
    done = program("lock.lock(1 << 30, 10, os.getpid())")
    assert "LockError: the process that started it is gone" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="system calls of Linux")
def test_a_lock_that_does_not_hold_is_found():
    with pytest.raises(lock.LockError, match="the lock does not hold: a file can be opened"):
        lock.check()


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


class Libc:
    """A kernel that answers every call with an error."""

    def __init__(self, error: int) -> None:
        self.error = error

    def prctl(self, *_: object) -> int:
        lock.ctypes.set_errno(self.error)
        return -1

    syscall = prctl


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.ENOSYS, "the kernel has no Landlock"),
        (errno.EOPNOTSUPP, "Landlock is switched off"),
        (errno.EPERM, "a container may forbid it"),
    ],
)
def test_kernels_without_landlock_say_why(monkeypatch: pytest.MonkeyPatch, error: int, reason: str):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(lock, "_libc", lambda: Libc(error))
    assert reason in lock.missing()


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EPERM])
def test_kernels_without_filters_say_so(monkeypatch: pytest.MonkeyPatch, error: int):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(lock, "landlock_version", lambda: 7)
    monkeypatch.setattr(lock, "_libc", lambda: Libc(error))
    assert "no seccomp filters" in lock.missing()
    monkeypatch.setattr(lock, "_libc", lambda: Libc(errno.EFAULT))
    assert lock.missing() == ""
