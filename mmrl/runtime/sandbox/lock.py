"""Locks the process that calls it, for good: limits, Landlock, seccomp. By ctypes; standard library only.

Files and the network are closed twice, so that one layer with a hole is not enough. Landlock and seccomp do not cover threads
that run already, and none can be started later.
"""

import ctypes
import errno
import os
import platform
import signal
import struct
import sys

ARCHITECTURE = 0xC000003E
X32 = 0x40000000
"""From this number on, calls of the x32 kind, which would pass a list of numbers."""
IOCTL = 16
MEMORY = (9, 10)
"""`mmap` and `mprotect`: allowed, but for memory that can be executed."""
_LISTED = """
read 0, write 1, close 3, fstat 5, poll 7, lseek 8, munmap 11, brk 12, rt_sigaction 13, rt_sigprocmask 14, rt_sigreturn 15,
sched_yield 24, mremap 25, madvise 28, nanosleep 35, getpid 39, exit 60, uname 63, gettimeofday 96, getrusage 98, sysinfo 99,
times 100, getuid 102, getgid 104, geteuid 107, getegid 108, getppid 110, sigaltstack 131, gettid 186, futex 202,
restart_syscall 219, exit_group 231, getrandom 318
"""
CALLS = {name: int(number) for name, number in (entry.split() for entry in _LISTED.split(","))}
"""System calls of x86-64 Linux that computing needs: memory, time, and reading and writing what is open already.

Not among them, though harmless at first sight: `stat` and `access` (which files exist), `fcntl` (makes the kernel send signals),
`prlimit64` (limits of other processes), `tgkill`, `pipe`, `memfd_create` (memory that no limit counts), `clone` (threads, which
no limit counts where the user is root).
"""
OWN = {"sched_getaffinity": (204, 1), "clock_gettime": (228, 16), "clock_getres": (229, 16), "clock_nanosleep": (230, 16)}
"""Name -> number, and what the first argument is below: numbers of processes are higher, and of their clocks negative."""
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _SET_SECCOMP, _SET_NO_NEW_PRIVILEGES = 1, 4, 22, 38
_FILTER = 2
_NAMESPACES = 0x10000000 | 0x40000000 | 0x08000000 | 0x00020000
"""User, network, IPC, mount."""
_EXECUTABLE = 4
_LOAD, _EQUAL, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
"""Where a filter finds the number of the call, the architecture, and the six arguments of eight bytes."""


class LockError(RuntimeError):
    """The process cannot be locked, or the lock does not hold."""


def missing() -> str:
    """The reason why this machine cannot lock a process, in words; empty if it can."""
    if sys.platform != "linux":
        return f"it needs Linux, and this is {platform.system()}"
    if platform.machine() != "x86_64" or sys.maxsize < 2**32:
        return f"its list of system calls is for x86-64, and this is {platform.machine()}"
    if landlock_version() < 1:
        return {
            errno.EOPNOTSUPP: "Landlock is switched off: add it to the kernel's boot parameter lsm",
            errno.ENOSYS: "the kernel has no Landlock (Linux 5.13 has it), or a container hides it",
        }.get(ctypes.get_errno(), f"Landlock answers {os.strerror(ctypes.get_errno())!r}: a container may forbid it")
    # a filter at address 0 is refused as a bad address where filters exist, and as an invalid argument where they do not
    if _libc().prctl(_SET_SECCOMP, _FILTER, None, 0, 0) == 0 or ctypes.get_errno() != errno.EFAULT:
        return f"the kernel has no seccomp filters, or a container forbids them ({os.strerror(ctypes.get_errno())})"
    return ""


def landlock_version() -> int:
    """Landlock's own version, from 1 on; -1 where there is none."""
    return _libc().syscall(_LANDLOCK_CREATE, None, 0, 1)


