"""Updates and rollouts of two processes that share a server whose resets of caches fail one after another: KIND OUT MODEL URL."""

import sys

import torch

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.engine.generator import VllmGenerator, text_parts
from mmrl.policies.text.engine_settings import EngineConfig
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from tests.support.fake_engines import ask
from tests.support.launcher import Kind, accelerator_of, leave
from tests.support.text_policies import logprobs, mixed


def main(kind: Kind, out: str, model: str, url: str) -> None:
    accelerator = accelerator_of(kind)
    config = TextPolicyConfig(model, engine=EngineConfig(url=(url,), timeout_s=60.0), sampling=Sampling(max_new_tokens=5))
    torch.manual_seed(0)
    policy = TextPolicy(config, parts=text_parts(config))
    policy.prepare(accelerator)
    gaps: list[float] = []
    for number in range(5):
        if accelerator.is_main_process and number:
            ask(url, "/fake", {"break_reset": number})
        accelerator.wait_for_everyone()
        rollouts = policy.rollout(mixed(accelerator.process_index))
        difference = rollouts.recorded[ROLLOUT_LOGPROBS] - logprobs(policy, rollouts).detach()
        gaps.append(float(difference.abs()[rollouts.action_mask].max()))
        draw = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for weight in policy.parameters():
                weight += 0.1 * torch.randn(weight.shape, generator=draw)
        policy.advance()
    assert isinstance(policy.generator, VllmGenerator)
    policy.generator.close()
    leave(accelerator, out, {"gaps": gaps})


if __name__ == "__main__":
    kind, out, model, url = sys.argv[1:]
    main("replicated" if kind == "replicated" else "one", out, model, url)
