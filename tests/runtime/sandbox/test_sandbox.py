"""What the sandbox gives to code, takes from it and keeps; tests/attacks/sandbox.py tries to get out of it."""

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mmrl.runtime.sandbox import sandbox as module
from mmrl.runtime.sandbox.lock import missing
from mmrl.runtime.sandbox.sandbox import MODULES, Pixels, Sandbox, SandboxError, SandboxLimits

needs_lock = pytest.mark.skipif(bool(missing()), reason=f"no sandbox here: {missing()}")
RED_BLUE = Pixels(2, 1, b"\xff\0\0\0\0\xff")
SLOW = SandboxLimits(seconds=60.0, text=20, pictures=2, pixels=100)


@pytest.fixture(scope="module")
def box():
    with Sandbox(SLOW) as found:
        yield found


@needs_lock
def test_code_prints_and_keeps_its_variables(box: Sandbox):
    assert box.run("x = 6").text == ""
    assert box.run("print(x * 7)").text == "42\n"


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
def test_it_outlives_the_thread_that_used_it_first():
    with Sandbox() as box:
        thread = threading.Thread(target=box.run, args=("x = 5",))
        thread.start()
        thread.join()
        assert box.run("print(x)").text == "5\n"


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
def test_a_module_that_cannot_be_loaded_is_named():
    with pytest.raises(SandboxError, match="did not start: No module named 'no_such_module'"):
        Sandbox(modules=[*MODULES, "no_such_module"]).run("1")


@needs_lock
def test_a_module_that_starts_threads_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SandboxError, match="started threads, which the lock would not cover"):
        Sandbox(modules=["starts_a_thread"]).run("1")


def test_a_machine_without_a_lock_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "missing", lambda: "it needs Linux, and this is Darwin")
    with pytest.raises(SandboxError, match="no sandbox on this machine: it needs Linux, and this is Darwin"):
        Sandbox()


def test_deaths_have_words():
    found = [module.death(code) for code in (3, -signal.SIGSYS, -99)]
    assert found == ["ended with exit code 3", "was killed by SIGSYS", "was killed by signal 99"]


@pytest.mark.parametrize("size", [(0, 1, b""), (2, 1, b"abc"), (-1, -1, b"abc")])
def test_pixels_fit_their_size(size: tuple[int, int, bytes]):
    with pytest.raises(ValueError, match=f"are no picture of {size[0]} x {size[1]} pixels"):
        Pixels(*size)


@needs_lock
def test_so_many_run_in_a_process_and_no_more(monkeypatch: pytest.MonkeyPatch):
    with Sandbox() as first, Sandbox() as second:
        first.run("1")
        monkeypatch.setattr(module, "MOST", len(module._RUNNING))
        with pytest.raises(SandboxError, match="which are the most: let fewer episodes run at a time"):
            second.run("1")
        first.close()
        assert second.run("print(1)").text == "1\n"
