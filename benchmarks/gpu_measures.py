"""Measurements on one card: seconds, memory and floating-point operations of mmrl's steps, and of TRL's on the same model.

MFU is the operations an update needs, over its seconds, over the card's dense bfloat16 peak. They are counted by torch's
FlopCounterMode in one step that is not timed: a forward without gradient is F, the update U. With gradient checkpointing the
update computes its layers twice, which nobody needs: U - F, else U. Attention counts whole, though half of it is masked.
"""

import gc
import time
from dataclasses import dataclass, replace
from typing import Any

import torch

Found = dict[str, Any]
PEAKS = (
    ("B200", 2250.0),
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H100", 989.0),
    ("H200", 989.0),
    ("GH200", 989.0),
    ("A100", 312.0),
    ("A800", 312.0),
    ("L40S", 362.0),
    ("L40", 181.0),
    ("L4", 121.0),
    ("A10G", 70.0),
    ("A10", 125.0),
    ("RTX 6000 Ada", 364.0),
    ("RTX A6000", 155.0),
    ("RTX 5090", 210.0),
    ("RTX 4090", 165.0),
    ("RTX 3090", 71.0),
)
"""Part of a card's name -> dense bfloat16 TFLOP/s of its data sheet; the first that fits counts."""


def peak_flops(name: str) -> float | None:
    """Floating-point operations per second of the card, None for one that is not in the list."""
    return next((1e12 * peak for part, peak in PEAKS if part in name), None)


@dataclass(frozen=True)
class Sizes:
    """How much work a measurement is."""

    prompts: int = 8
    group_size: int = 8
    picture: int = 32
    """Tokens of a picture's side."""
    tokens: int = 128
    steps: int = 2
    """Timed, after one that is not."""
    image_prompts: int = 2
    denoising: int = 10
    rows: int = 8
    """Latents of a forward."""


TINY = Sizes(2, 2, 3, 6, 1, 2, 6, 4)


class Card:
    """The device, its clock and its memory."""

    def __init__(self, accelerator: Any) -> None:
        self.accelerator, self.device = accelerator, accelerator.device
        self.is_cuda = self.device.type == "cuda"
        self.name = torch.cuda.get_device_name() if self.is_cuda else "CPU"
        self.peak = peak_flops(self.name)

    def now(self) -> float:
        """Seconds, once all that was asked of the device is done."""
        if self.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def reset(self) -> None:
        """Forget what is dead, and the most memory seen."""
        if self.is_cuda:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def gib(self) -> float | None:
        """Most memory since `reset`."""
        return torch.cuda.max_memory_allocated() / 2**30 if self.is_cuda else None

    def mfu(self, flops: float, seconds: float) -> float | None:
        return flops / seconds / self.peak if self.peak else None


def lora() -> Any:
    from mmrl.policies.shared.lora import LoraSettings

    return LoraSettings(rank=32, alpha=64)


def settings(prompts: int, micro_batch: int) -> Any:
    """Bounds of the gate are wide: in bfloat16 random weights of this depth differ from themselves by more than trained ones."""
    from mmrl.training.optim import OptimizerSettings
    from mmrl.training.settings import TrainSettings

    optimizer = OptimizerSettings(lr=1e-6)
    bounds: dict[str, Any] = {"ratio_bound": 100.0, "mean_ratio_bound": 10.0, "audit_steps": 1}
    return TrainSettings(prompts_per_step=prompts, micro_batch=micro_batch, optimizer=optimizer, **bounds)


def trainer_of(card: Card, policy: Any, algorithm: Any, prompts: list[Any], sizes: Any) -> Any:
    """mmrl's trainer on the card, with a reward that costs nothing and differs within groups."""
    from mmrl.algorithms.samplers.base import Shuffled
    from mmrl.core.ranks import Ranks
    from mmrl.training.rewards.runner import NamedReward, RewardRunner
    from mmrl.training.trainer import Trainer

    policy.prepare(card.accelerator)
    reward = NamedReward("parity", lambda group: [float(i % 2) for i in range(len(group.samples))])
    runner = RewardRunner([reward])
    return Trainer(policy, algorithm, Shuffled(prompts, seed=0), runner, sizes, ranks=Ranks(card.accelerator))


def pictures(sizes: Sizes, count: int) -> list[Any]:
    """Prompts with one long picture each."""
    import numpy as np
    from gpu_models import TOKEN
    from PIL import Image

    from mmrl.core.types import Prompt

    rng, side = np.random.default_rng(0), sizes.picture * TOKEN
    return [
        Prompt(str(i), "Where is the red square?", (Image.fromarray(rng.integers(0, 255, (side, side, 3), dtype=np.uint8)),))
        for i in range(count)
    ]


