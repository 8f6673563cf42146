"""A small Qwen3-VL with random weights, prompts of a chosen length, and mmrl's trainer and TRL's on both.

The model: 4 text layers of width 256, 2 vision layers of width 128, 5 M parameters, a vocabulary of 263 tokens. A prompt has one
picture of n x n tokens (32 pixels each) and as many letters as its length still wants. The reward is the sum of a completion's
token ids modulo 7: it costs nothing and differs within every group.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

TOKEN = 32
"""Pixels per token and side of Qwen3-VL."""
FRAME = 36
"""Tokens around picture and letters, at most: the marks of turns and pictures."""
SEVEN = 7


@dataclass(frozen=True)
class Case:
    """One thing to measure."""

    model: str
    length: int = 300
    """Tokens of every prompt, the picture's among them."""
    prompts: int = 2
    group_size: int = 8
    tokens: int = 32
    """Tokens of every completion, if it does not end before."""
    checkpointing: bool = False
    prefix: str = "auto"


def build(folder: Path) -> str:
    """Write model and processor, and return where."""
    from transformers import AutoProcessor, Qwen3VLConfig, Qwen3VLForConditionalGeneration

    from mmrl.lab.tiny.text import vlms

    torch.manual_seed(0)
    vlms.build("qwen3_vl", folder)
    config: Any = Qwen3VLConfig.from_pretrained(folder)
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers, text.layer_types = 256, 1024, 4, ["full_attention"] * 4
    text.num_attention_heads, text.num_key_value_heads, text.head_dim = 8, 2, 32
    text.rope_parameters = {**text.rope_parameters, "mrope_section": [6, 5, 5]}
    vision.hidden_size, vision.intermediate_size, vision.depth, vision.num_heads = 128, 512, 2, 4
    vision.out_hidden_size, vision.num_position_embeddings = 256, 1024
    model: Any = Qwen3VLForConditionalGeneration(config)
    vlms.draw_weights(model)
    model.generation_config = type(model.generation_config).from_pretrained(folder)
    model.save_pretrained(folder)
    processor = AutoProcessor.from_pretrained(folder)
    processor.image_processor.size = {"shortest_edge": 4 * TOKEN**2, "longest_edge": 10**9}
    processor.save_pretrained(folder)
    return str(folder)


def prompts_of(length: int, count: int) -> list[Any]:
    """Prompts of one length, with pictures of noise."""
    import numpy as np
    from PIL import Image

    from mmrl.core.types import Prompt

    side = int((length - FRAME) ** 0.5)
    letters = length - FRAME - side * side
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 255, (side * TOKEN, side * TOKEN, 3), dtype=np.uint8) for _ in range(count)]
    return [Prompt(str(i), "x" * letters, (Image.fromarray(pixels),)) for i, pixels in enumerate(pictures)]


def score(token_ids: Any) -> float:
    return sum(map(int, token_ids)) % SEVEN / SEVEN


def mmrl_trainer(case: Case, policy: Any = None, accelerator: Any = None) -> Any:
    """mmrl's trainer; with a policy it takes that one, with accelerate's Accelerator its processes."""
    from dataclasses import replace

    from mmrl.algorithms.presets import PRESETS
    from mmrl.algorithms.samplers.base import Shuffled
    from mmrl.core.ranks import Ranks
    from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
    from mmrl.training.optim import OptimizerSettings
    from mmrl.training.rewards.runner import NamedReward, RewardRunner
    from mmrl.training.settings import TrainSettings
    from mmrl.training.trainer import Trainer

    prefix: Any = case.prefix
    if policy is None:
        sampling = Sampling(max_new_tokens=case.tokens)
        config = TextPolicyConfig(case.model, gradient_checkpointing=case.checkpointing, prefix=prefix, sampling=sampling)
        policy = TextPolicy(config)
        if accelerator is not None:
            policy.prepare(accelerator)
    algorithm = replace(PRESETS["grpo"], objective=PRESETS["grpo"].objective[:1], group_size=case.group_size)
    reward = NamedReward("ids", lambda group: [score(sample.token_ids) for sample in group.samples])
    settings = TrainSettings(
        prompts_per_step=case.prompts, micro_batch=2**20, audit_steps=1, optimizer=OptimizerSettings(lr=1e-6)
    )
    drawn = Shuffled(prompts_of(case.length, 4 * case.prompts), seed=0)
    return Trainer(policy, algorithm, drawn, RewardRunner([reward]), settings, ranks=Ranks(accelerator))


