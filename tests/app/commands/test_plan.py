"""`mmrl plan`: counted calls are those of a real model, estimated bytes those of its tensors, and what does not fit is said."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import typer

from mmrl.algorithms.algorithm import Algorithm
from mmrl.answers.boxes.box import Box
from mmrl.app.cli import program as cli
from mmrl.app.commands import plan
from mmrl.app.commands.options import PlanArguments
from mmrl.app.config import run as configs
from mmrl.app.modality.registry import modality_of
from mmrl.app.planning.memory import GIB, Memory, advice, room
from mmrl.app.planning.plan import CountedRun
from mmrl.app.run.build import build, with_local_model
from mmrl.core.types import Prompt, Request, Scores
from mmrl.policies.shared.dry_run import PHASES, CallCount, LiveBytes, size_of
from mmrl.policies.text.parts import TextParts
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.write.generate import Generation
from mmrl.training.callbacks import Examples
from tests.support.flow_runs import Make
from tests.support.presets import TEXT, VIDEO
from tests.support.refused import refused
from tests.support.text_policies import picture, text_trace
from tests.support.worlds import Ending

PRESETS = TEXT | VIDEO
SMALL = ["prompts_per_step=4", "micro_batch=120", "policy.sampling.max_new_tokens=5", "algorithm.minibatches=2"]


def calls_of(algorithm: Algorithm) -> frozenset[Any]:
    """What decides how often a model is called, each by itself; advantages, surrogates and shares call none."""
    live = {(reading.model, reading.view) for reading in algorithm.live_reads}
    frozen = {reading for reading in algorithm.frozen_reads if reading.model != "rollout"}
    # A text model's rollouts are never cut, so terms of actions and of rollouts cut a batch alike.
    return frozenset({type(algorithm.planner), *live, *frozen, algorithm.scope.replace("action", "rollout"), algorithm.old})


def covering(names: Sequence[str]) -> list[str]:
    """A few of these presets in which every part of one occurs."""
    parts, chosen = {name: calls_of(PRESETS[name]) for name in names}, list[str]()
    left = set[Any]().union(*parts.values())
    while left:
        chosen.append(max(names, key=lambda name: len(parts[name] & left)))
        left -= parts[chosen[-1]]
    return chosen


COUNTED = sorted({calls_of(algorithm): name for name, algorithm in PRESETS.items()}.values())
"""One preset for every way to call a model."""


def few(names: Iterable[str], fast: Container[str], others: pytest.MarkDecorator = pytest.mark.slow) -> list[Any]:
    """Parameters of which all but a few are slow, or what else the mark says."""
    return [pytest.param(name, id=name, marks=() if name in fast else others) for name in names]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def policy(cache: Path) -> TextPolicy:
    """A real tiny model that writes to the end of its room, with all weights any preset wants beside it."""
    config = with_local_model(configs.load("tiny/image", SMALL).config)
    policy = TextPolicy(config.policy, {"ref", "ema", "previous"})  # type: ignore[arg-type]
    policy.net.banned[list(policy.eos_token_ids)] = True
    return policy


def prompts(answer: object = "7", columns: Mapping[str, float] = MappingProxyType({})) -> list[Prompt]:
    """With two pictures each, whose order can be shuffled."""
    return [Prompt(f"p{i}", "which is it" + "?" * i, (picture(i), picture(i + 9)), answer, columns) for i in range(8)]


def counted_run(name: str, *words: str) -> CountedRun:
    count = 4 if name in ("adapt_think", "hbpo") else 3
    words = (f"algorithm.group_size={count}", f"algorithm.preset={name}", "algorithm.needs_rewards=[]", *words)
    if name == "adapt_think":
        # this model's template opens no thought
        words = (*words, "algorithm.planner.without=no")
    local = with_local_model(configs.load("tiny/image", [*SMALL, *words]).config)
    algorithm = modality_of(local.policy).adapt_algorithm(local.algorithm.algorithm, local.policy, name)
    # one weighs rollouts by the size of true boxes
    columns = {"difficulty": 4.0, "reference_accuracy": 0.5} if name in ("pixelthink", "adapt_think") else {}
    return CountedRun(local, algorithm, prompts(Box(0, 0, 20, 30) if name == "gui_g1" else "7", columns))


def hooked(policy: TextPolicy) -> tuple[dict[str, CallCount], list[Any]]:
    """Counts at the module below the head and at the vision tower; the handles that remove them."""
    counts, sampling = {phase: CallCount() for phase in PHASES}, list[bool]()

    def phase() -> str:
        return "rollout" if sampling else "update" if torch.is_grad_enabled() else "read"

    def core(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        count = counts[phase()]
        count.passes, count.positions = count.passes + 1, count.positions + kwargs["input_ids"].numel()

    def vision(module: Any, args: Any) -> None:
        counts[phase()].vision += 1

    def net(module: Any, args: Any) -> None:
        sampling[:] = [True] if isinstance(args[0], Generation) else []
        count = counts[phase()]
        count.parts, count.rows = count.parts + 1, count.rows + len(args[0].prompt_index)

    handles = [
        policy.net.register_forward_pre_hook(net),
        policy.net.core.register_forward_pre_hook(core, with_kwargs=True),
        policy.net.core.visual.register_forward_pre_hook(vision),
    ]
    return counts, handles


def counted(policy: TextPolicy, made: CountedRun, worst: bool) -> tuple[dict[str, CallCount], int]:
    """What hooks count in the second step of a real model, with the dry run's rewards, and the rows that it trains on."""
    policy.views = dict(made.algorithm.views)
    made.policy = policy
    trainer, rewards = made.trainer(worst)
    trainer.step()
    for reward in rewards:
        if reward.planner is not None:
            reward.planner.looked = 0
    counts, handles = hooked(policy)
    metrics = trainer.step()
    for handle in handles:
        handle.remove()
    return counts, round(metrics["rollout/actions"] / metrics["rollout/length"])


