"""Completions that another process writes beside training: the same bits, the weights that a name says, and after a resume."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.views import SEEN
from mmrl.app.config.run import load
from mmrl.app.run.build import Job, build, with_local_model
from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS, WEIGHTS_VERSION
from mmrl.core.types import Reading, Rollouts, Target
from mmrl.engine.generator import VllmGenerator
from mmrl.lab.tiny.text import vlms
from mmrl.policies.shared.workers.crew import Job as Asked
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.write.generate import LocalGenerator, RemoteGenerator
from mmrl.runtime.blame import UnavailableError
from mmrl.training.checkpoints.state import copy_state
from tests.support.fake_engines import engines
from tests.support.refused import refused
from tests.support.text_policies import mixed, samples_of, text_trace
from tests.support.trainers import assert_resumes_ahead, weights

TINY = [
    "steps=3",
    "prompts_per_step=2",
    "evaluation.num_prompts=0",
    "policy.rollout_rows=3",
    "policy.lora.rank=2",
    "optimizer.lr=0.1",
    "policy.sampling.max_new_tokens=8",
    f"reward.0.use={Path(__file__).parents[3] / 'support' / 'even_letters.py'}",
]


def generator_of(job: Job) -> RemoteGenerator:
    assert isinstance(job.policy, TextPolicy) and isinstance(job.policy.generator, RemoteGenerator)
    return job.policy.generator


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    made = build(load("tiny/image", [*TINY, "ahead=1", "cluster.samplers=1"]))
    yield made
    made.trainer.producer.close()
    generator_of(made).close()


def test_steps_beside_training_equal_those_after_a_resume(job: Job):
    assert_resumes_ahead(job)


def test_another_process_writes_the_same_bits(job: Job, monkeypatch: pytest.MonkeyPatch):
    policy, generator = job.policy, generator_of(job)
    assert isinstance(policy, TextPolicy)
    job.trainer.producer.close()
    _, hold, _ = policy.publish()
    hold()
    asked, ask = list[Asked](), generator.ask
    monkeypatch.setattr(generator, "ask", lambda chunks: asked.extend(chunks) or ask(chunks))
    there = policy.rollout(mixed())
    assert len(asked) == 3, "chunks of three rows, whoever writes them"
    monkeypatch.setattr(policy, "generator", LocalGenerator(policy))
    here = policy.rollout(mixed())
    assert [one.token_ids for one in samples_of(there)] == [one.token_ids for one in samples_of(here)]
    assert torch.equal(there.recorded[ROLLOUT_LOGPROBS], here.recorded[ROLLOUT_LOGPROBS])
    monkeypatch.undo()
    held, generator.version = generator.version, generator.version + 1
    words = rf"was to use weights of version {held + 1}, and the memory .* holds {held} to {held}"
    try:
        refused(words, policy.rollout, mixed(), error=UnavailableError)
    finally:
        generator.version = held


@pytest.mark.parametrize(("where", "temperature"), [("here", 0.0), ("here", 1.0), ("in a sampler", 1.0)])
def test_weights_that_are_nan_are_a_sentence(job: Job, where: str, temperature: float, monkeypatch: pytest.MonkeyPatch):
    policy = job.policy
    assert isinstance(policy, TextPolicy)
    if where == "here":
        monkeypatch.setattr(policy, "generator", LocalGenerator(policy))
    kept = [weight.detach().clone() for weight in policy.parameters()]
    with torch.no_grad():
        for weight in policy.parameters():
            weight.fill_(torch.nan)
    policy.advance()
    if where == "in a sampler":
        _, hold, _ = policy.publish()
        hold()
    try:
        with pytest.raises(ValueError, match=r"the model's logits are NaN in \d+ of \d+ completions: look for weights that div"):
            policy.rollout(mixed(), Sampling(temperature=temperature, max_new_tokens=3))
    finally:
        with torch.no_grad():
            for weight, value in zip(policy.parameters(), kept, strict=True):
                weight.copy_(value)
        policy.advance()


MINE = """
from PIL import Image
from mmrl import Prompt

def load():
    shown = [Image.new("RGB", (64, 64), (60 * i, 0, 0)) for i in range(3)]
    return [Prompt(str(i), "Where?", (one,), columns={"teacher": "abc"[i], "solution": "blue"}) for i, one in enumerate(shown)]
