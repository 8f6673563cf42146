"""A run's weights in a policy again, for whatever is asked of it: an evaluation, one prompt, a score, an export."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from mmrl.app.config import run as configs
from mmrl.app.config.plug_ins import PlugIns, read_plug_ins
from mmrl.app.config.run import Resolved, RewardConfig, RunConfig, without_engine
from mmrl.app.errors import waiting
from mmrl.app.modality.base import PolicyNeeds
from mmrl.app.modality.registry import modality_of
from mmrl.app.run.beforehand import what_is_missing
from mmrl.app.run.build import evaluator_of, held_out_prompts, load_rewards, reward_runners, with_local_model
from mmrl.app.run.context import distributed_run
from mmrl.app.run.folder import RunDir
from mmrl.core.protocols import Policy, State
from mmrl.core.ranks import Ranks
from mmrl.core.types import Prompt, Request, Sample
from mmrl.runtime.accelerator import Accelerator
from mmrl.runtime.near import link
from mmrl.runtime.process_state import seed as begin_random_state
from mmrl.runtime.repeating import deterministic
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.evaluate import MODELS, Evaluator


def load_state(run: RunDir, step: int | None = None) -> State:
    """A checkpoint of the run, None: its newest whole one; CheckpointError where it is damaged or not there."""
    with waiting("loading the checkpoint"):
        return Checkpoints(run.checkpoints).load(step)


def revive(
    config: RunConfig,
    run: RunDir | None,
    state: State | None,
    shadows: frozenset[str] | None = None,
    ranks: Ranks = Ranks(),
    accelerator: Accelerator | None = None,
) -> Policy:
    """The policy of a config with the weights of a run's checkpoint; without one, the model as it is.

    `shadows` names the averages and references that it holds beside its weights, None: all that the run kept. Without an
    accelerator it stays on the CPU.
    Raises FileNotFoundError without the model, and ValueError if the run kept no weights of such a name.
    """
    if shadows is None:
        shadows = frozenset(() if state is None else state["policy"]["shadows"])
    local = with_local_model(config, ranks).policy
    if getattr(local, "teachers", ()):
        local = replace(local, teachers=())  # it answers, and follows nobody
    torch.manual_seed(config.seed)
    with ranks.main_first(not Path(local.model).expanduser().is_dir()), waiting(f"loading model {config.policy.model}"):
        policy = modality_of(local).build(local, PolicyNeeds(shadows))
    if accelerator is not None:
        policy.prepare(accelerator)
    if run is not None and state is not None:
        policy.load_state_dict(wanted_part(state["policy"], policy, run))
    return policy


def wanted_part(state: State, policy: Policy, run: RunDir) -> State:
    """A run's state without the averages and references that the policy has no use for; ValueError if one is missing.

    A reference that the run did not keep is the model as it was loaded.
    """
    kept = state["shadows"]
    if "ref" in policy.shadows - set(kept):
        kept = {**kept, "ref": policy.state_dict()["shadows"]["ref"]}
    missing = sorted(policy.shadows - set(kept))
    if missing:
        raise ValueError(f"{run.path} kept no weights called {missing[0]!r}: evaluate with evaluation.weights = 'live'")
    return state | {"shadows": {name: kept[name] for name in policy.shadows}}


@dataclass(frozen=True)
class EvaluationPlan:
    """All that is known of an evaluation without a model."""

    resolved: Resolved
    plug_ins: PlugIns
    prompts: list[Prompt]
    """The held-out prompts that are answered."""
    run: RunDir | None = None
    """The run whose weights answer; None: the model as it is."""
    state: State | None = None
    """The run's checkpoint."""

    @property
    def config(self) -> RunConfig:
        return self.resolved.config

    @property
    def step(self) -> int:
        """The step of the run's checkpoint; 0 for a model as it is."""
        return 0 if self.state is None else int(self.state["index"])

    @property
    def weights(self) -> str:
        """Words for the weights."""
        return f"{self.config.policy.model} as it is" if self.run is None else f"{self.run.path}, step {self.step}"


@dataclass(frozen=True)
class Ready:
    """A model that answers, and who scores it."""

    evaluator: Evaluator
    box_space: str | None
    """How the model writes boxes."""


def ask(resolved: Resolved, ranks: Ranks, run: RunDir | None = None, step: int | None = None) -> EvaluationPlan:
    """Read the prompts; `step` is a checkpoint of the run, None its newest whole one.

    Raises FileNotFoundError without data, CheckpointError without a whole checkpoint (of that step), and ValueError if there
    are no held-out prompts, or they are not like what is wanted of them.
    """
    resolved = without_engine(resolved)
    config = resolved.config
    if config.evaluation.data is None:
        missing = resolved.table.at(("evaluation", "data"))
        raise ValueError(f"{missing} is missing: add [evaluation.data] with the held-out prompts")
    if config.evaluation.num_prompts == 0:
        raise ValueError("evaluation.num_prompts is 0: leave it out, or set the number of prompts")
    begin_random_state(config.seed)
    plug_ins = read_plug_ins(resolved)
    with ranks.main_first():
        _, prompts = held_out_prompts(config, plug_ins.held_out)
    return EvaluationPlan(resolved, plug_ins, prompts, run, None if run is None else load_state(run, step))


