"""Teachers behind servers: what they tell is what the same model says here, and an answer that cannot be right stops the run."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.views import Privileged
from mmrl.app.commands.plan import draw_up
from mmrl.app.config import run as configs
from mmrl.app.modality.taught import refuse_blind
from mmrl.app.run.build import Job, build
from mmrl.core.readings import LOGPROBS, TEACHER_LOGPROBS
from mmrl.core.types import Prompt, Reading, Request, Rollouts, Target
from mmrl.engine.generator import text_parts
from mmrl.engine.server import EngineServer, serve_command
from mmrl.engine.teachers import AskedTeacher, look_at_teachers
from mmrl.engine.wire.completions import EngineMismatchError
from mmrl.lab.tiny.text import beeps, vlms
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.settings import EngineConfig, TextTeacher
from mmrl.policies.video.sampling import VideoSettings
from mmrl.training.checkpoints.state import copy_state
from mmrl.training.stopping import TrainingStoppedError
from tests.engine.servers import FPS, build_wide, environment, family, prompts
from tests.support.fake_engines import FakeEngine, engines
from tests.support.ports import free_ports
from tests.support.sounds import tone, write_wav
from tests.support.text_policies import picture, text_trace

Tiny = Callable[[str], str]
CLOSE = 1e-4
VIEWS = {"v": Privileged(column="told", media="full")}
SEEN = Reading("logprobs", "teacher", "v")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another model of the same tokens."""
    return str(vlms.build("qwen2_5_vl", tmp_path_factory.mktemp("other") / "taught", seed=1))


@pytest.fixture(scope="module")
def server(other: str) -> Iterator[FakeEngine]:
    with engines(other) as (engine,):
        yield engine


def policy_of(folder: str, *teachers: TextTeacher, **settings: Any) -> TextPolicy:
    settings.setdefault("sampling", Sampling(max_new_tokens=6))
    config = TextPolicyConfig(folder, teachers=teachers, video=VideoSettings(fps=FPS, workers=0), **settings)
    return TextPolicy(config, views=VIEWS, parts=text_parts(config))


def served(model: str, *url: str, **settings: Any) -> TextTeacher:
    return TextTeacher("far", model=model, url=url, **{"timeout_s": 20.0, **settings})


def shown(folder: Path) -> list[Prompt]:
    """Text, pictures and a clip; a teacher sees another picture of some, and is told something."""
    more = {"full": picture(9, 120, 90), "told": "blue"}
    return [replace(one, columns=more if i == 1 else {}) for i, one in enumerate(prompts(folder))]


def written(policy: TextPolicy, asked: list[Prompt]) -> Rollouts:
    return policy.rollout([Request(prompt, 2, i, seed=5 + i) for i, prompt in enumerate(asked)])


def without_bans(policy: TextPolicy) -> TextPolicy:
    """A policy whose local teacher may say every token, as a server's does."""
    for one in policy.teachers.others.values():
        one.net.banned.zero_()
    return policy


def tell_alike(far: TextPolicy, near: TextPolicy, asked: list[Prompt]) -> Tensor:
    """Whether a served teacher and the same one here say the same of rows, plainly and behind a view; what they say."""
    rollouts = written(near, asked)
    trace = text_trace(rollouts.trace).tell(["seen", *[""] * (len(rollouts.action_mask) - 1)])
    found, wanted = (one.read(trace, [TEACHER_LOGPROBS, SEEN], rollouts.action_mask) for one in (far, near))
    for reading in (TEACHER_LOGPROBS, SEEN):
        torch.testing.assert_close(found[reading], wanted[reading], atol=CLOSE, rtol=0)
        assert not found[reading][~rollouts.action_mask].any()
    assert float((found[SEEN] - found[TEACHER_LOGPROBS]).abs().max()) > 100 * CLOSE, "the view is sent"
    return found[TEACHER_LOGPROBS]


def test_a_served_teacher_is_the_one_that_is_here(server: FakeEngine, tiny: Tiny, other: str, tmp_path: Path):
    far = policy_of(tiny("qwen2_5_vl"), served(other, server.url))
    near = without_bans(policy_of(tiny("qwen2_5_vl"), TextTeacher("near", model=other, dtype="float32")))
    before = len(server.told()["wrote"])
    tell_alike(far, near, shown(tmp_path))
    assert len(server.told()["wrote"]) > before and not far.teachers.others
    holes = written(near, shown(tmp_path)[:1])
    mask = holes.action_mask & (torch.arange(holes.action_mask.shape[1]) % 2 == 0)
    assert not far.read(holes.trace, [TEACHER_LOGPROBS], mask)[TEACHER_LOGPROBS][~mask].any()


