"""The page over real HTTP on this machine: who gets it, what a request can do, and what it reads of a run that grows."""

import fcntl
import gzip
import json
import math
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from mmrl.app.report.data import load
from mmrl.app.report.page import script_hash
from mmrl.app.run.folder import RunDir
from mmrl.app.watch.page import MOST_NAMES, MOST_POINTS, PROMPTS_SHOWN, RECENT, Feed, MetricTail, Tail
from mmrl.app.watch.page import Page as Watched
from mmrl.app.watch.server import Server, greeting, watch
from tests.app.report.test_page import row
from tests.security.test_pages import Page, evil_run
from tests.support.each import for_each
from tests.support.refused import refused
from tests.support.runs import write_run

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def serving(run: RunDir) -> Iterator[Server]:
    server = Server(run, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(write_run(tmp_path_factory.mktemp("watched") / "run", steps=20, num_prompts=4)) as found:
        yield found


@contextmanager
def trained_into(run: RunDir) -> Iterator[None]:
    """Another process holds the run's lock, as a trainer does."""
    command = [sys.executable, "-c", HOLD, str(run.path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield
        process.communicate("")


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and body of an answer; `{}` in the path is the token."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path.replace("{}", server.token), headers={k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_the_page_loads_nothing_and_runs_only_its_own_script(server: Server):
    status, headers, body = ask(server, "/{}/")
    policy = headers["content-security-policy"]
    assert status == 200 and policy.startswith("default-src 'none'") and f"script-src '{script_hash('watch.js')}'" in policy
    assert not re.search(r"https?:", policy) and "unsafe-eval" not in policy and "frame-ancestors 'none'" in policy
    text = body.decode()
    assert text.count("<script") == 1 and not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    assert "20 of 20" in text and "finished" in text


def test_only_what_changed_is_sent(server: Server):
    _, headers, body = ask(server, "/{}/feed", Accept_Encoding="gzip")
    assert headers["content-encoding"] == "gzip"
    parts = json.loads(gzip.decompress(body))
    assert set(parts) == {"state", "curves", "samples", "warnings", "timing"}
    seen = [part["mark"] for name, part in parts.items() if name != "curves"]
    assert set(json.loads(ask(server, f"/{{}}/feed?seen={','.join(seen)}")[2])) == {"curves"}


def test_a_step_is_on_the_page_at_the_next_look(server: Server):
    run = server.run
    marks = ",".join(part["mark"] for part in json.loads(ask(server, "/{}/feed")[2]).values())
    assert json.loads(ask(server, f"/{{}}/feed?seen={marks}")[2]) == {}
    run.append(21, {"reward/total": 0.7, "time/step_s": 0.5})
    assert {"state", "curves", "timing"} == set(json.loads(ask(server, f"/{{}}/feed?seen={marks}")[2]))


def test_pictures_come_by_their_name_and_a_link_among_them_is_not_followed(server: Server):
    name = next(path.name for path in server.run.media.iterdir())
    status, headers, body = ask(server, f"/{{}}/media/{name}")
    assert (status, headers["content-type"]) == (200, "image/png") and body == (server.run.media / name).read_bytes()
    link = server.run.media / ("b" * 20 + ".png")
    link.symlink_to(server.run.config_file)
    assert ask(server, f"/{{}}/media/{link.name}")[0] == 404


@for_each(
    "path, host, wanted",
    [
        *[("/{}/", host, 403) for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:127.0.0.1", "[::2]")],
        *[("/{}/", host, 403) for host in ("0.0.0.0", "", "a@127.0.0.1")],
        *[("/{}/", host, 200) for host in ("localhost:8600", "127.0.0.1", "[::1]:9", "LOCALHOST")],
        *[(path, "localhost", 403) for path in ("/", "/feed", "/x/", "/{}x/", "/x{}/", "/%7B%7D/", "/%FF/")],
        *[("/{}/" + path, "localhost", 404) for path in ("config.toml", "samples/train-000001.jsonl", "report.html")],
        *[("/{}/media/" + path, "localhost", 404) for path in ("../config.toml", "%2e%2e/config.toml", "", "/etc/passwd")],
        *[(path, "localhost", 404) for path in ("/{}", "/{}/media/" + "a" * 20 + ".png")],
    ],
)
def test_only_the_page_and_its_pictures_are_served_to_this_machine_under_the_token(
    server: Server, path: str, host: str, wanted: int
):
    status, _, body = ask(server, path, Host=host)
    assert status == wanted, (status, body)
    assert status == 200 or (body.decode().count("\n") == 1 and server.token not in body.decode())


def test_requests_that_are_none_are_refused(server: Server):
    assert ask(server, "/{}/" + "a" * 70_000)[0] == 414
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "NONSENSE"):
        assert ask(server, "/{}/", method)[0] == 405
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        assert b"no request" in connection.recv(10_000)
    assert ask(server, "/{}/")[0] == 200


def test_the_buttons_ask_the_run_by_a_file(server: Server):
    run, origin = server.run, f"http://127.0.0.1:{server.port}"
    status, _, body = ask(server, "/{}/stop", "POST", Origin=origin)
    assert status == 409 and b"no process trains" in body
    with trained_into(run):
        for what in ("stop", "checkpoint"):
            assert ask(server, f"/{{}}/{what}", "POST", Origin=origin)[0] == 200
            assert ">Stop and save</button>" in json.loads(ask(server, "/{}/feed")[2])["state"]["html"]
            assert run.take_requests() == {what}
        assert ask(server, "/{}/stop", "POST")[0] == 403
        for other in ("http://evil.example", "null", f"https://127.0.0.1:{server.port}"):
            assert ask(server, "/{}/stop", "POST", Origin=other)[0] == 403
        assert ask(server, "/x/stop", "POST", Origin=origin)[0] == 403
        assert ask(server, "/{}/stop", "POST", Origin="http://evil.example", Host="evil.example")[0] == 403
        assert ask(server, "/{}/../stop", "POST", Origin=origin)[0] == 404
        assert ask(server, "/{}/stop")[0] == 404
        with (run.path / ".lock").open("r+") as file, pytest.raises(BlockingIOError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert run.take_requests() == frozenset()


def test_looking_leaves_the_folder_as_it_is(server: Server):
    def files() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in server.run.path.rglob("*")}

    before = files()
    for path in ("/{}/", "/{}/feed", "/x"):
        ask(server, path)
    assert files() == before


def test_hostile_words_are_text(tmp_path: Path):
    run = evil_run(tmp_path / "<img src=x onerror=alert(1)>")
    with serving(run) as server:
        body = ask(server, "/{}/")[2].decode()
        page = Page(body)
        parts = json.loads(ask(server, "/{}/feed")[2])
    own = [one for one in page.wrong if not re.fullmatch(r"img src=media/[0-9a-f]{20}\.png", one)]
    assert own == []
    assert len(page.scripts) == 1 and "alert" not in page.scripts[0]
    assert "<script>alert(1)</script>" in "".join(page.words)
    for part in parts.values():
        assert Page(part["html"]).scripts == []


def test_two_on_one_port_and_a_folder_without_a_run_are_a_sentence(server: Server, tmp_path: Path):
    with pytest.raises(ValueError, match=f"cannot listen on port {server.port} of '127.0.0.1'.*choose another port"):
        watch(server.run.path, server.port)
    with pytest.raises(FileNotFoundError, match="give the output folder of a run"):
        watch(tmp_path, 0)


def test_the_greeting_has_the_address_and_the_tunnel(server: Server):
    first, second, _ = greeting(Path("run"), server)
    assert server.address in first and re.search(rf"ssh -L {server.port}:127\.0\.0\.1:{server.port} \S+@\S+,", second)
    assert len(server.token) >= 32 and os.path.basename(server.address) == ""


def test_a_half_written_line_is_left_until_it_is_whole_and_what_was_read_is_not_read_again(tmp_path: Path):
    """Bytes in front of the offset may change unseen."""
    file = tmp_path / "metrics.jsonl"
    tail = Tail(file)
    assert tail.fresh() == []
    file.write_text('{"step": 1}\n{"step": 2, "re')
    assert tail.fresh() == [{"step": 1}]
    assert tail.fresh() == []
    with file.open("r+") as stream:
        stream.write("x")
        stream.seek(0, os.SEEK_END)
        stream.write('ward": 0.5}\n')
    assert tail.fresh() == [{"step": 2, "reward": 0.5}] and tail.num_bad == 0


@pytest.mark.parametrize("text", ["no json", "[1]", "{}", '{"step": "x"}', '{"step": NaN}', "[" * 100_000, "\x00\xff"])
def test_lines_that_are_none_are_counted_and_left_out(tmp_path: Path, text: str):
    file = tmp_path / "metrics.jsonl"
    file.write_text(f'{{"step": 1}}\n{text}\n{{"step": 2}}\n', encoding="latin-1")
    tail = Tail(file)
    assert [line["step"] for line in tail.fresh()] == [1, 2] and tail.num_bad == 1


def test_a_file_that_was_cut_or_written_anew_is_another(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n')
    tail = Tail(file)
    assert not tail.is_another()
    tail.fresh()
    assert not tail.is_another()
    os.truncate(file, 12)
    assert tail.is_another()
    tail = Tail(file)
    tail.fresh()
    (fresh := tmp_path / "metrics.jsonl.new").write_text('{"step": 1}\n' * 3)
    os.replace(fresh, file)
    assert tail.is_another()
    file.unlink()
    assert tail.is_another()


def test_a_long_series_is_means_of_neighbouring_lines():
    series, steps = MetricTail(), 3 * MOST_POINTS
    for step in range(1, steps + 1):
        series.add({"step": step, "a": float(step), **({"b": 1.0} if step == 2 else {})})
    # 120 points of 1, then 61 of 2, then 61 of 4: two halvings
    assert series.width == 4 and len(series.lines()) == steps // 4
    first, second, *_, last = series.lines()
    assert first == {"step": 4, "a": (1 + 2 + 3 + 4) / 4, "b": 1.0} and second == {"step": 8, "a": 6.5}
    assert last["step"] == steps
    series.add({"step": steps + 1, "a": 7.0})
    assert series.lines()[-1] == {"step": steps + 1, "a": 7.0}


def test_what_is_not_finite_leaves_the_means_and_names_are_bounded():
    series = MetricTail()
    for step, value in enumerate(["NaN", 1.0, "Infinity", [3], None, {}, "1e400"], start=1):
        series.add({"step": step, "a": value})
    found = [line["a"] for line in series.lines()]
    assert found[1] == 1.0 and all(math.isnan(value) for i, value in enumerate(found) if i != 1)
    series = MetricTail()
    for step in range(3):
        series.add({"step": step, **{f"{step}/{i}": 1.0 for i in range(MOST_NAMES)}})
    assert len({name for line in series.lines() for name in line} - {"step"}) == MOST_NAMES


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return write_run(tmp_path_factory.mktemp("watched") / "run", steps=40, num_prompts=8)


def grown(folder: Path, steps: int) -> RunDir:
    run = RunDir.create(folder)
    run.config_file.write_text('steps = 20000\n[policy]\nmodel = "m"\n')
    numbers = {f"policy/{name}": 0.5 for name in "abcdefghijklmnopqrst"}
    lines = (
        {"step": step, "reward/total": step / steps, "reward/iou": 0.5, "time/step_s": 2.0, "time/rollout_s": 1.0, **numbers}
        for step in range(1, steps + 1)
    )
    run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_a_feed_says_how_far_the_run_is_and_how_long_it_will_take(tmp_path: Path):
    run = grown(tmp_path / "run", 30)
    feed = Feed(run)
    feed.follow()
    told = {"is_training": False, "step_s": 2.0, "seconds_left": (20000 - 30) * 2.0, "asked": ()}
    assert (feed.data().steps_done, feed.data().steps_wanted, feed.state(feed.data())) == (30, 20000, told)
    seen = feed.seen
    run.append(31, {"reward/total": 1.0})
    feed.follow()
    assert feed.seen != seen and feed.data().steps_done == 31
    for broken in ("stage = 3", "[[stage]]\nname = 'a'", "steps = 'x'", "[[stage]]\nkind = 'rl'\nsteps = 'x'"):
        run.config_file.write_text(broken)
        assert "config.toml is broken in steps or [[stage]]" in feed.data().notices[0] and feed.state(feed.data())
        refused(r"config.toml is broken in steps or \[\[stage\]\].*restore it, or delete it", load, run.path)


def test_a_run_that_resumes_is_read_from_its_start(tmp_path: Path):
    run = grown(tmp_path / "run", 30)
    feed = Feed(run)
    feed.follow()
    run.truncate(10)
    run.append(11, {"reward/total": 0.0})
    feed.follow()
    assert [line["step"] for line in feed.data().train] == list(range(1, 12))


def test_ten_thousand_steps_stay_small(tmp_path: Path):
    """A browser holds some ten times as much as the text: 50 MB would be 5 MB of it."""
    page = Watched(grown(tmp_path / "run", 10_000))
    parts = page.parts()
    assert sum(len(part.html) for part in parts.values()) < 1_500_000
    assert page.feed.width == 128 and len(page.feed.recent) == RECENT
    assert "10000 of 20000" in parts["state"].html and "mean of 128 steps" in parts["curves"].html


def test_only_the_parts_that_changed_get_another_mark(run: RunDir):
    page = Watched(run)
    before = page.parts()
    assert page.parts() == before
    with run.warnings_file.open("a") as stream:
        stream.write('{"step": 40, "level": "warning", "text": "step 40: the reward is flat"}\n')
    after = page.parts()
    assert {name for name in before if before[name].mark != after[name].mark} == {"state", "warnings"}
    assert "the reward is flat" in after["warnings"].html


def test_the_newest_samples_of_both_splits_are_shown_with_their_boxes(run: RunDir):
    html = Watched(run).parts()["samples"].html
    assert "training, step 40" in html and "held out, step 40" in html
    assert html.count("<article") == 4 + PROMPTS_SHOWN
    assert 'class="truth"' in html and 'class="predicted"' in html
    assert 'src="media/' in html and "base64" not in html


HALF_A_TURN = json.dumps(row("x", []).line | {"split": "train", "step": 3, "answer": None, "turns": [{"observation": None}]})


@pytest.mark.parametrize(
    "line", ["{}", "[]", "nothing", '{"step": 3}', '{"box_space": null, "prompt": "p", "media": [{}]}', HALF_A_TURN]
)
def test_a_damaged_samples_file_is_a_sentence(tmp_path: Path, line: str):
    run = grown(tmp_path / "run", 3)
    run.samples_file("train", 3).write_text(line + "\n")
    assert "train-000003.jsonl is damaged" in Watched(run).parts()["samples"].html


@pytest.mark.parametrize("name", ["config.toml", "changes.jsonl", "metrics.jsonl", "warnings.jsonl"])
def test_damaged_files_leave_a_page(tmp_path: Path, name: str):
    run = grown(tmp_path / "run", 3)
    (run.path / name).write_bytes(b'{"a": \x00\xff}\n{"step": 1, "text": 3, "key": 4}\n= [\n')
    assert "Curves" in Watched(run).html()


def test_a_page_follows_requests(run: RunDir):
    page = Watched(run)
    run.request_file("stop").touch()
    page.feed.follow()
    assert page.feed.state(page.feed.data())["asked"] == ("stop",)
    assert run.take_requests() == {"stop"} and run.take_requests() == frozenset()
