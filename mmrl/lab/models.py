"""`tiny:NAME` -> the folder of a small model of a real class, made on this machine and kept: taught a task, or random."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmrl import __version__
from mmrl.algorithms.objectives.given import Imitation
from mmrl.app.config import run as configs
from mmrl.app.config.algorithm import algorithm_table
from mmrl.app.config.data import data_tables
from mmrl.app.config.run import Resolved, as_table
from mmrl.app.config.stages import stages_of
from mmrl.app.modality.registry import MODALITIES
from mmrl.app.plugins.lab import TINY
from mmrl.app.plugins.resolve import load
from mmrl.app.run.build import build
from mmrl.app.run.context import hushed_saving
from mmrl.app.run.trackers import Losses, Note
from mmrl.lab.tiny.flow import pipelines
from mmrl.lab.tiny.taught import TAUGHT, UNTAUGHT, Pupil
from mmrl.lab.tiny.text import janus, vlms
from mmrl.lab.tiny.text.student import Student
from mmrl.runtime.cache import cache_folder, hash_of, keep
from mmrl.runtime.process_state import keep_random_state
from mmrl.runtime.repeating import bit_for_bit
from mmrl.training.optim import OptimizerSettings
from mmrl.training.trainer import Trainer

BUILDERS: dict[str, Callable[[str, Path], object]] = {
    "text": lambda family, folder: UNTAUGHT[family](folder, 0) if family in UNTAUGHT else vlms.build(family, folder),
    "flow": pipelines.build,
    "token_image": janus.build,
}
"""Kind of policy -> what saves a random model of a family to a folder."""


def tiny_model(name: str, kind: str = "text") -> Path:
    """The folder of a small model, made once: `tiny:grounding` and `tiny:shapes` are taught, `tiny:<family>` is random.

    Raises ValueError if there is no such family.
    """
    family = name.removeprefix(TINY)
    if family in TAUGHT.get(kind, {}):
        return teach_once(kind, family)

    def make(folder: Path) -> None:
        with hushed_saving():
            BUILDERS[kind](family, folder)

    return keep(cache_folder() / f"random-{__version__}" / family, "", MODALITIES[kind].index_file, make)


def kind_of(name: str) -> str | None:
    """The kind of policy that a small model makes which draws; None for all others."""
    if name in janus.FAMILIES:
        return "token_image"
    return "flow" if name in pipelines.PIPELINES or name in TAUGHT["flow"] else None


def writers() -> Iterable[str]:
    """The families of models that write of which there is a small one."""
    return vlms.FAMILIES


def writer(family: str) -> tuple[Any, Any]:
    """A small model that writes, and its processor."""
    return vlms.FAMILIES[family]()


def teach_once(kind: str, name: str, seed: int = 0, progress: Note | None = None, short: bool = False) -> Path:
    """The folder of a model of mmrl.lab.tiny.taught, taught once and then kept; `short`: a few steps long."""
    how = TAUGHT[kind][name]
    if not isinstance(how, Pupil):
        return how(seed, progress, short)
    words = how.words(seed, short)
    config = configs.load(how.config, words).config
    data = {one.use for _, one in data_tables(config.data, ("data",))}
    code = (*how.code, *(load(use, "datasets") for use in sorted(data)), Imitation, OptimizerSettings, Trainer)
    built = asdict(how.build) if isinstance(how.build, Student) else {}
    table = as_table(config) | {"algorithm": algorithm_table(config.algorithm), "student": built}
    key = hash_of(table, code, ("torch", "transformers"))

    def make(folder: Path) -> None:
        teach(configs.load(how.config, [*words, f"policy.model={str(how.build(folder, seed))!r}"]), folder, progress)

    return keep(None, f"tiny-{name}-{key}", MODALITIES[kind].index_file, make)


@bit_for_bit()
def teach(resolved: Resolved, folder: Path, progress: Note | None) -> None:
    """Save to a folder what the stages of a config make of its model, the same bits every time."""
    job, stages = None, stages_of(resolved)
    with keep_random_state(), hushed_saving():
        for stage in stages:
            job = build(stage.resolved, watchers=lambda run: (Losses(progress, run.steps),), stage=stage, after=job)
            job.trainer.fit()
            job.policy.save(folder)