def test_the_likeliest_tokens_of_a_served_teacher_are_compared(server: FakeEngine, tiny: Tiny, other: str, tmp_path: Path):
    """By definition, from all that the same model says here; beside a teacher that is here, for other rows."""
    far = policy_of(tiny("qwen2_5_vl"), served(other, server.url), TextTeacher("self", model=tiny("qwen2_5_vl"), dtype="float32"))
    near = without_bans(policy_of(tiny("qwen2_5_vl"), TextTeacher("near", model=other, dtype="float32")))
    asked = [replace(one, columns={"teacher": ("far", "self")[i % 2]}) for i, one in enumerate(shown(tmp_path)[:3])]
    rollouts, top = written(far, asked), 4
    trace, mask = text_trace(rollouts.trace), rollouts.action_mask
    readings = [Reading(name, target=Target("teacher", beta=0.5, top=top)) for name in ("divergence", "overlap")]
    kl, agreement = (one for one in far.read(trace, readings, mask).values())
    grads = torch.autograd.grad(kl.sum(), far.parameters(), allow_unused=True)
    assert max(float(one.abs().max()) for one in grads if one is not None) > 0
    theirs = torch.tensor([int(index) % 2 == 1 for index in trace.prompt_index])
    assert not kl[theirs].any() and torch.allclose(agreement[theirs & mask.any(1)][mask[theirs]], torch.ones(()))
    for row in (~theirs).nonzero()[:, 0].tolist():
        every = trace.take(torch.tensor([row]))
        for place in range(int(trace.lengths[row])):
            s, t = (full(one, every, place) for one in (far, near.teachers.others[0]))
            ids = t.topk(top).indices.tolist()
            p, q = (torch.cat([one.exp()[ids], 1 - one.exp()[ids].sum(0, keepdim=True)]) for one in (s, t))
            q = torch.where(torch.tensor([*(bool(far.net.banned[one]) for one in ids), False]), 0, q)
            q = q / q.sum()
            m = (p + q) / 2
            wanted = sum(0.5 * torch.where(one > 0, one * (one / m).log(), 0.0).sum() for one in (p, q))
            assert float(kl[row, place]) == pytest.approx(float(wanted), abs=CLOSE)
            assert float(agreement[row, place]) == pytest.approx(float(torch.minimum(p, q).sum()), abs=CLOSE)


def full(policy: TextPolicy, trace: Any, place: int) -> Tensor:
    """All log-probabilities of a row's token, in float64."""
    width = len(policy.net.banned)
    own = replace(trace, prompts=tuple(policy.encode(one.prompt, one.seed) for one in trace.prompts), family=policy.family)
    tokens = own.tokens.expand(width, -1).clone()
    tokens[:, place] = torch.arange(width)
    many = replace(
        own.take(torch.zeros(width, dtype=torch.long)), tokens=tokens[:, : place + 1], lengths=torch.full((width,), place + 1)
    )
    mask = torch.zeros(width, place + 1, dtype=torch.bool)
    mask[:, place] = True
    with torch.no_grad():
        return policy.read(many, [LOGPROBS], mask)[LOGPROBS][:, place].double()


LIES: dict[str, tuple[Any, str]] = {
    "one place too few": ("cut", "does not tell what tokens are worth at each of the"),
    "NaN": ({"TOKEN": {"logprob": float("nan")}}, "the log-probability nan, which is none"),
    "above 0": ({"TOKEN": {"logprob": 0.5}}, r"the log-probability 0\.5, which is none"),
    "a text": ({"TOKEN": {"logprob": "-1"}}, "the log-probability -1, which is none"),
    "minus infinity": ({"TOKEN": {"logprob": -9999.0}}, r"the log-probability -9999\.0, which is none"),
    "another token": ({"0": {"logprob": -1.0}}, "told not what the token there is worth"),
    "no token": ({}, "told not what the token there is worth"),
    "nothing": (None, "with what is none"),
    "one more than was asked for": ({"TOKEN": {"logprob": -1.0}, "0": {"logprob": -1.0}}, "told of 2 tokens at a place"),
    "no number": ({"TOKEN": {}}, "with what is none"),
}


def test_an_answer_that_cannot_be_right_stops_the_run(
    server: FakeEngine, tiny: Tiny, other: str, tmp_path: Path, subtests: pytest.Subtests
):
    policy = policy_of(tiny("qwen2_5_vl"), served(other, server.url))
    rollouts = written(policy, shown(tmp_path)[:1])
    orders = {name: ({"told": lie}, words) for name, (lie, words) in LIES.items()}
    orders |= {
        "other weights": ({"wrong_version": 9}, "wrote with the weights somebody-else"),
        "another prompt": ({"other_prompt": 9}, "and they differ from place"),
        "another request": ({"other_request": 9}, "the answer to another request"),
    }
    for name, (order, words) in orders.items():
        server.order(**order)
        with subtests.test(name), pytest.raises(EngineMismatchError, match=words):
            policy.read(rollouts.trace, [TEACHER_LOGPROBS], rollouts.action_mask)
    server.order(abort=1)
    assert policy.read(rollouts.trace, [TEACHER_LOGPROBS], rollouts.action_mask)[TEACHER_LOGPROBS].any(), "it is asked again"