@pytest.mark.parametrize("name", few(COUNTED, {*COUNTED[:2], *covering(COUNTED)}, pytest.mark.evidence))
def test_calls_of_a_step_are_those_of_a_real_model(policy, name):
    """Every planner and every reading here, and every mixture of them in `make evidence`."""
    made = counted_run(name)
    calls = made.calls()
    found, trained = counted(policy, made, worst=False)
    if name == "high_entropy":
        # rows without a token of high entropy leave the update, which no dry run can know
        assert 0 < found["update"].rows <= calls.counts["update"].rows
        found["update"] = calls.counts["update"]
    if name in ("treerl", "critique_grpo"):
        # nor how far into an answer its least likely tokens lie, nor how long an answer is as a text that is shown again
        found["rollout"].positions = calls.counts["rollout"].positions
    assert found == calls.counts
    assert calls.counts["update"].parts >= 2 and calls.trained == trained >= 12


@pytest.mark.parametrize("name", few(["dapo", "deepvideo_r1"], ["deepvideo_r1"]))
def test_the_most_a_planner_can_ask_for(policy, name):
    words = ["algorithm.planner.max_rounds=3"] if name == "dapo" else []
    made = counted_run(name, *words)
    least, most = made.calls(), made.calls(worst=True)
    found, _ = counted(policy, made, worst=True)
    for phase, count in most.counts.items() if name == "deepvideo_r1" else ():
        # Its hints are cut from completions, and a real model writes other ones.
        count.positions = found[phase].positions
    assert found == most.counts
    assert (least.rounds, most.rounds) == (1, 3)
    # dapo: 12 rows in each round; deepvideo_r1: 12 plain, 2 guides for each of 4 groups, 12 with hints
    assert (least.counts["rollout"].rows, most.counts["rollout"].rows) == (12, 36 if name == "dapo" else 32)


def test_continuations_are_counted_as_if_every_token_were_doubtful():
    """12 answers of five tokens, each cut before its first, third and fifth, and four that go on from each cut."""
    made = counted_run("spo_segment", "algorithm.planner.interval=2")
    least, most = made.calls(), made.calls(worst=True)
    assert (least.rounds, least.counts["rollout"].rows, least.trained) == (2, 12 * (1 + 3 * 4), 12)
    assert most.counts == least.counts


