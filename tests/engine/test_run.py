"""Three optimizer steps from a config with `[policy.engine]`: each step is written with the weights of the update before it."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from mmrl.app.commands.train import TrainArguments, train
from mmrl.core.types import Request, Rollouts
from mmrl.policies.text.policy import Sampling, TextPolicy
from tests.engine.servers import CLOSE, gap, renew, server_of

pytestmark = pytest.mark.engine
REWARD = '''
def letters(group):
    """The share of small letters."""
    return [sum("a" <= c <= "z" for c in sample.text) / max(1, len(sample.text)) for sample in group.samples]
'''
CONFIG = """
steps = 3
prompts_per_step = 4
[algorithm]
preset = "grpo"
group_size = 4
[policy]
kind = "text"
model = "{model}"
answer_format = "direct"
[policy.sampling]
max_new_tokens = 16
[policy.engine]
url = ["{url}"]
folder = "{here}/shared"
{lora}
[data]
use = "digits_grounding"
size = 16
[[reward]]
use = "{here}/reward.py:letters"
[evaluation]
seen = 0
[optimizer]
lr = 1e-2
"""


@pytest.mark.parametrize("lora", ["", "[policy.lora]\nrank = 4\nalpha = 64"], ids=["all weights", "an adapter"])
def test_three_steps(lora: str, owner: TextPolicy, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    server = server_of(owner).server
    assert server is not None
    renew(owner)
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.format(model=model, url=server.url, here=tmp_path, lora=lora))
    (tmp_path / "reward.py").write_text(REWARD)
    gaps, late, kept, write = list[float](), list[float](), list[Rollouts](), TextPolicy.rollout

    def rollout(policy: TextPolicy, requests: Sequence[Request], sampling: Sampling | None = None) -> Rollouts:
        late.extend(gap(policy, earlier) for earlier in kept[-1:])
        kept.append(write(policy, requests, sampling))
        gaps.append(gap(policy, kept[-1]))
        return kept[-1]

    monkeypatch.setattr(TextPolicy, "rollout", rollout)
    run = train(TrainArguments([str(config)], output=tmp_path / "run"))
    steps = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert min(step["policy/grad_norm"] for step in steps) > 0
    assert max(gaps) < CLOSE, "every step is written with the weights that were trained so far"
    assert min(late) > 100 * CLOSE, "which each update has moved"
    assert [rollouts.weights_version for rollouts in kept[:3]] == [0, 1, 2]
