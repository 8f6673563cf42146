"""Packed rows read by one process and by a team: log-probabilities, entropies and gradients of them all.

KINDS OUT FOLDER=WORDS... Words are those of `policy_of`, `alone` for rows of the first process alone, `pairs` for teams of two.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mmrl.core.readings import ENTROPY, LOGPROBS
from mmrl.core.types import Prompt, Reading, Request, Video
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import TextPolicy
from tests.support.launcher import accelerator_of, end, keep, kinds_in, renew
from tests.support.text_policies import make, picture
from tests.support.videos import write_video

LONG = "the quick brown fox jumps over the lazy dog and then it sleeps for a while in the shade. " * 2
TEXTS = {
    "one": ("yes", "no, not at all; " * 6, ""),
    "clip": ("at three", "later " * 9),
    "two": ("a" * 90, "b"),
    "none": ("c" * 40,),
    "tall": ("d", "e" * 7, "f" * 25, "g" * 25),
}
"""Prompt -> its completions, of all lengths: 362 tokens."""

DIVERGENCE = Reading("group_divergence")


def requests(folder: Path | None = None) -> list[Request]:
    """Groups of ragged completions, one of them empty, behind prompts with pictures and without, and with a clip in a folder."""
    prompts = [
        Prompt("one", "what is it?", (picture(0),)),
        Prompt("two", LONG + "is <image> like <image>, or not?", (picture(1), picture(2, 90, 40))),
        Prompt("none", "hi"),
        Prompt("tall", "and this? " + LONG, (picture(3, 40, 100),)),
    ]
    if folder is not None:
        clip = folder / "clip.mp4"
        if not clip.exists():
            write_video(clip, [i / 16 for i in range(16)], size=(64, 32))
        prompts.insert(1, Prompt("clip", LONG + " when?", (Video(str(clip)),)))
    some = [(i, prompt, text) for i, prompt in enumerate(prompts) for text in TEXTS[prompt.id]]
    return [Request(prompt, 1, group_id=i, role="injected", written=text) for i, prompt, text in some]


def policy_of(folder: str, words: Sequence[str], context: int) -> TextPolicy:
    torch.manual_seed(0)
    lora = LoraSettings(rank=2, alpha=4) if "lora" in words else None
    policy = make(folder, prefix="packed", context=context, lora=lora, gradient_checkpointing="checkpointing" in words)
    for name, weight in policy.net.model.named_parameters():
        if "lora_B" in name:
            weight.data.copy_(torch.linspace(-0.1, 0.1, weight.numel()).view(weight.shape))
    return policy


def read(folder: str, words: Sequence[str], accelerator: Any, place: Path, context: int) -> dict[str, Any]:
    """Row -> what is read of it; the gradients of all processes; and how many tokens the first layer was given at most."""
    world, rank = accelerator.num_processes, accelerator.process_index
    policy = policy_of(folder, words, context)
    policy.prepare(accelerator)
    seen = list[int]()
    policy.net.core.language_model.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    owners = [i % world if "alone" not in words else 0 for i in (0, 1, 0, 2, 1)]
    rollouts = policy.rollout([one for one in requests(place) if owners[one.group_id] == rank])
    mask = rollouts.action_mask
    with torch.no_grad():
        frozen = policy.read(rollouts.trace, [LOGPROBS, Reading("lead"), DIVERGENCE], mask)
    live = policy.read(rollouts.trace, [LOGPROBS, ENTROPY], mask)
    # another weight for every token, so that no two can be mixed up unnoticed
    weights = torch.linspace(0.5, 1.5, 200)[: mask.shape[1]]
    loss = (weights * (live[LOGPROBS] + 0.3 * live[ENTROPY])).sum()
    accelerator.backward(loss * world)
    names = zip(rollouts.group_ids.tolist(), rollouts.sample_ids.tolist(), strict=True)
    values = {reading.quantity: x.detach() for reading, x in live.items()}
    values |= {f"frozen {reading.quantity}": x for reading, x in frozen.items()}
    rows = {f"{g}/{s}": {name: x[i][mask[i]] for name, x in values.items()} for i, (g, s) in enumerate(names)}
    own = {name: weight.grad for name, weight in policy.net.model.named_parameters() if weight.grad is not None}
    grads = {name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad for name, grad in own.items()}
    return {"rows": rows, "grads": grads, "tokens": max(seen)}


def main(kinds: str, out: str, *cases: str) -> None:
    for kind in kinds_in(kinds):
        accelerator, folder = accelerator_of(kind), Path(out) / kind if kind != kinds else Path(out)
        found = dict[str, Any]()
        for case in cases:
            renew(accelerator)
            model, _, words = case.partition("=")
            context = 2 if "pairs" in words else accelerator.num_processes
            found[case] = read(model, words.split(","), accelerator, Path(out), context)
        keep(accelerator, folder, found)
    end()


if __name__ == "__main__":
    main(*sys.argv[1:])
