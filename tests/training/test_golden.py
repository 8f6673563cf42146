"""Six steps of every preset on fake policies, number by number: a change that only moves code reproduces them.

`python tests/training/test_golden.py` writes the committed numbers anew, or with `--missing` those of new presets; look at the
difference before committing them.
`... --write FILE` before a move and `... --compare FILE` after it, on one machine, want the same to 1e-6, also of runs of the
app on tiny models.

The fakes compute in float64, so that the rounding of another CPU neither forks a sampled trajectory nor comes near TOLERANCE.
A step makes several updates: at the first the ratio is 1, and many a loss is 0.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("golden.json")
STEPS = 6
WATCHED = ("loss", "policy/grad_norm", "reward/total", "rollout/length")
MOVING = WATCHED[:3]
TOLERANCE = 1e-5
"""On any CPU, of the largest value of a metric over the run."""
SAME = 1e-6
"""On one machine, of values and of their largest value over the run."""

Trace = dict[str, list[float]]

REWARD = "def letters(group):\n    return [len(set(sample.text)) / 100 for sample in group.samples]\n"
TEXT = ("algorithm.minibatches=2", 'reward=[{use = "./letters.py"}]', "optimizer.lr=1e-2")
REAL = {
    "app/image/grpo": ("tiny/image", *TEXT),
    "app/image/dapo": ("tiny/image", 'algorithm={preset = "dapo", group_size = 4}', *TEXT),
    "app/clips/tw_grpo": ("tiny/clips", "data.folder=files", *TEXT),
    "app/clips/t_grpo": ("tiny/clips", "data.folder=files", 'algorithm={preset = "t_grpo", group_size = 4}', *TEXT),
    "app/flow/flow_grpo": ("tiny/flow",),
    "app/flow/diffusion_nft": (
        "tiny/flow",
        'algorithm={preset = "diffusion_nft", group_size = 4}',
        "algorithm.schedule.num_steps=5",
        "algorithm.schedule.times.count=3",
    ),
}
"""Runs of the real app on tiny models of real classes: a config, and what is set beside it."""


@dataclass(frozen=True)
class InDouble:
    """An advantage computed in float64 from rewards, which are float32."""

    advantage: Any

    @property
    def reads(self) -> Any:
        return getattr(self.advantage, "reads", ())

    def __call__(self, scores: Any, rollouts: Any) -> Any:
        scores = replace(scores, values=scores.values.double(), weights=scores.weights.double())
        credit = self.advantage(scores, rollouts)
        return replace(credit, values=credit.values.double())


@contextmanager
def float64() -> Iterator[None]:
    """Inside, new tensors are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def makers() -> dict[str, Callable[[], Any]]:
    """For every preset, what makes a trainer with it: the one place that knows names of mmrl."""
    if __name__ == "__main__":
        sys.path.insert(0, str(ROOT))
    from tests.evidence.planner_rows import named_letter, targets
    from tests.evidence.thinking_rows import Reasoner
    from tests.flow.test_learning import small
    from tests.support import fakes
    from tests.support.flow_fakes import FakeFlowPolicy
    from tests.support.presets import FEWER_PROMPTS, FLOW, ON_TASKS, TEXT, VIDEO
    from tests.support.trainers import OptimizerSettings, Shuffled, make_trainer
    from tests.training.run_ranks import COLUMNS, Hinting
    from tests.training.test_video_methods import CLIPS

    told = [replace(prompt, columns={**prompt.columns, **COLUMNS}) for prompt in fakes.prompts()]

    def of_text(name: str) -> Any:
        """Some need hints, notes, boxes or the policy's own view of the truth."""
        preset = TEXT[name]
        if name not in {*ON_TASKS, *FEWER_PROMPTS, "attention_rhythm"}:
            return of_words(preset, fakes.prompts())
        if name == "gui_g1":
            return of_words(preset, targets(0), reward=named_letter)
        return of_words(preset, told, Reasoner() if name == "rlpr" else Hinting(views=preset.views))

    def of_words(algorithm: Any, prompts: list[Any], policy: Any = None, reward: Any = None) -> Any:
        policy = policy or fakes.FakeTextPolicy()
        sampler, optimizer = Shuffled(prompts, seed=0), OptimizerSettings(lr=2e-2)  # far enough for clips to act
        return make_trainer(prepared(algorithm), reward, policy=policy, sampler=sampler, optimizer=optimizer, steps=STEPS)

    def of_video(name: str) -> Any:
        preset, prompts = VIDEO[name], fakes.prompts()
        if name == "papo":  # it hides pictures, of which the fake has none
            return of_words(preset, prompts, fakes.FakeTextPolicy(views=dict.fromkeys(preset.views, blinded)))
        prompts = [replace(prompt, media=clip.media) for prompt, clip in zip(prompts, CLIPS, strict=True)]
        return of_words(preset, prompts, seeing(fakes.FakeTextPolicy(views=preset.views)))

    def of_flow(name: str) -> Any:
        algorithm, policy = prepared(small(name)), FakeFlowPolicy()
        algorithm = replace(algorithm, minibatches=min(algorithm.minibatches, algorithm.units(3)))
        if (decay := algorithm.ema_decay) is not None:
            policy.ema_decay = lambda updates: decay(50 * updates)  # the presets' averages follow over hundreds of updates
        return make_trainer(algorithm, policy=policy, lr=1e-2, steps=STEPS)

    made: dict[str, Callable[[], Any]] = {}
    made |= {f"text/{name}": lambda name=name: of_text(name) for name in TEXT}
    made |= {f"video/{name}": lambda name=name: of_video(name) for name in VIDEO}
    made |= {f"flow/{name}": lambda name=name: of_flow(name) for name in FLOW}
    return made


