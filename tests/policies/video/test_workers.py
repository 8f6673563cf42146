"""Decoding beside the policy: the same frames, errors that arrive, and workers that die or fall silent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request, Video
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.video.decode import fetch
from mmrl.policies.video.input import VideoInput
from mmrl.policies.video.sampling import FramePlan
from mmrl.policies.video.settings import VideoSettings
from mmrl.policies.video.workers import Worker, Workers
from tests.support.text_policies import make
from tests.support.videos import even, write_video

SILENT = (sys.executable, "-c", "import time; time.sleep(60)")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_video(tmp_path_factory.mktemp("clips") / "even.mp4", even(50), size=(128, 64))


@pytest.fixture
def workers():
    found = Workers(1, timeout=30.0)
    yield found
    for worker in found._workers:
        worker.stop()


def test_workers_decode_what_is_decoded_here(clip, workers):
    wishes = [Video(clip, frames=2 + 2 * i) for i in range(4)]
    futures = [workers.ask(wish, FramePlan(), True) for wish in wishes]
    for wish, future in zip(wishes, futures, strict=True):
        mine, theirs = fetch(wish, FramePlan()), future.result(30)
        assert np.array_equal(mine.pixels, theirs.pixels)
        assert (mine.times, mine.step, mine.seconds, mine.digest) == (theirs.times, theirs.step, theirs.seconds, theirs.digest)


def test_what_is_wrong_with_a_clip_arrives_and_the_worker_lives_on(clip, workers):
    futures = [workers.ask(Video(source), FramePlan(), True) for source in ("gone.mp4", __file__, clip)]
    with pytest.raises(FileNotFoundError, match=r"no video .*gone\.mp4"):
        futures[0].result(30)
    with pytest.raises(ValueError, match="cannot be opened"):
        futures[1].result(30)
    pid = workers._workers[0].process.pid
    assert len(futures[2].result(30).times) == 4
    assert workers._workers[0].process.pid == pid


def test_a_worker_that_is_killed_gives_an_error_and_is_replaced(clip, workers):
    workers.ask(Video(clip), FramePlan(), True).result(30)
    process = workers._workers[0].process
    os.kill(process.pid, signal.SIGSTOP)
    future = workers.ask(Video(clip), FramePlan(), True)
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"the process that decoded '.*even\.mp4' died \(exit -9\)"):
        future.result(30)
    assert len(workers.ask(Video(clip), FramePlan(), True).result(30).times) == 4


def test_a_silent_worker_is_stopped_after_its_time(clip):
    workers = Workers(1, timeout=0.3, command=SILENT)
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=r"the process that decoded '.*even\.mp4' said nothing for 0\.3 s and was stopped"):
        workers.ask(Video(clip), FramePlan(), True).result(30)
    assert time.monotonic() - started < 20
    assert workers._workers[0].process.poll() is not None


def test_a_rollout_tells_whose_clip_killed_the_worker(tiny, clip):
    policy = make(tiny("qwen3_vl"), video=VideoSettings(workers=1, timeout=0.5))
    policy.encode.videos.workers.command = SILENT
    prompt = Prompt("p7", "when?", (Video(clip),), columns={"file_row": "clips.jsonl:3"})
    with pytest.raises(RuntimeError, match=r"prompt 'p7' \(clips\.jsonl:3\): the process that decoded"):
        policy.rollout([Request(prompt, 1, 0)])


def test_rollouts_with_and_without_workers_are_the_same(tiny, clip):
    requests = [Request(Prompt(str(i), "when?", (Video(clip, frames=2 + 2 * i),)), 2, i, seed=i) for i in range(3)]
    drawn = [make(tiny("qwen3_vl"), video=VideoSettings(workers=n)).rollout(requests) for n in (0, 2)]
    assert drawn[0].groups == drawn[1].groups
    assert np.array_equal(drawn[0].recorded[ROLLOUT_LOGPROBS].numpy(), drawn[1].recorded[ROLLOUT_LOGPROBS].numpy())


def test_clips_that_were_asked_for_are_not_decoded_again(clip, monkeypatch):
    videos = VideoInput(VideoSettings(workers=1), FramePlan())
    asked: list[Video] = []
    ask = videos.workers.ask
    monkeypatch.setattr(videos.workers, "ask", lambda video, *rest: (asked.append(video), ask(video, *rest))[1])
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
    (future,) = policy.encode.videos._asked.values()
    assert future.result(30).digest
    policy.rollout([Request(prompt, 1, 0)])
    assert not policy.encode.videos._asked and len(policy.encode.videos.cache) == 1


def test_workers_import_no_torch():
    code = "import sys; import mmrl.policies.video.worker; sys.exit('torch' in sys.modules)"
    import subprocess

    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[3]).returncode == 0


def test_stopping_ends_the_process_and_does_nothing_without_one():
    worker = Worker(5.0)
    worker.stop()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    Worker(5.0, process=process).stop()
    assert process.poll() is not None