def test_episodes_are_counted_with_their_pictures(cache: Path):
    """A real model that plays with the worlds of the dry run does the same work; they fill an episode up to its limits."""
    limits = [f"environment.limits.{name}" for name in ("turns=3", "tokens=230", "pictures=3", "pixels=40000")]
    made = counted_run("grpo", "environment.use=zoom", *limits)
    calls, worlds = made.calls(), made.dry_run.worlds  # type: ignore[attr-defined]
    policy = TextPolicy(made.config.policy, {"ref"}, parts=TextParts(generator=Ending, worlds=worlds))  # type: ignore[arg-type]
    policy.net.banned[list(policy.eos_token_ids)] = True
    found, trained = counted(policy, made, worst=False)
    assert found == calls.counts and calls.trained == trained == 12
    assert calls.counts["rollout"].rows == 3 * 12 and calls.counts["update"].positions > 12 * 200
    held = made.dry_run.host_bytes()["pictures of observations"]
    one = policy.rollout([Request(prompts()[0], 1, 0)])
    assert held == 12 * size_of(x for inset in text_trace(one.trace).insets[0] for x in inset.media.values()) > 0
    [sample] = one.groups[0].samples
    shown = [turn.media_sizes for turn in sample.turns]
    assert sample.ended == "turns" and 200 < len(sample.token_ids or ()) <= 230 and list(map(len, shown)) == [2, 1, 0]
    assert worlds.side == max(size.width for sizes in shown for size in sizes)
    assert f"up to 3 turns, 3 pictures of up to {worlds.side} x {worlds.side} pixels (" in made.dry_run.log.episode


MODELS: dict[str, list[str]] = {
    "whole": [],
    "adapter": ["policy.dtype=bfloat16", "policy.lora.rank=4", "policy.gradient_checkpointing=true", "ratio_bound=1.0"],
    "repeated": ["policy.prefix=repeated", "policy.logit_chunk=2000"],
    "half": ["policy.dtype=bfloat16", "policy.freeze=['vision']", "ratio_bound=1.0", "optimizer.kind=sgd"],
}


def track(owner: Any, name: str, peaks: dict[str, int], phase: Callable[..., str]) -> None:
    """Note the bytes that live at most inside a method."""
    method = getattr(owner, name)

    def tracked(*args: Any) -> Any:
        if torch.is_grad_enabled() and name != "update":
            return method(*args)
        with LiveBytes() as live:
            out = method(*args)
        key = phase(*args)
        peaks[key] = max(peaks.get(key, 0), live.peak)
        return out

    setattr(owner, name, tracked)


@pytest.mark.parametrize("name", few(MODELS, ["whole", "adapter"], pytest.mark.evidence))
def test_estimated_bytes_are_those_of_tensors(name, cache, tmp_path):
    reward = tmp_path / "letters.py"
    reward.write_text("def letters(group):\n    return [sum(map(ord, sample.text)) % 997 / 997 for sample in group.samples]\n")
    # every sample has a reward of its own: a row without advantage would leave the update
    words = [f"reward=[{{use='{reward}'}}]", "algorithm.old=reread", "mean_ratio_bound=1.0"]
    resolved = configs.load("tiny/image", [*SMALL, *words, *MODELS[name]])
    made = plan.draw_up(resolved).memory
    job = build(resolved)
    policy: Any = job.policy
    policy.net.banned[list(policy.eos_token_ids)] = True
    job.trainer.step()
    peaks: dict[str, int] = {}
    track(job.trainer, "update", peaks, lambda batch: "update")
    track(policy, "run", peaks, lambda work: "rollout" if isinstance(work, Generation) else "read")
    job.trainer.step()
    trained = size_of(policy.parameters())
    kept = [tensor for state in job.trainer.optimizer.state.values() for tensor in state.values() if torch.is_tensor(tensor)]
    shadows = [tensor for shadow in policy.weights.shadows.values() for tensor in shadow.weights]
    stays = size_of(policy.net.model.parameters()) + trained + size_of(kept) + size_of(shadows)
    assert sum(made.stays.values()) == pytest.approx(stays, rel=0.01)
    assert made.stays["gradients"] == trained
    # gradients are made inside of an update
    assert made.phases["update"] + trained == pytest.approx(peaks["update"], rel=0.25)
    assert made.phases["rollout"] == pytest.approx(peaks["rollout"], rel=0.2)
    # readings of the reference also put the live weights aside, outside of a forward
    assert made.phases["read"] - trained == pytest.approx(peaks["read"], rel=0.2)


