"""Attacks from inside the sandbox of a model's Python: files, network, processes, kernel, memory, time, and false answers."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mmrl.runtime.sandbox.lock import CALLS, IOCTL, MEMORY, OWN, missing
from mmrl.runtime.sandbox.sandbox import MODULES, Output, Sandbox, SandboxError, SandboxLimits
from tests.attacks.attack import Attack

ESCAPED = "ESCAPED"
BOUNDS = SandboxLimits(seconds=30.0, cpu=30, memory=128 << 20, pixels=10_000)
SHORT_S = 0.3
LOADED = (*MODULES, "ctypes", "mmap", "resource", "socket", "subprocess", "threading")
"""What the tries import: without them they would fail before they reach the lock."""
NOT_PERMITTED = "Operation not permitted"
LATE = f"took longer than {SHORT_S:g} s"
TOKEN = "MMRL_ATTACKED_TOKEN"
KERNEL = "import ctypes; l = ctypes.CDLL(None, use_errno=True); call = l.syscall\n"
REFUSED = "\nprint('ESCAPED' if r >= 0 else 'refused', ctypes.get_errno())"
PROBES = (335, 336)
"""Returns of the kernel's own probes, which Linux 6.14 lets pass and answers with SIGILL."""
LISTED = sorted({*CALLS.values(), *MEMORY, *(number for number, _ in OWN.values()), IOCTL})


@dataclass(frozen=True)
class Try:
    """Code that prints ESCAPED if it gets out. `{port}`, `{name}`, `{secret}`, `{folder}` and `{parent}` are what it is after."""

    name: str
    code: str
    held: str = NOT_PERMITTED
    """A pattern of what it says otherwise, so that a try that fails for another reason counts as broken."""

    @property
    def seconds(self) -> float:
        return SHORT_S if LATE in self.held else BOUNDS.seconds


def raw(name: str, *arguments: object) -> Try:
    """A system call of the kernel, by its number, which says "refused 1" (EPERM)."""
    return Try(name, f"{KERNEL}r = call({', '.join(map(str, arguments))}){REFUSED}", "^refused 1$")


