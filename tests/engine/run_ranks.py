"""Updates and rollouts of two processes that share a server whose resets of caches fail one after another: KIND OUT MODEL URL.

At the end threads of both have rows written by older weights, while the processes train.
"""

import sys
import threading

import torch

from mmrl.core.types import Rollouts
from mmrl.engine.generator import text_parts
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.settings import EngineConfig
from mmrl.training.ahead.producer import under
from tests.engine.servers import gap, server_of
from tests.support.fake_engines import ask
from tests.support.launcher import Kind, accelerator_of, leave
from tests.support.text_policies import mixed, stir


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
        gaps.append(gap(policy, rollouts))
        stir(policy, 0.1, seed=number)
        policy.advance()
    gaps += ahead(policy, accelerator.process_index)
    server_of(policy).close()
    leave(accelerator, out, {"gaps": gaps})


def ahead(policy: TextPolicy, rank: int) -> list[float]:
    """The gap of rows that a thread has written by the weights from before two updates, while the trainers gather."""
    _, hold, _ = policy.publish()
    kept, found = [weight.detach().clone() for weight in policy.parameters()], list[Rollouts]()

    def write() -> None:
        hold()
        found.append(policy.rollout(mixed(rank)))

    thread = threading.Thread(target=write)
    thread.start()
    for number in range(200):
        assert policy.ranks.gather((number, rank)) == [(number, 0), (number, 1)]
        if number in (50, 100):
            with torch.no_grad():
                for weight in policy.parameters():
                    weight += 0.1
            policy.advance()
            policy.publish()
    thread.join()
    with under(policy.parameters(), kept):
        return [gap(policy, found[0])]


if __name__ == "__main__":
    kind, out, model, url = sys.argv[1:]
    main("replicated" if kind == "replicated" else "one", out, model, url)
