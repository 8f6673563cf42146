"""`mmrl.load_data` and `mmrl.load_reward`: shipped plug-ins, and your own, as Python objects."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from mmrl.app.config.plug_ins import read_data, reward_of
from mmrl.app.config.run import DataConfig
from mmrl.app.reward_model.scorer import Judge, Painter, Scorer, judge_of, painter_of, scorer_of
from mmrl.app.run.build import load_prompts
from mmrl.app.toml.tables import Table
from mmrl.core.samples import Prompt
from mmrl.serving.scorers.painting import Painting


def load_data(use: str, **settings: object) -> Sequence[Prompt] | Iterable[Prompt]:
    """The prompts of a data set, checked for rows that cannot be trained on: `mmrl.load_data("prompts", path="a.txt")`.

    Args:
        use: a name from `mmrl ls datasets`, or `./mine.py[:function]`.
        settings: arguments of its `load`; `mmrl show NAME` lists them.

    Raises:
        FileNotFoundError: no such plug-in file, or no data.
        ValueError: a setting that it does not know, or prompts that cannot be trained on, listed by file and row.
    """
    table = Table.of({"data": {"use": use, **settings}}, "mmrl.load_data")
    return load_prompts(read_data(DataConfig(use, settings), ("data",), table), use)


def load_reward(use: str, **settings: object) -> Callable[..., Any]:
    """A reward as a function from a group to one score per sample: `mmrl.load_reward("iou", threshold=0.5)`.

    A reward that reads boxes and has no `space` set gets it from the policy, in `mmrl.fit` and `mmrl.evaluate` only.

    Args:
        use: a name from `mmrl ls rewards`, `./mine.py[:Callable]`, or the address of a served reward.
        settings: its own settings; `mmrl show NAME` lists them.

    Raises:
        FileNotFoundError: no such plug-in file.
        ValueError: no such reward, or a setting that it does not know.
    """
    table = Table.of({"reward": {"use": use, **settings}}, "mmrl.load_reward")
    return reward_of(use, settings, ("reward",), table)()


def load_reward_model(run: str | Path, step: int | None = None, device: str = "auto", trust_remote_code: bool = False) -> Scorer:
    """The reward model that a run trained: `mmrl.load_reward_model("runs/rm").of_group(group)` gives {axis: score} per sample.

    Args:
        run: the run's folder.
        step: its checkpoint; None: the newest.
        device: auto (the GPU if there is one), cpu, cuda or cuda:1.
        trust_remote_code: Python files of the run's model may run, with your rights.

    Raises:
        FileNotFoundError: there is no such run.
        ValueError: it trained no reward model, its model runs Python files, or the checkpoint is damaged.
    """
    return scorer_of(Path(run).expanduser(), step, device, trust_remote_code)


def load_judge(run: str | Path, step: int | None = None, device: str = "auto", trust_remote_code: bool = False) -> Judge:
    """The model that a run trained, to be asked: `mmrl.load_judge("runs/judge").answers([prompt])` gives a sample per prompt.

    Args:
        run: the run's folder.
        step: its checkpoint; None: the newest.
        device: auto (the GPU if there is one), cpu, cuda or cuda:1.
        trust_remote_code: Python files of the run's model may run, with your rights.

    Raises:
        FileNotFoundError: there is no such run.
        ValueError: its model draws, or runs Python files, or the checkpoint is damaged.
    """
    return judge_of(Path(run).expanduser(), step, device, trust_remote_code)


def load_painter(painting: Painting) -> Painter:
    """A generator that draws for rewards and worlds: `load_painter(Painting(run="runs/t2i")).draw([(prompt, seed)])`.

    Raises:
        FileNotFoundError: there is no such model or run.
        ValueError: it writes, draws no pictures, or runs Python files.
    """
    return painter_of(painting)
