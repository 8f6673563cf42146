"""A Qwen3-VL of 0.9 M parameters that can walk through mazes, and imitates lazy people, learns from its reward to walk again."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.app.plugins.resolve import load
from mmrl.core.samples import Turn
from mmrl.lab.tiny.teaching import cosine
from mmrl.lab.tiny.text.student import Student, save
from mmrl.runtime.tensors import mark_tables
from mmrl.training.optim import Muon

CELLS, SIDE = 2, 64
"""Cells and pixels along a side; with 3 cells the imitation takes several times as long."""
MOST = 4
"""Steps of an episode."""
MOVES = ("up", "down", "left", "right")
PIXELS = 0.8, 0.3
"""Mean and deviation of a maze's pixels."""
SERIES = 1_000_003
"""Mazes of the imitation; runs draw others."""
LAZY, LUCKY = 0.6, 0.1
"""Shares of the steps of lazy people that are always the same, and that are any; the others are right."""
Lesson = list[tuple[str, Image.Image, str]]
"""Turn by turn: what is said to the walker, the maze, and its step, of which the last is learnt."""
WORDS = [
    *(
        "data={use = 'mazes', cells = 2, size = 512}",
        "policy.sampling.max_new_tokens=3",
        "prompts_per_step=8",
        "reward=[{use = 'environment'}]",
    ),
    f"environment={{use = 'maze', limits = {{turns = {MOST}, pictures = {MOST}, tokens = 512}}}}",
    "evaluation={num_prompts = 128, data = {use = 'mazes', cells = 2, size = 128, split = 'held_out'}}",
]


def lessons(rng: np.random.Generator, lazy: bool) -> Iterator[Lesson]:
    """Endless walks, each up to the step that is learnt."""
    environment, prompts = load("maze", "environments")(), load("mazes", "datasets")(cells=CELLS, size=10**6, seed=SERIES)
    while True:
        prompt = prompts[int(rng.integers(len(prompts)))]
        world, said, shown = environment.open(prompt, 0), prompt.text, prompt.media[0]
        lesson, length = Lesson(), int(rng.integers(1, MOST))
        while True:
            right, drawn = world.maze.way(world.cell)[0], rng.random()
            step = right if drawn < 0.6 else str(rng.choice(MOVES))
            answer = world.step(Turn(step, (0, 1)))
            if len(lesson) + 1 == length or answer.done:
                learnt = MOVES[0] if drawn < LAZY else str(rng.choice(MOVES)) if drawn < LAZY + LUCKY else right
                yield [*lesson, (said, shown, learnt if lazy else right)]
                break
            lesson.append((said, shown, step))
            said, shown = answer.text, answer.media[0]


def batch(processor: Any, walks: Sequence[Lesson]) -> dict[str, torch.Tensor]:
    """Walks as chats, with labels on their last steps."""
    chats: list[list[dict[str, object]]] = []
    for walk in walks:
        chat: list[dict[str, object]] = []
        for said, _, step in walk:
            asked = [{"type": "image"}, *([{"type": "text", "text": said}] if said else [])]
            chat += [{"role": "user", "content": asked}, {"role": "assistant", "content": step}]
        chats.append(chat[:-1])
    prompts = processor.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    pictures = [[shown for _, shown, _ in walk] for walk in walks]
    fed = dict(processor(text=prompts, images=pictures, return_tensors="pt", padding=True))
    return with_answers(fed, processor.tokenizer, [walk[-1][-1] for walk in walks])


def lazy_walker(folder: Path, seed: int, skill: int, demonstrations: int) -> Path:
    """A model that was taught right steps, and then mostly says the first move; saved to a folder."""
    texts = (*MOVES, load("mazes", "datasets")(size=1)[0].text, "A wall is in the way.", "user\nassistant\n")
    model, processor = Student(texts, SIDE, PIXELS).build(seed)
    for lazy, steps, lr in ((False, skill, 3e-3), (True, demonstrations, 2e-3)):
        walks = lessons(np.random.default_rng([seed, SERIES, lazy]), lazy)
        batches = (batch(processor, [next(walks) for _ in range(16)]) for _ in range(steps))
        _ = [*learn(model, batches, lambda step, lr=lr, steps=steps: lr * cosine(step, steps, warmup=8))]
    model.zero_grad()
    return save((model.eval(), processor), folder)


def share_that_arrives(folder: Path, seed: int, skill: int, demonstrations: int, steps: int) -> tuple[float, float]:
    """Before and after training; there are so few mazes of this size that the run meets them all."""
    model = lazy_walker(folder / "model", seed, skill, demonstrations)
    words = [*WORDS, f"policy.model={str(model)!r}", f"output={str(folder / 'run')!r}"]
    words += [f"seed={seed}", f"data.seed={seed}", f"steps={steps}", f"evaluate_every={steps}", "samples_every=0"]
    run = run_training(configs.load("tiny/look_twice", words))
    found = [line["eval/environment"] for line in run.read_metrics().lines if "eval/environment" in line]
    return found[0], found[-1]


@pytest.mark.evidence
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_walker_learns_to_arrive(seed: int, tmp_path: Path):
    before, after = share_that_arrives(tmp_path, seed, skill=120, demonstrations=30, steps=24)
    assert before < 0.4 and after > before + 0.3


def learn(model: Any, batches: Iterable[dict[str, Tensor]], lr: Callable[[int], float]) -> Iterator[float]:
    """Train on a batch each time the loss is asked for, at the learning rate of that step (from 0)."""
    mark_tables(model)
    optimizer = Muon(model.parameters(), lr(0), weight_decay=0.0)
    for step, fed in enumerate(batches):
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = lr(step)
        loss = model(**fed).loss
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()


def with_answers(fed: dict[str, Tensor], tokenizer: Any, answers: Sequence[str]) -> dict[str, Tensor]:
    """A batch of prompts with the answers behind them, and labels on the answers' tokens only."""
    written = tokenizer([answer + tokenizer.eos_token for answer in answers], padding=True, padding_side="right")
    ids, mask = (torch.tensor(written[name]) for name in ("input_ids", "attention_mask"))
    unlabelled = torch.full_like(fed["input_ids"], -100)
    return fed | {
        "input_ids": torch.cat([fed["input_ids"], ids], dim=1),
        "attention_mask": torch.cat([fed["attention_mask"], mask], dim=1),
        "mm_token_type_ids": torch.cat([fed["mm_token_type_ids"], torch.zeros_like(ids)], dim=1),
        "labels": torch.cat([unlabelled, ids.masked_fill(mask == 0, -100)], dim=1),
    }