def blinded(prompt: Any, seed: int) -> Any:
    """A view that shows the fake policy nothing."""
    return replace(prompt, columns={"vector": [0.0, 0.0, 0.0]})


def seeing(policy: Any) -> Any:
    """The fake policy, shown something of a prompt's text and of its clip's frames, which planners change."""
    plain = policy._vectors

    def vectors(requests: list[Any]) -> dict[str, torch.Tensor]:
        prompts = [request.prompt for request in requests]
        seen = torch.tensor([len(prompt.text) / 100 + sum(map(look_of, prompt.media)) for prompt in prompts])
        return {name: x + seen[:, None, None] for name, x in plain(requests).items()}

    policy._vectors = vectors
    return policy


def look_of(clip: Any) -> float:
    """What the fake policy sees of a clip."""
    return clip.fps / 10 + (0.0 if clip.noise is None else clip.noise[0])


def prepared(algorithm: Any) -> Any:
    """For the fakes: two updates per step at least, advantages in float64, and parts that act on four letters."""
    return replace(
        algorithm,
        advantage=InDouble(algorithm.advantage),
        planner=fitted(algorithm.planner, template="{answer}", window=16, hint_per_reward=2.0, after=1, interval=2, **WORDS),
        shaping=tuple(fitted(part, low=2, high=3, **MODES) for part in algorithm.shaping),
        minibatches=max(4, algorithm.minibatches),
    )


WORDS = {"without": "d", "thinking": "a"}
MODES = {"short": "d", "think": "a", "mark": "", "unit": "tokens", "easy_budget": 1.0, "slope": 4.0}
"""Beginnings and lengths of answers in letters."""


def fitted(part: Any, **values: Any) -> Any:
    """The part with those of the values it has a field for."""
    known = {field.name for field in fields(part)}
    if "answers" in known:  # thoughts that are cut end with the stop
        values |= {"mark": "."}
    return replace(part, **{name: value for name, value in values.items() if name in known})


MAKERS = makers()


def all_metrics(name: str) -> list[dict[str, float]]:
    """Every number of every step of a preset's run on its fake policy."""
    with float64():
        trainer = MAKERS[name]()
        return [trainer.step() for _ in range(STEPS)]


def trace(name: str) -> Trace:
    """What a preset's run on its fake policy measures."""
    steps = all_metrics(name)
    return {metric: [step[metric] for step in steps] for metric in WATCHED}


def real_trace(name: str) -> Trace:
    """What the app writes down of a run on a tiny model, in a process, a folder and with a cache of its own."""
    config, *words = REAL[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "letters.py").write_text(REWARD)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MMRL_CACHE": str(folder / "cache")}
        environment["PYTHONPATH"] = str(ROOT)
        words = ["deterministic=true", "steps=4", "evaluate_every=0", "output=run", *words]
        command = [sys.executable, "-m", "mmrl", "train", config, *words]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return {metric: [line[metric] for line in lines if "loss" in line] for metric in MOVING}


def differences(found: list[float], expected: list[float]) -> tuple[float, float]:
    """The largest difference, and what it is of the largest expected value."""
    if len(found) != len(expected):
        return math.inf, math.inf
    apart = [0.0 if a == b or (a != a and b != b) else abs(a - b) for a, b in zip(found, expected, strict=True)]
    worst = math.inf if any(x != x for x in apart) else max(apart)
    scale = max(abs(x) for x in expected)
    return worst, 0.0 if worst == 0 else worst / scale if scale else math.inf


