"""Teachers of a run whose samples another process draws beside its updates: each has the weights that its name says."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.views import SEEN
from mmrl.app.config.run import RunConfig, load
from mmrl.app.run.build import Job, build, with_local_model
from mmrl.core.readings import LOGPROBS, WEIGHTS_VERSION
from mmrl.core.types import Reading, Rollouts, Target
from mmrl.lab.tiny.text import vlms
from mmrl.policies.text.policy import TextPolicy, TextPolicyConfig
from mmrl.policies.text.write.remote import RemoteGenerator
from mmrl.training.checkpoints.state import copy_state
from tests.support.text_policies import text_trace
from tests.support.trainers import weights

MINE = """
from PIL import Image
from mmrl import Prompt

def load():
    shown = [Image.new("RGB", (64, 64), (60 * i, 0, 0)) for i in range(4)]
    return [Prompt(str(i), "Where?", (one,), columns={"teacher": "ab"[i % 2], "solution": "blue"}) for i, one in enumerate(shown)]
"""
SAMPLED = '{kind = "FollowTeacher", form = "sampled", beta = 1.0, model = "%s"}'
SEES_MORE = '{kind = "FollowTeacher", model = "policy", view = {column = "solution"}}'
TERMS = ", ".join([*(SAMPLED % model for model in ("teacher", "ref", "ema")), SEES_MORE])
KEPT = 0.7
WORDS = [
    f'algorithm={{preset = "opd", group_size = 2, ema_decay = {{kind = "SteadyDecay", decay = {KEPT}}}, objective = [{TERMS}]}}',
    "data={use = './mine.py'}",
    "ahead=1",
    "cluster.samplers=1",
    "steps=4",
    "prompts_per_step=2",
    "evaluation.num_prompts=0",
    "evaluate_every=0",
    "policy.lora.rank=2",
    "policy.sampling.max_new_tokens=6",
    "optimizer.lr=0.05",
]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("ahead")
    (folder / "mine.py").write_text(MINE)
    other = vlms.build("qwen3_vl", folder / "other", seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        base = TextPolicy(text_config(with_local_model(load("tiny/image", WORDS).config)))
        moved(base, taught_by(base)).save(folder / "taught")
        teachers = f"[{{name = 'a', model = '{other}', dtype = 'float32'}}, {{name = 'b', adapter = '{folder / 'taught'}'}}]"
        made = build(load("tiny/image", [*WORDS, f"policy.teachers={teachers}"]))
    yield made
    made.trainer.collector.close()
    assert isinstance(made.policy, TextPolicy) and isinstance(made.policy.generator, RemoteGenerator)
    made.policy.generator.close()


def text_config(config: RunConfig) -> TextPolicyConfig:
    assert isinstance(config.policy, TextPolicyConfig)
    return config.policy


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


def test_each_teacher_has_its_weights_and_a_resumed_run_has_the_same(job: Job, monkeypatch: pytest.MonkeyPatch):
    policy, trainer = job.policy, job.trainer
    assert isinstance(policy, TextPolicy)
    plain = replace(policy.config, teachers=())
    reader = TextPolicy(plain, views=policy.views)
    other = TextPolicy(replace(plain, model=str(policy.config.teachers[0].model), lora=None))
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
        wanted["teacher/a"] = student - read(other)
        for name, kl in wanted.items():
            mine = [
                not name.startswith("teacher/") or group.prompt.columns["teacher"] == name[-1] for group, _ in rows[-1].samples()
            ]
            chosen = mask & torch.tensor(mine)[:, None]
            found.append((metrics[f"teacher/kl/{name}"], float(kl[chosen].mean())))
        now = [weight.detach().clone() for weight in policy.parameters()]
        average = [KEPT * old + (1 - KEPT) * new for old, new in zip(average, now, strict=True)]
        state = copy_state(trainer.state_dict()) if step == 1 else state
    assert staleness == [0, 1, 1] and rows[-1].recorded[WEIGHTS_VERSION].unique().tolist() == [1.0]
    ours, theirs = zip(*found, strict=True)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), atol=2e-4, rtol=1e-3)
    assert min(map(abs, theirs[5:])) > 1e-3, "no two weights are the same by then"
    whole = weights(job)
    trainer.load_state_dict(state)
    assert not torch.equal(weights(job), whole)
    trainer.step()
    assert torch.equal(weights(job), whole)