FILES = [
    Try("reads a file", "print(open('{secret}').read(), 'ESCAPED')"),
    Try("reads /etc/passwd", "print(open('/etc/passwd').read(), 'ESCAPED')"),
    Try("asks whether a file exists", "import os; os.stat('{secret}'); print('ESCAPED')"),
    Try("lists a folder", "import os; print(os.listdir('/'), 'ESCAPED')"),
    Try("writes a file", "open('{folder}/written', 'w').write('x'); print('ESCAPED')"),
    Try("renames a file", "import os; os.rename('{secret}', '{secret}.gone'); print('ESCAPED')"),
    Try("links a file", "import os; os.symlink('{secret}', '{folder}/link'); print('ESCAPED')"),
    Try("saves a picture", "from PIL import Image; Image.new('RGB', (2, 2)).save('{folder}/a.png'); print('ESCAPED')"),
    Try("reads its own /proc", "print(open('/proc/self/environ').read(), 'ESCAPED')"),
    Try("reads its parent's /proc", "print(open('/proc/{parent}/maps').read(), 'ESCAPED')"),
    Try("loads a library", "import ctypes; ctypes.CDLL('{secret}'); print('ESCAPED')", "cannot open shared object file"),
    Try("imports what is not loaded", "import difflib; print('ESCAPED')", "No module named 'difflib'"),
    Try("finds inherited files", "import os, stat\nfor n in range(64):\n try:\n"
        "  if stat.S_ISREG(os.fstat(n).st_mode): print('ESCAPED', n)\n except OSError: pass\nprint('none')", "^none$"),
    Try("finds keys in its environment",
        f"import os; print('ESCAPED' if '{TOKEN}' in os.environ else 'none')\n{KERNEL}l.getenv.restype = ctypes.c_char_p\n"
        f"print('ESCAPED' if l.getenv(b'{TOKEN}') else '')", "^none$"),
]  # fmt: skip
NETWORK = [
    Try("connects to this machine", "import socket; socket.create_connection(('127.0.0.1', {port})); print('ESCAPED')"),
    Try("sends a datagram", "import socket; socket.socket(2, 2).sendto(b'x', ('127.0.0.1', {port})); print('ESCAPED')"),
    Try("connects to an abstract socket", "import socket; socket.socket(1).connect('\\0{name}'); print('ESCAPED')"),
    raw("opens a socket by its number", 41, 2, 1, 0),
    raw("makes a pair of sockets", 53, 1, 1, 0, "ctypes.create_string_buffer(8)"),
    raw("sets up io_uring", 425, 8, "ctypes.create_string_buffer(200)"),
]
PROCESSES = [
    Try("forks without end", "import os\nwhile True: os.fork(); print('ESCAPED')"),
    Try("starts a program", "import subprocess; print(subprocess.run(['/bin/echo', 'x']), 'ESCAPED')"),
    Try("becomes a program", "import os; os.execv('/bin/sh', ['sh', '-c', 'echo ESCAPED'])"),
    Try("kills its parent", "import os; os.kill({parent}, 9); print('ESCAPED')"),
    raw("traces its parent", 101, 16, "{parent}", 0, 0),
    raw("reads its parent's memory", 310, "{parent}", 0, 0, 0, 0, 0),
    raw("takes a handle of its parent", 434, "{parent}", 0),
    raw("has the kernel signal its parent", 72, 0, 8, "{parent}"),
    raw("outlives its parent", 157, 1, 0, 0, 0),
    raw("reads its parent's clock", 228, "(~{parent} << 3) | 2", "ctypes.create_string_buffer(16)"),
    raw("asks for the resolution of its parent's clock", 229, "(~{parent} << 3) | 2", "ctypes.create_string_buffer(16)"),
    raw("sleeps by its parent's clock", 230, "(~{parent} << 3) | 2", 0, "ctypes.create_string_buffer(16)", 0),
    raw("asks for its parent's processors", 204, "{parent}", 128, "ctypes.create_string_buffer(128)"),
    raw("starts a thread by the kernel's call", 56, "0x10f00", 0, 0, 0, 0),
    raw("starts a thread by the newer call", 435, "ctypes.create_string_buffer(88)", 88),
]
LAYERS = [
    Try("calls by numbers of x32", f"{KERNEL}r = call(0x40000000 | 41, 2, 1, 0){REFUSED}", "killed by SIGSYS"),
    Try("writes machine code", "import mmap; mmap.mmap(-1, 4096, prot=7); print('ESCAPED')"),
    Try("makes its memory executable", f"import mmap; m = mmap.mmap(-1, 4096)\n{KERNEL}"
        f"r = l.mprotect(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(m))), 4096, 7){REFUSED}", "^refused 1$"),
    raw("makes a user namespace", 272, "0x10000000"),
    raw("makes another filter", 317, 1, 0, 0),
    raw("makes another set of rules", 444, 0, 0, 1),
    Try("makes any other system call", f"{KERNEL}found = [n for n in range(600) if n not in {[*LISTED, *PROBES]}\n"
        " and (call(n, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1)]\nprint('ESCAPED' if found else 'none', found)",
        "^none"),
    Try("raises its limits", "import resource as r; r.setrlimit(r.RLIMIT_AS, (-1, -1)); print('ESCAPED')",
        "not allowed to raise"),
]  # fmt: skip
RESOURCES = [
    Try("takes memory at once", "x = bytearray(400 << 20); print('ESCAPED')", "MemoryError"),
    Try("takes memory in small pieces", "x = []\nwhile True: x.append(bytearray(1 << 20))", "MemoryError"),
    Try("starts a thread", "import threading\nthreading.stack_size(32 << 10)\n"
        "threading.Thread(target=print, daemon=True).start(); print('ESCAPED')", "can't start new thread"),
    raw("takes shared memory", 29, 0, "1 << 20", "0o1600"),
    Try("takes memory as a file", "import os; os.memfd_create('x'); print('ESCAPED')"),
    Try("computes without end", "while True: pass", LATE),
    Try("sleeps", "import time; time.sleep(60); print('ESCAPED')", LATE),
    Try("prints without end", "while True: print('x' * 65536)", LATE),
    Try("calls itself without end", "import sys; sys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)",
        f"MemoryError|RecursionError|killed by|{LATE}"),
    Try("shows a picture that is too large", "from PIL import Image; show(Image.new('RGB', (101, 100)))", "1 to 10000 pixels"),
    Try("shows pictures without end", "from PIL import Image\nwhile True: show(Image.new('RGB', (1, 1)))",
        "takes 8 pictures"),
]  # fmt: skip
ANSWER = "import os, struct\nfor n in range(3, 9):\n try: os.write(n, {})\n except OSError: pass\nwhile True: pass"
FALSE_ANSWERS = [
    Try("answers 4 GB of text", ANSWER.replace("{}", "struct.pack('<III', 2**32 - 1, 0, 0)"), "answered more than it may"),
    Try("answers a billion pictures", ANSWER.replace("{}", "struct.pack('<III', 0, 0, 10**9)"), "answered more than it may"),
    Try("answers a picture of 4 billion a side", ANSWER.replace("{}", "struct.pack('<5I', 0, 0, 1, *[2**32 - 1] * 2)"),
        "a picture that has not 1 to 10000 pixels"),
    Try("answers a picture without pixels", ANSWER.replace("{}", "struct.pack('<5I', 0, 0, 1, 0, 7)"),
        "a picture that has not 1 to 10000 pixels"),
    Try("answers more text than it may print", ANSWER.replace("{}", "struct.pack('<III', 9000 * 4, 0, 0) + b'x' * 9000 * 4"),
        "answered more than it may"),
    Try("answers half of what it promises", ANSWER.replace("{}", "struct.pack('<III', 100, 0, 0)"), LATE),
    Try("closes its pipes", "import os; os.closerange(0, 64)", "ended with exit code|killed by"),
    Try("dies", "import os; os._exit(3)", "ended with exit code 3"),
]  # fmt: skip
TRIES = [*FILES, *NETWORK, *PROCESSES, *LAYERS, *RESOURCES, *FALSE_ANSWERS]