@pytest.mark.parametrize("family", few(["sd3", "flux", "qwen_image"], ["sd3"], pytest.mark.evidence))
def test_estimated_bytes_of_image_generators(family, make: Make):
    tokens = {"sd3": 3, "flux": 24, "qwen_image": 40}[family]
    words = [f"policy.model=tiny:{family}", f"policy.max_prompt_tokens={tokens}", "policy.guidance=2.0", "policy.lora.rank=2"]
    resolved = make(*words, "policy.equal_forwards=true", "policy.forward_rows=8", "policy.decode_rows=4")
    made = plan.draw_up(resolved)
    job = build(resolved)
    policy: Any = job.policy
    job.trainer.step()
    peaks: dict[str, int] = {}
    track(job.trainer, "update", peaks, lambda batch: "update")
    track(policy, "forward", peaks, lambda *_: "forward")
    track(policy, "decoder", peaks, lambda *_: "decode")
    job.trainer.step()
    networks = [part for part in policy.pipeline.components.values() if isinstance(part, torch.nn.Module)]
    weights = sum(size_of(network.parameters()) for network in networks)
    trained = size_of(policy.parameters())
    assert made.memory.stays["gradients"] == trained
    # gradient, two of AdamW; the reference is the model without its adapter
    assert policy.shadows == {"ref"} and not policy.weights.shadows["ref"].weights
    assert sum(made.memory.stays.values()) == pytest.approx(weights + 3 * trained, rel=0.01)
    assert made.memory.phases["update"] + trained == pytest.approx(peaks["update"], rel=0.2)
    assert made.memory.phases["rollout"] == pytest.approx(peaks["forward"], rel=0.2)
    assert made.memory.phases["decode"] == pytest.approx(peaks["decode"], rel=0.2)


def test_encoders_that_rest_count_while_they_are_awake_and_two_processes_share_a_step(make: Make):
    resting = plan.draw_up(make("policy.rest_text_encoders=true")).memory
    one, two = (plan.draw_up(make(), processes) for processes in (1, 2))
    encoders = {name: size for name, size in one.memory.stays.items() if name.startswith("text_encoder")}
    assert encoders and not encoders.keys() & resting.stays.keys() and resting.phases["encode"] == sum(encoders.values())
    assert two.usual.counts["rollout"].rows * 2 == one.usual.counts["rollout"].rows
    assert two.memory.peak > one.memory.peak - one.memory.phases["update"] / 2


def test_what_does_not_fit_is_said_before_weights_load(make: Make, capsys, monkeypatch):
    monkeypatch.setattr(plan, "build", lambda *args, **kwargs: pytest.fail("weights were loaded"))
    assert not plan.plan(PlanArguments(["tiny/flow"], card="0.5GB"))
    said = " ".join(capsys.readouterr().out.split())
    assert "DOES NOT FIT: it needs about" in said and "gradients" in said
    assert plan.plan(PlanArguments(["tiny/flow"], card="24GB"))
    assert "fits a card of 24.0 GiB" in capsys.readouterr().out
    cli.plan(arguments=["tiny/flow"], card="0.5GB")
    with pytest.raises(typer.Exit):
        cli.plan(arguments=["tiny/flow"], card="0.5GB", strict=True)