def text(
    card: Card, model: str, sizes: Sizes, checkpointing: bool, prefix: str, kernels: str | None = None, compiled: bool = False
) -> Found:
    """GRPO on the VLM with LoRA, as the shipped configs for one card have it; kernels: of weights in 4 bits, where they are."""
    from mmrl.algorithms.presets import PRESETS
    from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
    from mmrl.policies.text.settings import QuantizedSettings

    chosen: Any = {
        "prefix": prefix,
        "gradient_checkpointing": checkpointing,
        "dtype": "bfloat16",
        "lora": lora(),
        "compile": compiled,
    }
    if kernels is not None:
        chosen |= {"weights": "nf4", "quantized": QuantizedSettings(kernels=kernels)}  # type: ignore[arg-type] - one of its words
    config = TextPolicyConfig(model, sampling=Sampling(max_new_tokens=sizes.tokens), **chosen)
    algorithm = replace(PRESETS["grpo"], objective=PRESETS["grpo"].objective[:1], group_size=sizes.group_size, old="reread")
    drawn = pictures(sizes, 2 * sizes.prompts)
    trainer = trainer_of(card, TextPolicy(config), algorithm, drawn, settings(sizes.prompts, 16384))
    found = timed(card, trainer, sizes.steps, checkpointing)
    return found | {"tokens_per_s": found["actions"] / found["rollout_s"], "share": None}