"""
SAMPLED = '{kind = "FollowTeacher", form = "sampled", beta = 1.0, model = "%s"}'
SEES_MORE = '{kind = "FollowTeacher", model = "policy", view = {column = "solution"}}'
TERMS = ", ".join([*(SAMPLED % model for model in ("teacher", "ref", "ema")), SEES_MORE])
KEPT = 0.7
WORDS = [
    f'algorithm={{preset = "opd", group_size = 2, ema_decay = {{kind = "SteadyDecay", decay = {KEPT}}}, objective = [{TERMS}]}}',
    "data={use = './mine.py'}",
    "ahead=1",
    "steps=4",
    "prompts_per_step=3",
    "evaluation.num_prompts=0",
    "evaluate_every=0",
    "policy.lora.rank=2",
    "policy.sampling.max_new_tokens=6",
    "optimizer.lr=0.05",
]


@pytest.fixture(scope="module", params=["sampler", "engine"])
def taught(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("ahead")
    (folder / "mine.py").write_text(MINE)
    other = vlms.build("qwen3_vl", folder / "other", seed=1)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as servers:
        patch.chdir(folder)
        config = with_local_model(load("tiny/image", WORDS).config).policy
        assert isinstance(config, TextPolicyConfig)
        base = TextPolicy(config)
        moved(base, taught_by(base)).save(folder / "taught")
        (far,) = servers.enter_context(engines(str(other)))
        teachers = ", ".join(
            [
                f"{{name = 'a', model = '{other}', dtype = 'float32'}}",
                f"{{name = 'b', adapter = '{folder / 'taught'}'}}",
                f"{{name = 'c', model = '{other}', url = ['{far.url}'], timeout_s = 60.0}}",
            ]
        )
        writer = "cluster.samplers=1"
        if request.param == "engine":
            (engine,) = servers.enter_context(engines(config.model))
            writer = f'policy.engine.url=["{engine.url}"]'
        made = build(load("tiny/image", [*WORDS, writer, f"policy.model={config.model}", f"policy.teachers=[{teachers}]"]))
        yield made
        made.trainer.producer.close()
        assert isinstance(made.policy, TextPolicy) and isinstance(made.policy.generator, RemoteGenerator | VllmGenerator)
        made.policy.generator.close()


def taught_by(policy: TextPolicy) -> list[Tensor]:
    """The weights of the adapter that teaches."""
    return [torch.full_like(weight, 0.05) for weight in policy.parameters()]


def reading_of(rollouts: Rollouts, policy: TextPolicy, reading: Reading = LOGPROBS) -> Tensor:
    """What a policy says of the tokens of these rows."""
    with torch.no_grad():
        return policy.read(text_trace(rollouts.trace), [reading], rollouts.action_mask)[reading]


def moved(policy: TextPolicy, values: list[Tensor]) -> TextPolicy:
    """The policy with these weights."""
    with torch.no_grad():
        for weight, value in zip(policy.parameters(), values, strict=True):
            weight.copy_(value)
    return policy


def test_each_teacher_has_its_weights_and_a_resumed_run_has_the_same(taught: Job, monkeypatch: pytest.MonkeyPatch):
    policy, trainer = taught.policy, taught.trainer
    assert isinstance(policy, TextPolicy)
    plain = replace(policy.config, teachers=(), engine=None)
    reader = TextPolicy(plain, views=policy.views)
    other, far = (
        TextPolicy(replace(plain, model=str(policy.config.teachers[0].model), lora=None, engine=None)) for _ in range(2)
    )
    far.net.banned.zero_()  # a server's teacher may say every token
    first = average = [weight.detach().clone() for weight in policy.parameters()]
    rows, audit, found = list[Rollouts](), trainer.audit, list[tuple[float, float]]()
    monkeypatch.setattr(trainer, "audit", lambda rollouts, step: rows.append(rollouts) or audit(rollouts, step))
    staleness = list[float]()
    state: Any = None
    for step in range(3):
        live = [weight.detach().clone() for weight in policy.parameters()]
        metrics = trainer.step()
        mask, staleness = rows[-1].action_mask, [*staleness, metrics["rollout/staleness"]]

        read, student = partial(reading_of, rows[-1]), reading_of(rows[-1], moved(reader, live))
        wanted = {"policy": read(reader, Reading("divergence", target=Target("policy", SEEN, 0.5)))}
        for name, values in {"ref": first, "ema": average, "teacher/b": taught_by(policy)}.items():
            wanted[name] = student - read(moved(reader, values))
        wanted |= {"teacher/a": student - read(other), "teacher/c": student - read(far)}
        for name, kl in wanted.items():
            mine = [not name.startswith("teacher/") or one.prompt.columns["teacher"] == name[-1] for one, _ in rows[-1].samples()]
            chosen = mask & torch.tensor(mine)[:, None]
            found.append((metrics[f"teacher/kl/{name}"], float(kl[chosen].mean())))
        now = [weight.detach().clone() for weight in policy.parameters()]
        average = [KEPT * old + (1 - KEPT) * new for old, new in zip(average, now, strict=True)]
        state = copy_state(trainer.state_dict()) if step == 1 else state
    assert staleness == [0, 1, 1] and rows[-1].recorded[WEIGHTS_VERSION].unique().tolist() == [1.0]
    ours, theirs = zip(*found, strict=True)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), atol=2e-4, rtol=1e-3)
    assert min(map(abs, theirs[6:])) > 1e-3, "no two weights are the same by then"
    whole = weights(taught)
    trainer.load_state_dict(state)
    assert not torch.equal(weights(taught), whole)
    trainer.step()
    assert torch.equal(weights(taught), whole)