@dataclass(frozen=True)
class Target:
    """What a try is after, and a sandbox to try it from."""

    words: dict[str, str]
    sandbox: Sandbox

    def attempt(self, one: Try) -> Output:
        code = one.code
        for word, value in self.words.items():
            code = code.replace(f"{{{word}}}", value)
        self.sandbox.bounds = replace(BOUNDS, seconds=one.seconds)
        output = self.sandbox.run(code)
        assert ESCAPED not in output.text, f"got out: {output.text[:300]!r}"
        assert re.search(one.held, output.text.strip() + output.error), (
            f"held, but not by what was expected ({one.held}): {output.text[:300]!r} {output.error}"
        )
        return output


@contextmanager
def target(folder: Path) -> Iterator[Target]:
    """A server, an abstract socket, a readable file, a key in the environment, and a descriptor that programs inherit."""
    secret, name = folder / "secret.key", f"mmrl-attack-{os.getpid()}-{folder.name}"
    secret.write_text("SECRET")
    secret.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as hidden, secret.open() as held:
        hidden.bind(f"\0{name}")
        hidden.listen()
        os.set_inheritable(held.fileno(), True)
        os.environ[TOKEN] = "SECRET"
        words = {"port": str(server.getsockname()[1]), "name": name, "secret": str(secret), "folder": str(folder)}
        try:
            with Sandbox(BOUNDS, LOADED) as sandbox:
                yield Target({**words, "parent": str(os.getpid())}, sandbox)
            assert [path.name for path in folder.iterdir()] == ["secret.key"], f"the folder holds {sorted(folder.iterdir())}"
        finally:
            os.environ.pop(TOKEN, None)


def attack(one: Try, folder: Path) -> str:
    if missing():
        try:
            Sandbox()
        except SandboxError:
            return f"refused: {missing()}"
        raise AssertionError("started where it cannot lock")
    with target(folder) as aim:
        output = aim.attempt(one)
    return (output.error or output.text.strip())[:100].replace(str(os.getpid()), "PARENT")


ATTACKS = [Attack("sandbox", f"code {one.name}", partial(attack, one)) for one in TRIES]