class Clock:
    """CPU seconds of a trainer's steps, and of their sampling and scoring, the method `name` of `owner`.

    With one thread they are what a step takes on an idle machine, and other work on the machine changes them little.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.steps: list[float] = []
        self.rollouts: list[float] = []
        self.inner = getattr(owner, name)
        setattr(owner, name, self.sample)

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        out = self.inner(*args, **kwargs)
        self.rollouts.append(time.process_time() - start)
        return out

    def found(self, warm_up: int) -> dict[str, Any]:
        """Seconds of the steps after so many, and of their parts."""
        steps, rollouts = self.steps[warm_up:], self.rollouts[warm_up:]
        rest = [whole - part for whole, part in zip(steps, rollouts, strict=True)]
        return {"seconds": steps, "split": {"rollout": rollouts, "update": rest}}

    def callback(self) -> Any:
        """Tells the clock when a trainer of transformers begins and ends a step."""
        import transformers

        clock = self

        class Watch(transformers.TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                self.start = time.process_time()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                clock.steps.append(time.process_time() - self.start)

        return Watch()


def mmrl_steps(case: Case, count: int, warm_up: int) -> dict[str, Any]:
    """CPU seconds of mmrl's steps and of their parts, tokens of the last step and of a prompt."""
    trainer = mmrl_trainer(case)
    clock, actions = Clock(trainer, "collect"), 0.0
    for _ in range(warm_up + count):
        start = time.process_time()
        actions = trainer.step()["rollout/actions"]
        clock.steps.append(time.process_time() - start)
    prompt = trainer.policy.encode(prompts_of(case.length, 1)[0])
    return {**clock.found(warm_up), "tokens": actions, "prompt_tokens": len(prompt.token_ids)}


def trl_settings(count: int, group_size: int, tokens: int, checkpointing: bool, **others: Any) -> Any:
    """GRPOConfig for the same step: one forward for all rows, one update, no KL, the loss of GRPO, float32."""
    trl: Any = __import__("trl")  # its names are made at run time
    chosen = {"bf16": False, "use_cpu": True, **others}
    return trl.GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=count,
        num_generations=group_size,
        max_completion_length=tokens,
        beta=0.0,
        loss_type="grpo",
        gradient_checkpointing=checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if checkpointing else None,
        report_to=[],
        save_strategy="no",
        logging_steps=10**6,
        disable_tqdm=True,
        **chosen,
    )


def trl_trainer(model: str, prompts: list[Any], reward: Any, settings: Any) -> Any:
    """TRL's trainer on these prompts; `reward` is called with `index` of each."""
    import datasets
    import transformers

    trl: Any = __import__("trl")  # its names are made at run time
    columns = {
        "prompt": [[{"role": "user", "content": prompt.text}] for prompt in prompts],
        "image": [prompt.media[0] for prompt in prompts],
        "index": list(range(len(prompts))),
    }
    return trl.GRPOTrainer(
        model=transformers.AutoModelForImageTextToText.from_pretrained(model),
        reward_funcs=reward,
        args=settings,
        train_dataset=datasets.Dataset.from_dict(columns),
        processing_class=transformers.AutoProcessor.from_pretrained(model),
    )


def trl_steps(case: Case, count: int, warm_up: int) -> dict[str, Any]:
    """CPU seconds of TRL's steps and of their parts, and tokens of the last step."""
    tokens: list[int] = []

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        tokens.append(sum(map(len, completion_ids)))
        return [score(ids) for ids in completion_ids]

    rows = case.prompts * case.group_size
    more = {"max_steps": warm_up + count, "learning_rate": 1e-6}
    settings = trl_settings(rows, case.group_size, case.tokens, case.checkpointing, **more)
    trainer = trl_trainer(case.model, prompts_of(case.length, 4 * case.prompts), reward, settings)
    clock = Clock(trainer, "_generate_and_score_completions")
    trainer.add_callback(clock.callback())
    trainer.train()
    return {**clock.found(warm_up), "tokens": tokens[-1]}