@pytest.fixture(scope="module")
def golden() -> dict[str, Trace]:
    return json.loads(GOLDEN.read_text())["traces"]


@pytest.mark.parametrize("name", MAKERS)
def test_trace_is_reproduced(name: str, golden: dict[str, Trace]):
    from mmrl.training.metric_names import metric_of

    steps = all_metrics(name)
    for metric in WATCHED:
        assert differences([step[metric] for step in steps], golden[name][metric])[1] < TOLERANCE, metric
    nameless = sorted({metric for step in steps for metric in step if metric_of(metric) is None})
    assert nameless == [], f"{nameless}: say unit and meaning in mmrl/training/metric_names.py"


def test_every_metric_of_every_preset_could_differ(golden: dict[str, Trace]):
    assert golden.keys() == MAKERS.keys()
    for name, found in golden.items():
        for metric in MOVING:
            values = found[metric]
            assert len(values) == STEPS
            assert max(map(abs, values)) > 1e-4, f"{name}: {metric} is nothing but rounding"
            assert max(values) - min(values) > 1e-2 * max(map(abs, values)), f"{name}: {metric} stands still"


def test_differences_are_found():
    assert differences([1.0, 2.0], [1.0, 2.0]) == (0, 0)
    assert differences([1.0, 2.5], [1.0, 2.0]) == (0.5, 0.25)
    assert differences([math.nan], [math.nan]) == (0, 0)
    for found, expected in (([math.nan], [1.0]), ([1.0], [math.nan]), ([1.0], [0.0]), ([1.0], [1.0, 1.0])):
        assert not differences(found, expected)[1] <= SAME
    one, other = {"run": {"loss": [1.0]}}, {"run": {"loss": [1.0 + 2e-6]}}
    assert compare(one, one)[1] and not compare(one, other)[1] and not compare(one, {})[1] and not compare({}, one)[1]


def everything() -> dict[str, Trace]:
    return {name: trace(name) for name in MAKERS} | {name: real_trace(name) for name in REAL}


def write(file: Path, traces: Mapping[str, Trace], digits: int = 17) -> None:
    """A line per metric."""
    blocks = []
    for name, found in traces.items():
        lines = [f'  "{metric}": {json.dumps([float(f"{x:.{digits}g}") for x in found[metric]])}' for metric in found]
        blocks.append(f' "{name}": {{\n' + ",\n".join(lines) + "\n }")
    file.write_text(f'{{"torch": "{torch.__version__}", "traces": {{\n' + ",\n".join(blocks) + "\n}}\n")


def compare(before: Mapping[str, Trace], now: Mapping[str, Trace]) -> tuple[list[str], bool]:
    """The largest differences of every run, a line each, and whether all are the same to SAME."""
    lines, same = [f"{'run':32} {'largest':>9} {'relative':>9}"], True
    for name in sorted(before.keys() | now.keys()):
        largest, relative = largest_differences(before.get(name, {}), now.get(name, {}))
        alike = largest <= SAME and relative <= SAME
        lines.append(f"{name:32} {largest:9.1e} {relative:9.1e}{'' if alike else '  DIFFERENT'}")
        same = same and alike
    return [*lines, f"{'the same' if same else 'NOT THE SAME'} to {SAME}"], same


def largest_differences(before: Trace, now: Trace) -> tuple[float, float]:
    """Of all metrics; infinite where one has a run or a metric that the other lacks."""
    if not before or before.keys() != now.keys():
        return math.inf, math.inf
    pairs = [differences(now[metric], values) for metric, values in before.items()]
    return max(largest for largest, _ in pairs), max(relative for _, relative in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description="Without an option, write the numbers that the test compares.")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--write", type=Path, metavar="FILE", help="write all runs, those of the app too, digit by digit")
    choice.add_argument("--compare", type=Path, metavar="FILE", help="compare all runs with FILE; 1 where they differ")
    choice.add_argument("--missing", action="store_true", help="write the runs that the committed file lacks, leave the others")
    choices = parser.parse_args()
    torch.set_num_threads(1)
    if choices.write:
        write(choices.write, everything())
    elif choices.compare:
        lines, same = compare(json.loads(choices.compare.read_text())["traces"], everything())
        sys.stdout.write("\n".join(lines) + "\n")
        sys.exit(not same)
    else:
        kept = json.loads(GOLDEN.read_text())["traces"] if choices.missing else {}
        write(GOLDEN, {name: kept[name] if name in kept else trace(name) for name in MAKERS}, digits=9)


if __name__ == "__main__":
    main()