def pixels(card: Card, model: str, sizes: Sizes, method: str, side: int, twice: bool = True, compiled: bool = False) -> Found:
    """A flow method on the image generator with LoRA, without guidance; activations are computed `twice`, or blocks compiled."""
    from mmrl.algorithms.presets import PRESETS
    from mmrl.core.types import Prompt
    from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig

    preset: Any = PRESETS[method]
    changed: dict[str, Any] = {"num_steps": sizes.denoising}
    if method == "temp_flow_grpo":
        changed |= {"at_steps": (0, 1), "branches": sizes.group_size // 2}
    algorithm = replace(preset, schedule=replace(preset.schedule, **changed), group_size=sizes.group_size)
    if algorithm.minibatches > sizes.image_prompts:
        algorithm = replace(algorithm, minibatches=sizes.image_prompts)
    shape: dict[str, Any] = {"height": side, "width": side, "forward_rows": sizes.rows, "decode_rows": 2, "guidance": 1.0}
    config = FlowPolicyConfig(model, dtype="bfloat16", lora=lora(), gradient_checkpointing=twice, compile=compiled, **shape)
    policy = FlowPolicy(config, sorted(algorithm.shadows))
    prompts = [Prompt(str(i), f"a drawing of {i} red squares") for i in range(2 * sizes.image_prompts)]
    trainer = trainer_of(card, policy, algorithm, prompts, settings(sizes.image_prompts, sizes.rows))
    inside = Inside(card, policy.net.transformer)
    inside.watch(trainer.ranks)
    return timed(card, trainer, sizes.steps, twice, inside) | {"tokens_per_s": None}


def timed(card: Card, trainer: Any, steps: int, checkpointing: bool, inside: "Inside | None" = None) -> Found:
    """Medians of the steps, the memory of the largest, and the MFU of an update; the counted step also warms up."""
    counted = Counted(trainer)
    trainer.step()
    counted.stop()
    if trainer.policy.config.compile:
        trainer.step()  # where operations are counted nothing is compiled
    flops = counted.update - checkpointing * counted.forward
    card.reset()
    metrics, shares, seconds = [], [], []
    for _ in range(steps):
        if inside is not None:
            inside.seconds = 0.0
        start = card.now()
        metrics.append(trainer.step())
        seconds.append(card.now() - start)
        shares.append(inside.seconds / seconds[-1] if inside is not None else None)
    middle = sorted(range(steps), key=seconds.__getitem__)[steps // 2]
    one = metrics[middle]
    return {
        "step_s": seconds[middle],
        "rollout_s": one["time/rollout_s"],
        "read_s": one["time/read_s"],
        "update_s": one["time/update_s"],
        "actions": one["rollout/actions"],
        "tflop": flops / 1e12,
        "mfu": card.mfu(flops, one["time/update_s"]),
        "share": shares[middle],
        "gib": card.gib(),
    }


class Counted:
    """Counts the operations of a step's updates, and of a forward without gradient for each of their micro-batches."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.read, self.updates = trainer, trainer.policy.read, trainer.update
        self.forward = self.update = 0
        trainer.update, trainer.policy.read = self.count_update, self.count_read

    def count_update(self, batch: Any) -> Any:
        from torch.utils.flop_counter import FlopCounterMode

        before = self.forward
        with FlopCounterMode(display=False) as counter:
            out = self.updates(batch)
        # the forwards without gradient ran inside too
        self.update += counter.get_total_flops() - (self.forward - before)
        return out

    def count_read(self, trace: Any, readings: Any, mask: Any) -> Any:
        from torch.utils.flop_counter import FlopCounterMode

        if torch.is_grad_enabled():
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                self.read(trace, readings, mask)
            self.forward += counter.get_total_flops()
        return self.read(trace, readings, mask)

    def stop(self) -> None:
        del self.trainer.update, self.trainer.policy.read


class Inside:
    """Seconds inside a transformer: forwards by hooks, backwards from the gradient's arrival until autograd is done."""

    def __init__(self, card: Card, transformer: Any) -> None:
        self.card, self.seconds, self.start, self.reached = card, 0.0, 0.0, 0.0
        transformer.register_forward_pre_hook(self.enter)
        transformer.register_forward_hook(self.leave)

    def enter(self, *_: Any) -> None:
        self.start = self.card.now()

    def leave(self, _: Any, __: Any, output: Any) -> None:
        self.seconds += self.card.now() - self.start
        if output[0].requires_grad:
            output[0].register_hook(self.reach)

    def reach(self, _: Any) -> None:
        self.reached = self.card.now()

    def watch(self, ranks: Any) -> None:
        """Take the end of every backward from the trainer's ranks."""
        backward = ranks.backward

        def until_done(loss: Any, **others: Any) -> None:
            backward(loss, **others)
            self.seconds += self.card.now() - self.reached

        ranks.backward = until_done


def trl(card: Card, model: str, sizes: Sizes, checkpointing: bool) -> Found:
    """TRL's trainer on the same model, pictures, group and lengths, in bfloat16 with LoRA, decoding by transformers."""
    import datasets
    import peft
    import transformers
    from small_vlm import trl_settings

    package: Any = __import__("trl")  # its names are made at run time
    drawn, rows, tokens = pictures(sizes, 2 * sizes.prompts), sizes.prompts * sizes.group_size, list[int]()

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        tokens.append(sum(map(len, completion_ids)))
        return [float(i % 2) for i in range(len(completion_ids))]

    parts = rows // sizes.group_size
    more: dict[str, Any] = {"max_steps": 1 + sizes.steps, "learning_rate": 1e-6, "gradient_accumulation_steps": parts}
    if card.is_cuda:
        more |= {"bf16": True, "use_cpu": False}
    config = trl_settings(rows // parts, sizes.group_size, sizes.tokens, checkpointing, **more)
    columns = {
        "prompt": [[{"role": "user", "content": prompt.text}] for prompt in drawn],
        "image": [prompt.media[0] for prompt in drawn],
    }
    trainer = package.GRPOTrainer(
        model=transformers.AutoModelForImageTextToText.from_pretrained(model, dtype=torch.bfloat16),
        reward_funcs=reward,
        args=config,
        train_dataset=datasets.Dataset.from_dict(columns),
        processing_class=transformers.AutoProcessor.from_pretrained(model),
        peft_config=peft.LoraConfig(r=32, lora_alpha=64, target_modules=r".*language_model.*\.(q|k|v|o|gate|up|down)_proj"),
    )
    steps: list[float] = []
    rollouts: list[float] = []
    inner = trainer._generate_and_score_completions

    def sample(*args: Any, **kwargs: Any) -> Any:
        start = card.now()
        out = inner(*args, **kwargs)
        rollouts.append(card.now() - start)
        return out

    class Watch(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.start = card.now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            steps.append(card.now() - self.start)

    trainer._generate_and_score_completions = sample
    trainer.add_callback(Watch())
    card.reset()
    trainer.train()
    step, rollout = (sum(seconds[-sizes.steps :]) / sizes.steps for seconds in (steps, rollouts))
    found = {"step_s": step, "rollout_s": rollout, "read_s": 0.0, "update_s": step - rollout, "actions": tokens[-1]}
    return found | {"tokens_per_s": tokens[-1] / rollout, "mfu": None, "share": None, "gib": card.gib()}
