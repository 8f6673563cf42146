"""Losses and gradients of the stages `sft` and `dpo` against TRL's SFTTrainer and DPOTrainer: same model, pictures and texts.

    python benchmarks/stages_vs_trl.py --families qwen2_5_vl qwen3_vl smolvlm internvl gemma3

Needs the extra `bench` (trl). Models are tiny ones of the real classes in float32. Each trainer takes some steps of plain
gradient descent on one batch of rows with a picture each, its prompts of different lengths, so from the second step on policy and
reference differ. TRL gets each prompt as the model's chat template writes it, and completions that end with the token that ends a
turn: what trains is compared token by token before any number is. A difference of gradients is relative to the largest gradient.

mmrl leaves tokens that no completion may hold (of pictures, padding, the beginning of a text) out of the distribution, TRL does
not. The models here give them some 2 % at random, so they are let in for the comparison; `as it trains` is the difference of
losses with them left out, as in a run: as small as the chance that a model gives them.
"""

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from sides import markdown
from torch import Tensor

BOUND = 1e-5
"""Losses, and gradients as a share of the largest one, may differ by this much."""
ROWS = 4
TEXTS = ("a red one", "two, left of it", "none", "the blue circle is below")
OTHERS = ("a blue one here", "three", "I see no circle", "above")
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sft": ("sft", {}, {"loss_type": "nll"}),
    "sft, dft": ("sft", {"dft": True}, {"loss_type": "dft"}),
    "dpo": ("dpo", {"beta": 0.1}, {"beta": 0.1, "loss_type": ["sigmoid"]}),
    "dpo, ipo": ("dpo", {"beta": 0.1, "loss": "ipo"}, {"beta": 0.1, "loss_type": ["ipo"]}),
    "dpo, robust": (
        "dpo",
        {"beta": 0.1, "loss": "robust", "smoothing": 0.2},
        {"beta": 0.1, "loss_type": ["robust"], "label_smoothing": 0.2},
    ),
    "dpo, LD": ("dpo", {"beta": 0.1, "beyond": 0.5}, {"beta": 0.1, "loss_type": ["sigmoid"], "ld_alpha": 0.5}),
}
"""Name -> the kind of a stage, the settings of its term, and those of TRL."""


@dataclass
class Found:
    """What a side did, update by update."""

    taught: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])
    """The tokens that train, row by row."""
    losses: list[float] = field(default_factory=list[float])
    gradients: list[dict[str, Tensor]] = field(default_factory=list[dict[str, Tensor]])


