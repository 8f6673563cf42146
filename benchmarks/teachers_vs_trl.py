"""The loss of following a teacher against TRL's: GKD's `generalized_jsd_loss`, and what DistillationTrainer computes from states.

    python benchmarks/teachers_vs_trl.py --families qwen2_5_vl qwen3_vl smolvlm

Needs the extra `bench` (trl). Student and teacher are tiny models of the real classes in float32 with weights of their own. The
student writes behind prompts with pictures. mmrl reads both, packed, and compares; TRL's functions get what transformers alone
says of the same tokens, row by row. All of the vocabulary counts on both sides, tokens of pictures included. Compared are the
mean over all tokens, and its gradient in the student's weights as a share of the largest one.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from sides import markdown
from torch import Tensor

BETAS, BOUND = (0.0, 0.5, 1.0), 2e-6
LOSSES = ("GKDTrainer", "DistillationTrainer")
Found = tuple[float, dict[str, Tensor]]
"""A loss, and its gradients by the names of weights."""


def trl_loss(name: str, states: list[Tensor], heads: list[Tensor], beta: float) -> Tensor:
    """TRL's mean over tokens: of (student, teacher), their states and heads."""
    if name == "GKDTrainer":
        from trl.experimental.gkd import GKDTrainer  # pyright: ignore[reportMissingImports] - the extra bench

        logits = [(state @ head.T)[None] for state, head in zip(states, heads, strict=True)]
        labels = torch.zeros(logits[0].shape[:2], dtype=torch.long)
        return GKDTrainer.generalized_jsd_loss(*logits, labels=labels, beta=beta)
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction  # pyright: ignore[reportMissingImports] - the extra bench

    divergence, _ = ChunkedDivergenceFunction.apply(states[0], heads[0], None, states[1], heads[1], None, beta)
    return divergence.mean()


def written(policy: Any) -> Any:
    """Completions behind prompts with pictures."""
    import numpy as np
    from PIL import Image

    from mmrl.core.types import Prompt, Request

    rng, asked = np.random.default_rng(0), []
    for i in range(3):
        picture = Image.fromarray(rng.integers(0, 255, (80, 60 + 30 * (i % 2), 3), dtype=np.uint8))
        asked.append(Request(Prompt(str(i), "what is it" + " now" * i, (picture,)), 2, i, seed=i))
    return policy.rollout(asked)


def gradients(loss: Tensor, model: Any) -> dict[str, Tensor]:
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: grad for name, grad in zip(named, found, strict=True) if grad is not None}


def mmrl_side(policy: Any, rollouts: Any, beta: float) -> Found:
    from mmrl.core.types import Reading, Target

    reading = Reading("divergence", target=Target("teacher", beta=beta))
    loss = policy.read(rollouts.trace, [reading], rollouts.action_mask)[reading][rollouts.action_mask].mean()
    return float(loss.detach()), gradients(loss, policy.net.model)


def states_of(model: Any, trace: Any) -> Tensor:
    """The states that all tokens of all rows are predicted from, by transformers alone."""
    found = []
    for row, index in enumerate(trace.prompt_index.tolist()):
        prompt, length = trace.prompts[index], int(trace.lengths[row])
        ids = torch.cat([prompt.token_ids, trace.tokens[row, :length]])[None]
        named = {}
        if prompt.type_ids is not None:
            named = {"mm_token_type_ids": torch.cat([prompt.type_ids, torch.zeros(length, dtype=torch.long)])[None]}
        out = model.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **named, **prompt.media)
        found.append(out.last_hidden_state[0, len(prompt.token_ids) - 1 : -1])
    return torch.cat(found)


def trl_side(name: str, models: list[Any], trace: Any, beta: float) -> Found:
    with torch.no_grad():
        taught = states_of(models[1], trace)
    heads = [model.get_output_embeddings().weight for model in models]
    loss = trl_loss(name, [states_of(models[0], trace), taught], [heads[0], heads[1].detach()], beta)
    return float(loss.detach()), gradients(loss, models[0])


def apart(ours: Found, theirs: Found) -> tuple[float, float]:
    """The difference of losses, and the largest of gradients as a share of the largest gradient."""
    names, zero = ours[1].keys() | theirs[1].keys(), torch.zeros(())
    largest = max(float(grad.abs().max()) for grad in theirs[1].values())
    worst = max(float((ours[1].get(one, zero) - theirs[1].get(one, zero)).abs().max()) for one in names)
    return abs(ours[0] - theirs[0]), worst / largest


def compare(family: str) -> list[list[str]]:
    """A line per loss and beta."""
    from transformers import AutoModelForImageTextToText

    from mmrl.lab.tiny.text import vlms
    from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
    from mmrl.policies.text.settings import TextTeacher

    lines = []
    with tempfile.TemporaryDirectory() as folder:
        student, other = (str(vlms.build(family, Path(folder) / name, seed)) for seed, name in enumerate(("student", "other")))
        teachers = (TextTeacher("other", model=other, dtype="float32"),)
        policy = TextPolicy(TextPolicyConfig(student, sampling=Sampling(max_new_tokens=12), teachers=teachers))
        rollouts = written(policy)
        for one in (policy, *policy.teachers.others.values()):
            one.net.banned.zero_()
        models = [AutoModelForImageTextToText.from_pretrained(one, dtype=torch.float32).eval() for one in (student, other)]
        for beta in BETAS:
            ours = mmrl_side(policy, rollouts, beta)
            for name in LOSSES:
                loss, gradient = apart(ours, trl_side(name, models, rollouts.trace, beta))
                verdict = "equal" if loss <= BOUND and gradient <= BOUND else "DIFFERENT"
                lines.append([f"{family}, {name}, beta {beta}", f"{ours[0]:.6f}", f"{loss:.1e}", f"{gradient:.1e}", verdict])
                print(*lines[-1], sep=" | ", flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=["qwen2_5_vl", "qwen3_vl"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = [line for family in args.families for line in compare(family)]
    print("\n" + markdown(("family, TRL's loss", "mmrl's", "loss apart", "gradient apart", "to 2e-6"), lines))
    if any(line[4] != "equal" for line in lines):
        raise SystemExit("mmrl and TRL differ")


if __name__ == "__main__":
    main()