def lock(memory: int, seconds: int, parent: int) -> None:
    """Lock this process.

    Args:
        memory: bytes that it may take beyond those it has.
        seconds: of processor time that it may use beyond those it has used.
        parent: the process that started it, with which it ends.

    Raises:
        LockError: a layer is missing or does not hold, or other threads run already.
    """
    lacking = missing()
    if lacking:
        raise LockError(lacking)
    if len(os.listdir("/proc/self/task")) != 1:
        raise LockError("a module that was loaded before the lock started threads, which the lock would not cover")
    libc = _libc()
    libc.unshare(_NAMESPACES)  # one more layer where it is allowed; containers refuse it
    libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    # after everything that changes credentials, which clears it
    libc.prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        raise LockError("the process that started it is gone")
    limit(memory, seconds)
    libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    close_files()
    filter_calls()
    check()


def limit(memory: int, seconds: int) -> None:
    """Limits of memory, processor time, files, locked memory and the stack, which cannot be raised behind the filter."""
    import resource

    with open("/proc/self/statm") as file:
        has = int(file.read().split()[0]) * resource.getpagesize()
    used = resource.getrusage(resource.RUSAGE_SELF)
    wanted = {
        resource.RLIMIT_AS: has + memory,
        resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime) + 1 + seconds,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 32,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_STACK: 64 << 20,
    }
    for what, most in wanted.items():
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def close_files() -> None:
    """Landlock without any path: no file may be opened, made or moved; no TCP, no signals and abstract sockets outside."""
    version = landlock_version()
    files = (1 << 13) - 1 | (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
    rules = struct.pack("QQQ", files, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8  # a kernel refuses fields that it does not know
    handle = _libc().syscall(_LANDLOCK_CREATE, ctypes.c_char_p(rules), size, 0)
    if handle < 0 or _libc().syscall(_LANDLOCK_RESTRICT, handle, 0) != 0:
        raise LockError(f"Landlock refuses: {os.strerror(ctypes.get_errno())}")
    os.close(handle)


def filter_calls() -> None:
    """A seccomp filter: every system call that is not listed answers "not permitted"."""
    code = b"".join(struct.pack("HBBI", *line) for line in program())
    held = ctypes.create_string_buffer(code)
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held))
    if _libc().prctl(_SET_SECCOMP, _FILTER, ctypes.c_char_p(header), 0, 0) != 0:
        raise LockError(f"seccomp refuses: {os.strerror(ctypes.get_errno())}")


def program() -> list[tuple[int, int, int, int]]:
    """The filter: (operation, lines to jump if true, if false, value)."""
    allow, refuse, kill = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERROR | errno.EPERM), (_RETURN, 0, 0, _KILL)
    lines = [(_LOAD, 0, 0, _MACHINE), (_EQUAL, 1, 0, ARCHITECTURE), kill, (_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, X32), kill]
    for number in CALLS.values():
        lines += [(_EQUAL, 0, 1, number), allow]
    # isatty() expects this error
    lines += [(_EQUAL, 0, 1, IOCTL), (_RETURN, 0, 0, _ERROR | errno.ENOTTY)]
    for number in MEMORY:
        lines += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _ARGUMENTS + 16), (_HAS_BIT, 0, 1, _EXECUTABLE), refuse, allow]
    for number, above in OWN.values():
        lines += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _ARGUMENTS), (_AT_LEAST, 0, 1, above), refuse, allow]
    return [*lines, refuse]


def check() -> None:
    """Raise LockError if a file, the network or another process can be reached: some kernels accept a lock and do not hold it."""
    tries = {
        "a file can be opened": lambda: os.open("/", os.O_RDONLY),
        "a file can be looked at": lambda: os.stat("/"),
        "processes can be signalled": lambda: os.kill(os.getppid(), 0),
    }
    for what, attempt in tries.items():
        try:
            attempt()
        except PermissionError:
            continue
        raise LockError(f"the lock does not hold: {what}")
    if _libc().socket(2, 1, 0) >= 0:
        raise LockError("the lock does not hold: a socket can be opened")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