@pytest.mark.parametrize(
    ("phase", "remedy"), [("update", "lower micro_batch"), ("rollout", "policy.rollout_rows"), ("decode", "policy.decode_rows")]
)
def test_advice_names_what_to_lower(phase, remedy):
    memory = Memory({"weights in bfloat16": 8 * GIB}, {"read": GIB, phase: 30 * GIB})
    said = advice(memory, 24 * GIB, is_text=True)
    assert said is not None and remedy in said and f"{phase} 30.00 GiB" in said and "needs about 38.50 GiB" in said
    assert advice(memory, 42 * GIB, is_text=True) is None
    whole = advice(Memory({"weights in float32": 30 * GIB}, {phase: GIB}), 24 * GIB, is_text=True)
    assert whole is not None and "bfloat16" in whole and 'policy.weights = "nf4"' in whole
    for is_text, change in ((True, "policy.quantized.embeddings"), (False, "policy.rest_text_encoders")):
        small = advice(Memory({"weights in 4 bits": 30 * GIB}, {phase: GIB}), 24 * GIB, is_text=is_text)
        assert small is not None and change in small and "shard" not in small


def test_sizes_of_cards_and_geometry_as_train_refuses_it(make: Make):
    assert room("24GB") == room(" 24 ") == 24 * GIB and room("512MB") == GIB // 2
    refused("write its memory as in --card 24GB", room, "big")
    refused("3 processes cannot share evenly", plan.plan, PlanArguments(["tiny/flow"], processes=3))
    tree = ["preset=branch_grpo", "schedule.kind=Tree", "group_size=6", "schedule.split_steps=[0, 1]"]
    refused("needs groups of a multiple of 4", plan.plan, PlanArguments(["tiny/flow", *(f"algorithm.{word}" for word in tree)]))


NO_SCORES = Scores((), torch.zeros(0, 0), torch.zeros(0, 0, dtype=torch.long), torch.zeros(0))


def test_evaluations_are_counted_as_the_trainer_makes_them(make: Make):
    for words, expected in (
        (["steps=4", "evaluate_every=2"], 3),
        (["steps=5", "evaluate_every=2"], 4),
        (["evaluate_every=0"], 2),
    ):
        job, seen_at = build(make(*words)), list[int]()
        job.trainer.evaluator.run = lambda step, seen_at=seen_at: (seen_at.append(step), ({}, Examples([], NO_SCORES)))[1]  # type: ignore
        job.trainer.step = lambda trainer=job.trainer: setattr(trainer, "index", trainer.index + 1) or {}  # type: ignore
        job.trainer.health.after_evaluation = lambda *args: None  # type: ignore[method-assign]
        job.trainer.fit()
        assert len(seen_at) == plan.evaluations(job.config) == expected


@pytest.mark.slow
def test_real_steps_are_timed_and_nothing_is_kept(make: Make, tmp_path: Path, capsys):
    timing = plan.timing(make(), 2)
    assert len(timing.steps) == 2 and timing.per_step() > timing.per_step("update") > 0 and timing.evaluation > 0
    assert not list(tmp_path.iterdir())
    config = make("steps=100", "evaluate_every=50").config
    fixed = plan.Timing([{"time/step_s": seconds, "rollout/actions": 60.0} for seconds in (30.0, 42.0)], 100.0, 0)
    # 100 steps of 36 seconds and 3 evaluations
    assert fixed.total(config) == 100 * 36 + 300
    plan.print_time(fixed, config, Memory({}, {}), price=2.0)
    said = " ".join(capsys.readouterr().out.split())
    assert "100 steps, 3 evaluations, about 65 minutes, 2.17 at 2 an hour" in said


def test_a_vision_part_that_does_not_train_is_passed_once_for_each_prompt():
    words = ["data.size=16", "algorithm.group_size=2", "prompts_per_step=3", "policy.sampling.max_new_tokens=4"]
    counts = plan.draw_up(configs.load("tiny/image", [*words, "policy.lora.rank=2", "policy.rollout_rows=2"])).usual.counts
    assert [counts[phase].vision for phase in ("rollout", "read", "update")] == [3, 0, 0]
    assert counts["rollout"].parts == 3