def test_a_server_is_looked_at_before_weights_load(
    server: FakeEngine, tiny: Tiny, other: str, tmp_path: Path, subtests: pytest.Subtests
):
    named_alike = shutil.copytree(tiny("qwen2_5_vl"), tmp_path / "taught")
    words = json.loads((named_alike / "tokenizer.json").read_text())
    known = words["model"]["vocab"]
    known["W"], known["h"] = known["h"], known["W"]
    (named_alike / "tokenizer.json").write_text(json.dumps(words))
    cases: dict[str, tuple[TextTeacher, int, str]] = {
        "other model": (served(tiny("qwen2_5_vl"), server.url), 0, "url: the server at .* serves '.*taught', and the run needs"),
        "another tokenizer": (served(str(named_alike), server.url), 0, "0.url: the server at .* has another vocabulary than"),
        "no folder": (served("./gone", server.url), 0, "policy.teachers.0.model: there is no folder './gone'"),
        "more than it tells": (served(other, server.url), 21, "tells of 20 likely .*top is 21: start it with --max-logprobs 21"),
        "nobody": (served(other, "http://127.0.0.1:9"), 0, "0.url: nothing answers at .* cannot be reached .*: start the server"),
    }
    for name, (teacher, likely, said) in cases.items():
        with subtests.test(name), pytest.raises((ValueError, FileNotFoundError), match=said):
            look_at_teachers(TextPolicyConfig(tiny("qwen2_5_vl"), teachers=(teacher,)), likely=likely)
    look_at_teachers(TextPolicyConfig(tiny("qwen2_5_vl"), teachers=(served(other, server.url),)), likely=20)


def test_sounds_are_not_sent_to_a_teacher(tmp_path: Path):
    folder, sound = str(beeps.build(tmp_path / "beeps")), write_wav(tmp_path / "a.wav", [tone(1.0)])
    shown = [Prompt("sound", "when?", (sound,))]
    refuse_blind(TextPolicyConfig(folder, teachers=(TextTeacher("near", model=folder),)), shown)
    with pytest.raises(ValueError, match=r"'far' \(.*beeps on a server\) takes no audio, and the prompts show some"):
        refuse_blind(TextPolicyConfig(folder, teachers=(served(folder, "http://127.0.0.1:9"),)), shown)


def test_a_run_waits_for_a_teacher_that_is_started_again(tiny: Tiny, other: str):
    port = free_ports(1)
    teacher = f"{{name = 'far', model = '{other}', url = ['http://127.0.0.1:{port}'], timeout_s = 60.0}}"
    term = 'algorithm={preset = "opd", group_size = 2, objective = [{kind = "FollowTeacher", form = "sampled", beta = 1.0}]}'
    few = ("steps=3", "prompts_per_step=2", "evaluation.num_prompts=0", "policy.sampling.max_new_tokens=5", "policy.lora.rank=2")
    words = [term, f"policy.teachers=[{teacher}]", f"policy.model={tiny('qwen2_5_vl')}", *few]
    job, again = list[Job](), ExitStack()
    with again:
        with engines(other, port=port):
            job += [build(configs.load("tiny/image", words)) for _ in range(2)]
            metrics = [job[0].trainer.step()]
        starting = threading.Timer(1.0, lambda: again.enter_context(engines(other, port=port)))
        starting.start()
        metrics.append(job[0].trainer.step())
        state = copy_state(job[0].trainer.state_dict())
        metrics.append(job[0].trainer.step())
        job[1].trainer.load_state_dict(state)
        job[1].trainer.step()
        starting.join()
    assert all(0 < one["teacher/agreement"] < 1 and one["policy/grad_norm"] > 0 for one in metrics)
    assert all(map(torch.equal, *(one.policy.parameters() for one in job)))
    policy = job[0].policy
    assert isinstance(policy, TextPolicy)
    asked = policy.teachers.asked[0]
    assert isinstance(asked, AskedTeacher)
    asked.fleet.settings = replace(asked.fleet.settings, timeout_s=0.5)
    with pytest.raises(TrainingStoppedError, match=r"step 4: no engine answers .*or name others in policy\.teachers\.0\.url"):
        job[0].trainer.step()
    plan = draw_up(configs.load("tiny/image", words))
    assert not any("teacher" in name for name in plan.memory.stays) and plan.readings == ["logprobs of teacher"]


@pytest.mark.engine
def test_vllm_tells_what_the_same_model_says_here(tmp_path: Path):
    """The real one, in its own environment."""
    student, other = (build_wide(family(), tmp_path / name, seed) for seed, name in enumerate(("student", "taught")))
    settings = EngineConfig(environment=str(environment()), sync="broadcast", cache_mb=256, max_length=2048)
    command = partial(serve_command, TextPolicyConfig(other, video=VideoSettings(fps=FPS)), settings)
    server = EngineServer(command, 0, tmp_path, 0)
    try:
        far = policy_of(student, served(other, server.url))
        near = without_bans(policy_of(student, TextTeacher("near", model=other, dtype="float32")))
        tell_alike(far, near, shown(tmp_path))
        rollouts = written(near, shown(tmp_path)[:2])
        target = [Reading(name, target=Target("teacher", beta=0.5, top=4)) for name in ("divergence", "overlap")]
        kl, agreement = far.read(rollouts.trace, target, rollouts.action_mask).values()
        assert float(kl.max()) > 0.01 and 0 < float(agreement[rollouts.action_mask].max()) <= 1
    finally:
        server.close()