def gradients_of(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def prompts() -> list[Any]:
    """Rows with a picture of noise each, and their completions."""
    import numpy as np
    from PIL import Image

    from mmrl.core.types import Prompt

    rng, found = np.random.default_rng(0), []
    for i in range(ROWS):
        picture = Image.fromarray(rng.integers(0, 255, (80, 60 + 30 * (i % 2), 3), dtype=np.uint8))
        columns = {"completion": TEXTS[i], "chosen": TEXTS[i], "rejected": OTHERS[i]}
        found.append(Prompt(str(i), "what is it" + " now" * i, (picture,), columns=columns))
    return found


def mmrl_side(
    model: str, kind: str, term: Mapping[str, Any], steps: int, lr: float, banned: bool = False
) -> tuple[Found, list[str], str]:
    """mmrl's trainer; also the prompts as the chat template writes them, and the token that ends a turn."""
    from mmrl.algorithms.kinds import KINDS
    from mmrl.algorithms.samplers.base import Shuffled
    from mmrl.policies.text.policy import TextPolicy, TextPolicyConfig
    from mmrl.training.optim import OptimizerSettings
    from mmrl.training.rewards.runner import RewardRunner
    from mmrl.training.settings import TrainSettings
    from mmrl.training.trainer import Trainer

    own = KINDS[kind]
    policy = TextPolicy(TextPolicyConfig(model), shadows=("ref",) if kind == "dpo" else ())
    if not banned:
        policy.net.banned.zero_()
    algorithm = replace(own, objective=((1.0, replace(own.objective[0][1], **term)),))  # pyright: ignore[reportArgumentType, reportCallIssue] - a term is a dataclass
    settings = OptimizerSettings(kind="sgd", lr=lr, clip_norm=0.0)
    train = TrainSettings(steps=steps, prompts_per_step=ROWS, micro_batch=3, optimizer=settings)
    trainer, found = Trainer(policy, algorithm, Shuffled(prompts(), seed=0), RewardRunner([], unscored=True), train), Found()
    take, update = trainer.optimizer.step, trainer.update

    def step(*words: Any, **named: Any) -> Any:
        found.gradients.append(gradients_of(policy.net.model))
        return take(*words, **named)

    def watched(batch: Any) -> dict[str, float]:
        rows = zip(batch.rollouts.trace.tokens.tolist(), batch.rollouts.action_mask.tolist(), strict=True)
        found.taught |= {tuple(token for token, own in zip(*row, strict=True) if own) for row in rows}
        metrics = update(batch)
        found.losses.append(metrics["loss"])
        return metrics

    trainer.optimizer.step, trainer.update = step, watched
    for _ in range(steps):
        trainer.step()
    texts = [policy.encode.write(policy.encode.chat(prompt)) for prompt in prompts()]
    return found, texts, policy.encode.processor.tokenizer.eos_token


def trl_side(model: str, kind: str, chosen: Mapping[str, Any], steps: int, lr: float, texts: list[str], end: str) -> Found:
    import datasets
    import transformers

    trl: Any = __import__("trl")  # its names are made at run time
    rows, columns = prompts(), ("completion",) if kind == "sft" else ("chosen", "rejected")
    table = {"prompt": texts, "images": [list(row.media) for row in rows]}
    table |= {name: [row.columns[name] + end for row in rows] for name in columns}
    make, settings = (trl.SFTTrainer, trl.SFTConfig) if kind == "sft" else (trl.DPOTrainer, trl.DPOConfig)
    folder, found = tempfile.TemporaryDirectory(), Found()
    common = {"per_device_train_batch_size": ROWS, "max_steps": steps, "learning_rate": lr, "optim": "sgd", "max_grad_norm": 0.0}
    common |= {"lr_scheduler_type": "constant", "bf16": False, "use_cpu": True, "gradient_checkpointing": False}
    common |= {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "max_length": None}
    trainer = make(
        model=transformers.AutoModelForImageTextToText.from_pretrained(model),
        args=settings(output_dir=folder.name, **common, **chosen),
        train_dataset=datasets.Dataset.from_dict(table),
        processing_class=transformers.AutoProcessor.from_pretrained(model),
    )
    compute = trainer.compute_loss

    def watched(net: Any, inputs: Any, *words: Any, **named: Any) -> Any:
        own = inputs["completion_mask"] > 0 if kind == "dpo" else inputs["labels"] >= 0
        pairs = zip(inputs["input_ids"], own, strict=True)
        found.taught |= {tuple(ids[mask].tolist()) for ids, mask in pairs}
        loss = compute(net, inputs, *words, **named)
        found.losses.append(float(loss.detach()))
        return loss

    class Watch(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            found.gradients.append(gradients_of(trainer.model))

    trainer.compute_loss = watched
    trainer.add_callback(Watch())
    trainer.train()
    folder.cleanup()
    return found


def differences(ours: Found, theirs: Found) -> tuple[float, float]:
    """The largest difference of losses, and of gradients as a share of the largest gradient, over all updates.

    Raises:
        SystemExit: other tokens train, or other weights have gradients.
    """
    if ours.taught != theirs.taught:
        raise SystemExit(f"other tokens train: {sorted(ours.taught)} and {sorted(theirs.taught)}")
    losses = max(abs(mine - other) for mine, other in zip(ours.losses, theirs.losses, strict=True))
    worst = 0.0
    for mine, other in zip(ours.gradients, theirs.gradients, strict=True):
        zero = torch.zeros(())
        names, largest = mine.keys() | other.keys(), max(float(x.abs().max()) for x in other.values())
        apart = (float((mine.get(name, zero) - other.get(name, zero)).abs().max()) for name in names)
        worst = max(worst, max(apart) / largest)
    return losses, worst


def compare(family: str, cases: list[str], steps: int, lr: float) -> list[list[str]]:
    """A line per case."""
    from mmrl.lab.tiny.text import vlms

    lines = []
    with tempfile.TemporaryDirectory() as folder:
        model = str(vlms.build(family, Path(folder) / family))
        for case in cases:
            kind, term, chosen = CASES[case]
            ours, texts, end = mmrl_side(model, kind, term, steps, lr)
            trained, *_ = mmrl_side(model, kind, term, steps, lr, banned=True)
            theirs = trl_side(model, kind, chosen, steps, lr, texts, end)
            (loss, gradient), (usual, _) = differences(ours, theirs), differences(trained, theirs)
            both = ", ".join(f"{value:.4f}" for value in theirs.losses)
            verdict = "equal" if loss <= BOUND and gradient <= BOUND else "DIFFERENT"
            lines.append([f"{family}, {case}", both, f"{loss:.1e}", f"{gradient:.1e}", verdict, f"{usual:.1e}"])
            print(*lines[-1], sep=" | ", flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=["qwen2_5_vl", "qwen3_vl", "smolvlm"])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01, help="of gradient descent")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = [line for family in args.families for line in compare(family, args.cases, args.steps, args.lr)]
    print("\n" + markdown(("family, loss", "TRL's losses", "loss apart", "gradient apart", "to 1e-5", "as it trains"), lines))
    if any(line[4] != "equal" for line in lines):
        raise SystemExit("mmrl and TRL differ")


if __name__ == "__main__":
    main()
