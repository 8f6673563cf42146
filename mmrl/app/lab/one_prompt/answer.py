"""A prompt answered as a run answers held-out ones, by any of its checkpoints or by the model before training."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mmrl.app.config import run as configs
from mmrl.app.config.chosen import without_engine
from mmrl.app.config.run import RunConfig
from mmrl.app.errors import waiting
from mmrl.app.lab.evaluation.prepare import wanted_part
from mmrl.app.modality.registry import modality_of
from mmrl.app.run.build import build_policy, with_local_model
from mmrl.app.run.context import distributed_run
from mmrl.app.run.folder import RunDir
from mmrl.core.protocols import State
from mmrl.core.types import Prompt, Request, Sample
from mmrl.runtime.process_state import seed as begin_random_state
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.determinism import deterministic
from mmrl.training.evaluate import MODELS

DRAWS = 'has a model that draws, and writes nothing: let it draw with mmrl draw {run} "a prompt"'
REMEDIES = {
    "text": 'has a model that writes, and draws nothing: ask it with mmrl ask {run} PICTURE "a question"',
    "flow": DRAWS,
    "token_image": DRAWS,
}
"""Kind of policy -> why another command is for it."""


@dataclass(frozen=True)
class Answer:
    """One sample, and what it was drawn with."""

    sample: Sample
    step: int
    """The checkpoint; 0 = the model before training."""
    seed: int
    box_space: str | None
    """How the model writes boxes; None where that is unknown, or it writes none."""


def config_of(run: RunDir, *kinds: str) -> RunConfig:
    """The settings of a run whose policy is of one of these kinds, without an engine; ValueError for another."""
    config = without_engine(configs.load(str(run.config_file))).config
    own = modality_of(config.policy).name
    if own not in kinds:
        raise ValueError(f"{run.path} {REMEDIES[own].format(run=run.path)}")
    return config


def answer(run: RunDir, config: RunConfig, prompt: Prompt, step: int | None = None, seed: int | None = None) -> Answer:
    """One answer by checkpoint `step` (None: the newest whole one, 0: the model before training).

    The sampling is that of held-out prompts, and so is the seed where none is given.
    Raises FileNotFoundError without the model, ValueError without such a checkpoint, or for a prompt that this model cannot
    answer, and CheckpointError for a damaged checkpoint.
    """
    evaluation, modality = config.evaluation, modality_of(config.policy)
    state, number = state_at(run, step), evaluation.seed if seed is None else seed
    local = with_local_model(config).policy
    modality.check_prompts(local, [prompt])
    with deterministic(config.deterministic), distributed_run() as (accelerator, _):
        begin_random_state(config.seed)
        torch.manual_seed(config.seed)
        with waiting(f"loading model {config.policy.model}"):
            policy = build_policy(local, frozenset(evaluation.all_weights - {"live"}))
        if accelerator is not None:
            policy.prepare(accelerator)
        if state is not None:
            policy.load_state_dict(wanted_part(state["policy"], policy, run))
        request = Request(prompt, 1, 0, model=MODELS[evaluation.weights], seed=number)
        with waiting("answering"):
            sample = policy.rollout([request], modality.eval_sampling(evaluation)).groups[0].samples[0]
    return Answer(sample, 0 if state is None else int(state["index"]), number, modality.box_space(local))


def state_at(run: RunDir, step: int | None) -> State | None:
    """A checkpoint of the run; None for the model before training."""
    checkpoints = Checkpoints(run.checkpoints)
    wanted, known = checkpoints.newest_whole() if step is None else step, checkpoints.steps()
    if wanted is None:
        raise ValueError(f"{run.path} has no whole checkpoint yet: --step 0 takes the model before training")
    if wanted and wanted not in known:
        there = f"there are {', '.join(map(str, known))}, and" if known else "there is none;"
        raise ValueError(f"{run.path} has no checkpoint of step {wanted}: {there} 0 is the model before training")
    with waiting("loading the checkpoint"):
        return checkpoints.load(wanted) if wanted else None


def usual_file(run: RunDir, prompt: Prompt, answer: Answer, suffix: str) -> Path:
    """The file of an answer for which no name is given: the same prompt, seed and step have the same one."""
    digest = hashlib.sha256("\0".join([prompt.text, *map(str, prompt.media)]).encode(errors="replace")).hexdigest()[:8]
    return run.path / "tries" / f"step-{answer.step:06d}-seed-{answer.seed}-{digest}{suffix}"


def refuse_missing(files: Sequence[Path]) -> None:
    """Raise FileNotFoundError for the first file that is not there."""
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"there is no file {file}: give the path of a picture or clip")


def refuse_other_out(out: Path | None, suffixes: Sequence[str], what: str) -> None:
    """Raise ValueError for a file of another kind, FileExistsError for one that is there."""
    if out is not None and out.suffix.lower() not in suffixes:
        raise ValueError(f"--out {out}: {what} is written as {' or '.join(suffixes)}")
    if out is not None and out.exists():
        raise FileExistsError(f"--out {out} exists already: choose another name, or remove it")


def step_words(step: int) -> str:
    return f"step {step}" if step else "before training"
