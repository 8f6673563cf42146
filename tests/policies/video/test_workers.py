"""Decoding beside the policy: the same frames, errors that arrive, and workers that die or fall silent."""

import logging
import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request, Video
from mmrl.policies import video
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.video.decode import Frames, fetch
from mmrl.policies.video.input import Decoder, VideoInput
from mmrl.policies.video.sampling import FrameRule, VideoSettings
from mmrl.runtime import workers
from mmrl.runtime.blame import UnavailableError
from mmrl.runtime.workers import SilenceTimer, WorkerError, stopped_by
from mmrl.training.checkpoints.save import Checkpoints
from tests.support.forked import run
from tests.support.refused import refused
from tests.support.text_policies import make
from tests.support.videos import even, write_video

ROOT = Path(__file__).parents[3]
ASLEEP = 0
"""In place of a signal: the worker sleeps."""
DOOM = """
import os, sys, time
from pathlib import Path
if "mmrl.runtime.workers" in " ".join(sys.orig_argv):
    from mmrl.policies.video import decode
    resize, seen = decode.resize, Path({seen!r})
    def interrupted(pieces, *rest):
        before = seen.read_text().split() if seen.exists() else []
        if len(before) < {times} and ({until!r} == "" or any(Path({until!r}).glob("step-*"))):
            seen.write_text(" ".join([*before, str(os.getpid())]))
            pieces = iter([next(pieces), *pieces])
            os.kill(os.getpid(), {number}) if {number} else time.sleep(60)
        return resize(pieces, *rest)
    decode.resize = interrupted
"""
"""A sitecustomize.py by which the real worker sends itself a signal between decoding frames and giving them away."""
Doomed = Callable[..., Path]


@pytest.fixture
def doomed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doomed:
    """(signal, how many clips, from when this folder holds a checkpoint on) -> the folder that brings it about."""

    def write(number: int, times: int, until: str = "") -> Path:
        folder = tmp_path / "doom"
        folder.mkdir()
        seen = str(tmp_path / "seen")
        (folder / "sitecustomize.py").write_text(DOOM.format(number=int(number), times=times, seen=seen, until=until))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))
        monkeypatch.setattr(workers, "SilenceTimer", WhenStopped) if number == signal.SIGSTOP else None
        return folder

    return write


class WhenStopped(SilenceTimer):
    """Runs out as soon as its process is stopped: how fast a machine is must not matter."""

    def _watch(self, timeout_s: float) -> None:
        while not self._is_over.wait(0.02):
            if stopped_by(self.process.pid) is not None:
                return super()._watch(0.0)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_video(tmp_path_factory.mktemp("clips") / "even.mp4", even(50), size=(128, 64))


@pytest.fixture
def decoding() -> Iterator[Callable[..., VideoInput]]:
    """(seconds that a worker may take) -> clips with one worker."""
    made: list[VideoInput] = []

    def make_input(timeout: float = 60.0) -> VideoInput:
        made.append(VideoInput(VideoSettings(workers=1, timeout=timeout), FrameRule()))
        return made[-1]

    yield make_input
    for one in made:
        if one.early.crew is not None:
            one.early.crew.close()


def result(videos: VideoInput, source: str) -> Frames:
    (frames,) = videos.begin(Video(source)).wait()
    return frames


def decoder(videos: VideoInput) -> Decoder:
    assert videos.early.crew is not None
    (found,) = videos.early.crew.workers
    assert isinstance(found, Decoder)
    return found


def test_workers_decode_what_is_decoded_here(clip, decoding):
    wishes, videos = [Video(clip, frames=2 + 2 * i) for i in range(4)], decoding()
    boards = [videos.begin(wish) for wish in wishes]
    for wish, board in zip(wishes, boards, strict=True):
        mine, (theirs,) = fetch(wish, FrameRule()), board.wait()
        assert np.array_equal(mine.pixels, theirs.pixels)
        assert (mine.times, mine.step, mine.seconds, mine.digest) == (theirs.times, theirs.step, theirs.seconds, theirs.digest)


def test_what_is_wrong_with_a_clip_arrives_and_the_worker_lives_on(clip, decoding):
    videos = decoding()
    refused(r"no video .*gone\.mp4", result, videos, "gone.mp4", error=FileNotFoundError)
    refused("cannot be opened", result, videos, __file__)
    pid = decoder(videos).process.pid
    assert len(result(videos, clip).times) == 4
    assert decoder(videos).process.pid == pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_clip_whose_worker_is_killed_or_stopped_is_decoded_by_a_new_one(clip, doomed, decoding, caplog, number):
    doomed(number, 1)
    with caplog.at_level(logging.WARNING, "mmrl"):
        frames = result(decoding(), clip)
    assert np.array_equal(frames.pixels, fetch(Video(clip), FrameRule()).pixels)
    assert number.name in caplog.text and caplog.text.rstrip().endswith("; a new process decodes the clip")
    assert "policy.video" not in caplog.text, "the remedies are for those who need one"


WHY = {
    signal.SIGKILL: r"was killed by SIGKILL: if memory ran out, lower policy\.video\.workers or policy\.video\.max_frames",
    signal.SIGSEGV: r"was killed by SIGSEGV: take the clip out of the data, or convert it to H\.264",
    signal.SIGSTOP: r"was stopped by SIGSTOP, said nothing for 60 s and was killed: find out what stops the run's",
}