def prepare(asked: EvaluationPlan, ranks: Ranks, accelerator: Accelerator | None = None) -> Ready:
    """Load rewards and model.

    Raises FileNotFoundError without a plug-in, model folder or checkpoint, ValueError where settings do not fit together or a
    reward misses its files or server.
    """
    plug_ins, config = asked.plug_ins, with_local_model(asked.config, ranks)
    modality = config.modality
    modality.check_prompts(config.policy, asked.prompts)
    to_fetch = not Path(config.policy.model).expanduser().is_dir()
    with ranks.main_first(to_fetch), waiting("loading rewards"):
        loaded = load_rewards(plug_ins.rewards)
    for reward, function in loaded:
        if isinstance(reward, RewardConfig) and reward.weight and (missing := what_is_missing(function)):
            raise ValueError(f"reward {reward.label!r} {missing}")
    space = modality.box_space(config.policy)
    rewards = reward_runners(config, loaded, space)[1]
    policy = revive(asked.config, asked.run, asked.state, config.evaluation.weights_beside, ranks, accelerator)
    nothing_trains = replace(config.algorithm.algorithm, schedule=None, objective=())
    modality.warn_after_load(policy, nothing_trains, config.evaluation, asked.prompts)
    config = replace(config, evaluation=replace(config.evaluation, num_prompts=len(asked.prompts)))
    return Ready(evaluator_of(config, policy, asked.prompts, rewards, ranks), space)


DRAWS = 'has a model that draws, and writes nothing: let it draw with mmrl draw {run} "a prompt"'
REMEDIES = {
    "text": 'has a model that writes, and draws nothing: ask it with mmrl ask {run} PICTURE "a question"',
    "flow": DRAWS,
    "token_image": DRAWS,
}
"""Kind of policy -> why another command is for it."""


@dataclass(frozen=True)
class AnswerSample:
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
    own = config.modality.name
    if own not in kinds:
        raise ValueError(f"{run.path} {REMEDIES[own].format(run=run.path)}")
    return config


def answer(run: RunDir, config: RunConfig, prompt: Prompt, step: int | None = None, seed: int | None = None) -> AnswerSample:
    """One answer by checkpoint `step` (None: the newest whole one, 0: the model before training).

    The sampling is that of held-out prompts, and so is the seed where none is given.
    Raises FileNotFoundError without the model, ValueError without such a checkpoint, or for a prompt that this model cannot
    answer, and CheckpointError for a damaged checkpoint.
    """
    evaluation, modality = config.evaluation, config.modality
    state, number = state_at(run, step), evaluation.seed if seed is None else seed
    try:
        prompt.text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"character {error.start + 1} of the prompt is half of one, as broken UTF-8 is: type it again") from None
    local = with_local_model(config).policy
    modality.check_prompts(local, [prompt])
    with deterministic(config.deterministic), distributed_run() as (accelerator, _):
        begin_random_state(config.seed)
        policy = revive(config, run, state, config.evaluation.weights_beside, accelerator=accelerator)
        request = Request(prompt, 1, 0, model=MODELS[evaluation.weights], seed=number)
        with waiting("answering" if modality.name == "text" else "drawing"):
            sample = policy.rollout([request], modality.eval_sampling(evaluation)).groups[0].samples[0]
    return AnswerSample(sample, 0 if state is None else int(state["index"]), number, modality.box_space(local))


def state_at(run: RunDir, step: int | None) -> State | None:
    """A checkpoint of the run; None for the model before training."""
    wanted = Checkpoints(run.checkpoints).newest_whole() if step is None else step
    if wanted is None:
        raise ValueError(f"{run.path} has no whole checkpoint yet: --step 0 takes the model before training")
    return load_state(run, wanted) if wanted else None


def usual_file(run: RunDir, prompt: Prompt, answer: AnswerSample, suffix: str) -> Path:
    """The file of an answer for which no name is given: the same prompt, seed and step have the same one."""
    digest = hashlib.sha256("\0".join([prompt.text, *map(str, prompt.media)]).encode(errors="replace")).hexdigest()[:8]
    return run.path / "tries" / f"step-{answer.step:06d}-seed-{answer.seed}-{digest}{suffix}"


def refuse_missing(files: Sequence[Path]) -> None:
    """Raise FileNotFoundError for the first file that is not there."""
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"there is no file {file}{link(file)}: give the path of a picture or clip")


def refuse_other_out(out: Path | None, suffixes: Sequence[str], what: str) -> None:
    """Raise ValueError for a file of another kind, FileExistsError for one that is there."""
    if out is not None and out.suffix.lower() not in suffixes:
        raise ValueError(f"--out {out}: {what} is written as {' or '.join(suffixes)}")
    if out is not None and out.exists():
        raise FileExistsError(f"--out {out} exists already: choose another name, or remove it")


def step_words(step: int) -> str:
    return f"step {step}" if step else "before training"