@pytest.mark.parametrize("number", WHY)
def test_a_clip_whose_worker_ends_twice_is_named_with_the_signal_and_a_remedy(clip, doomed, decoding, number):
    doomed(number, 2)
    videos = decoding()
    refused(rf"the process that decoded '.*even\.mp4' {WHY[number]}", result, videos, clip, error=WorkerError)
    assert len(result(videos, clip).times) == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_the_terminal_sends_to_all_processes_is_not_for_the_worker(clip, doomed, decoding, number):
    doomed(number, 1)
    videos = decoding()
    assert len(result(videos, clip).times) == 4
    first = decoder(videos).process.pid
    result(videos, clip)
    assert decoder(videos).process.pid == first


def test_a_silent_worker_is_stopped_after_its_time(clip, doomed, decoding):
    doomed(ASLEEP, 2)
    videos = decoding(0.3)
    with pytest.raises(WorkerError, match=r"the process that decoded '.*even\.mp4' said nothing for 0\.3 s and was killed: take"):
        result(videos, clip)
    assert decoder(videos).process.pid is None


def test_a_worker_that_is_stopped_for_good_is_not_replaced(clip, doomed, decoding):
    doomed(ASLEEP, 1)
    videos = decoding()
    board = videos.begin(Video(clip))
    while decoder(videos).process.pid is None:
        time.sleep(0.01)
    videos.early.crew.close()
    refused("nothing waits", board.wait, error=UnavailableError)
    while decoder(videos).process.pid is not None:
        time.sleep(0.01)


def test_pipes_are_closed_by_the_thread_that_reads_them(clip, decoding):
    videos = decoding()
    result(videos, clip)
    connection = decoder(videos).process._connection
    assert connection is not None
    videos.early.crew.leave()
    assert not connection.closed
    videos.early.crew.close()
    while not connection.closed:
        time.sleep(0.01)


def test_a_rollout_tells_whose_clip_killed_the_worker(tiny, clip, doomed):
    doomed(ASLEEP, 2)
    policy = make(tiny("qwen3_vl"), video=VideoSettings(workers=1, timeout=0.5))
    prompt = Prompt("p7", "when?", (Video(clip),), columns={"file_row": "clips.jsonl:3"})
    with pytest.raises(WorkerError, match=r"prompt 'p7' \(clips\.jsonl:3\): the process that decoded"):
        policy.rollout([Request(prompt, 1, 0)])


def test_a_run_whose_workers_are_killed_ends_with_a_sentence_and_keeps_its_checkpoint(tmp_path, doomed):
    """No traceback and exit code 2: nothing of it is a bug of mmrl."""
    folder = tmp_path / "run"
    doomed(signal.SIGKILL, 1000, str(folder / "checkpoints"))
    words = ["steps=5", "save_every=1", "evaluate_every=0", "prompts_per_step=2", "algorithm.group_size=2"]
    words += ["policy.sampling.max_new_tokens=2", "policy.video.cache_mb=0", f"output={str(folder)!r}"]
    done = run("-m", "mmrl", "train", "tiny/clips", *words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    said = " ".join(done.stderr.split())
    assert "Traceback" not in said and said.count("mmrl: prompt ") == 1
    assert "the process that decoded " in said and ".mp4' was killed by SIGKILL: if memory ran out, lower" in said
    assert Checkpoints(folder / "checkpoints").newest_whole() is not None


def test_rollouts_with_and_without_workers_are_the_same(tiny, clip):
    requests = [Request(Prompt(str(i), "when?", (Video(clip, frames=2 + 2 * i),)), 2, i, seed=i) for i in range(3)]
    drawn = [make(tiny("qwen3_vl"), video=VideoSettings(workers=n)).rollout(requests) for n in (0, 2)]
    assert drawn[0].groups == drawn[1].groups
    assert np.array_equal(drawn[0].recorded[ROLLOUT_LOGPROBS].numpy(), drawn[1].recorded[ROLLOUT_LOGPROBS].numpy())


def test_clips_that_were_asked_for_are_not_decoded_again(clip, monkeypatch):
    videos = VideoInput(VideoSettings(workers=1), FrameRule())
    asked: list[Video] = []
    begin = videos.early.begin
    monkeypatch.setattr(videos.early, "begin", lambda video, *how: (asked.append(video), begin(video, *how))[1])
    clips = [Video(clip, shuffle=i) for i in range(3)]
    videos.ask(clips)
    videos.ask(clips)
    first, second = map(videos, clips[:2])
    assert asked == [Video(clip)], "frames in another order are the same frames"
    assert not np.array_equal(first.pixels, second.pixels)
    videos.ask(clips)
    assert len(asked) == 1


def test_prefetch_decodes_while_the_policy_does_something_else(tiny, clip):
    policy: TextPolicy = make(tiny("qwen3_vl"), video=VideoSettings(workers=1))
    prompt = Prompt("p", "when?", (Video(clip),))
    policy.prefetch([prompt])
    ((board, _),) = policy.encode.videos.early.begun.values()
    assert board.wait()[0].digest
    policy.rollout([Request(prompt, 1, 0)])
    assert not policy.encode.videos.early.begun and len(policy.encode.videos.cache) == 1


def test_workers_import_no_torch():
    names = [f"{video.__name__}.{module.name}" for module in pkgutil.iter_modules(video.__path__)]
    code = "import importlib, sys; [importlib.import_module(one) for one in sys.argv[1:]]; sys.exit('torch' in sys.modules)"
    words = [sys.executable, "-c", code, video.__name__, *names, workers.__name__]
    assert names and subprocess.run(words, check=False, cwd=ROOT).returncode == 0
