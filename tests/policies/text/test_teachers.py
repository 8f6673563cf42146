"""Teachers of models that write: one that is the student says nothing, to the last bit; runs come nearer to others."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch import Tensor

from mmrl.algorithms.advantages.experts import TowardsTeacher
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.given import FollowTeacher
from mmrl.algorithms.objectives.surrogates import Reinforce
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.algorithms.views import Privileged
from mmrl.app.modality.taught import measured_apart
from mmrl.core.readings import LOGPROBS, REF_LOGPROBS, TEACHER_LOGPROBS
from mmrl.core.types import Group, Prompt, Reading, Request, Rollouts, Target, Video
from mmrl.lab.tiny.text import beeps
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.parts import TextParts
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.settings import QuantizedSettings, TextTeacher
from mmrl.policies.text.teachers import config_of, named
from mmrl.policies.text.trace import TextTrace
from mmrl.policies.video.sampling import VideoSettings
from mmrl.training.checkpoints.state import copy_state
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.support.chains import same
from tests.support.presets import DISTILLED
from tests.support.refused import refused
from tests.support.sounds import tone, write_wav
from tests.support.text_policies import make, picture, plain_model, prompts, stir, text_trace
from tests.support.videos import even, write_video
from tests.support.worlds import Ending, Inline, looking

Tiny = Callable[[str], str]
LORA = LoraSettings(rank=4, alpha=8)
BETAS = (1.0, 0.3, 0.0)


@dataclass(frozen=True)
class Compared:
    """What came of a comparison: (n, t) each, and the largest gradient of any weight."""

    kl: Tensor
    agreement: Tensor
    logprobs: Tensor
    gradient: float


def compare(policy: TextPolicy, rollouts: Rollouts, target: Target) -> Compared:
    readings = [Reading("divergence", target=target), Reading("overlap", target=target), LOGPROBS]
    values = policy.read(rollouts.trace, readings, rollouts.action_mask)
    found = [values[reading] for reading in readings]
    grads = torch.autograd.grad(found[0].sum(), policy.parameters(), allow_unused=True)
    largest = max(float(grad.abs().max()) for grad in grads if grad is not None)
    return Compared(found[0].detach(), found[1].detach(), found[2].detach(), largest)


def asked(shown: list[Prompt], count: int = 2) -> list[Request]:
    return [Request(prompt, count, i, seed=5 + i) for i, prompt in enumerate(shown)]


@dataclass(frozen=True)
class Pair:
    """What a run may have beside teachers that are its student: its reference, its average, itself, its model, its adapter."""

    family: str = "qwen3_vl"
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    shown: Callable[[Path], list[Prompt]] = lambda _: prompts()
    worlds: bool = False


def clips(folder: Path) -> list[Prompt]:
    source = write_video(folder / "a.mp4", even(12))
    return [Prompt("clip", "when?", (Video(str(source), frames=4),))]


def sounds(folder: Path) -> list[Prompt]:
    return [Prompt("sound", "when?", (write_wav(folder / "a.wav", [tone(1.0)]),))]


SAME = {
    "packed rows": Pair(settings={"prefix": "packed"}),
    "repeated rows": Pair(settings={"prefix": "repeated"}),
    "LoRA": Pair(settings={"lora": LORA}),
    "4 bit": Pair(settings={"lora": LORA, "weights": "nf4"}),
    "checkpointing": Pair(settings={"lora": LORA, "gradient_checkpointing": True}),
    "small chunks": Pair(settings={"logit_chunk": 4096}),
    "bfloat16": Pair(settings={"lora": LORA, "dtype": "bfloat16"}),
    "frozen eyes": Pair(settings={"freeze": ("vision",)}),
    "softcapped, looks both ways": Pair("gemma3"),
    "clips": Pair(settings={"lora": LORA, "video": VideoSettings(workers=0)}, shown=clips),
    "sounds": Pair("beeps", settings={"lora": LORA}, shown=sounds),
    "episodes": Pair(settings={"lora": LORA}, worlds=True),
}
TARGETS = (Target("ref", beta=1.0), Target("ema", beta=0.0), Target("policy", beta=0.3), Target("teacher", beta=0.5, top=8))
TARGETS += tuple(Target("teacher", beta=beta) for beta in BETAS)


@pytest.mark.parametrize("name", SAME)
def test_a_teacher_that_is_the_student_says_nothing(name: str, tiny: Tiny, tmp_path: Path):
    pair = SAME[name]
    folder = str(beeps.build(tmp_path / "beeps")) if pair.family == "beeps" else tiny(pair.family)
    own = {key: pair.settings[key] for key in ("dtype", "weights") if key in pair.settings}
    teachers = [TextTeacher("model", model=folder, **{"dtype": "float32", **own})]
    if "lora" in pair.settings:
        make(folder, lora=LORA, **own).save(tmp_path / "adapter")
        teachers.append(TextTeacher("adapter", adapter=str(tmp_path / "adapter")))
    config = TextPolicyConfig(folder, sampling=Sampling(max_new_tokens=6), teachers=tuple(teachers), **pair.settings)
    parts = TextParts(generator=Ending, worlds=Inline(looking)) if pair.worlds else TextParts()
    policy = TextPolicy(config, ("ref", "ema"), parts=parts)
    shown = [replace(one, id=f"{one.id} {t.name}", columns={"teacher": t.name}) for one in pair.shown(tmp_path) for t in teachers]
    rollouts = policy.rollout(asked(shown, 1))
    mask = rollouts.action_mask
    for target in TARGETS:
        found = compare(policy, rollouts, target)
        assert float(found.kl.abs().max()) == 0.0 and found.gradient == 0.0, target
        torch.testing.assert_close(found.agreement[mask], torch.ones(int(mask.sum())))
        assert bool((found.kl[~mask] == 0).all()) and bool((found.logprobs[mask] < 0).all())


loaded = cache(plain_model)


def full_logprobs(folder: str, policy: TextPolicy, trace: TextTrace, row: int, shown: Encoded | None = None) -> Tensor:
    """Everything that transformers alone says of one row's tokens, (t, v)."""
    model, _ = loaded(folder)
    prompt = trace.prompts[int(trace.prompt_index[row])] if shown is None else shown
    length = int(trace.lengths[row])
    ids = torch.cat([prompt.token_ids, trace.tokens[row, :length]])[None]
    types = None if prompt.type_ids is None else torch.cat([prompt.type_ids, torch.zeros(length, dtype=torch.long)])[None]
    with torch.no_grad():
        named = {} if types is None else {"mm_token_type_ids": types}
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **named, **prompt.media).logits
    cut = logits[0, len(prompt.token_ids) - 1 : -1].double() / float(trace.temperature[row])
    return cut.masked_fill(policy.net.banned, -torch.inf).log_softmax(-1)


def by_definition(s: Tensor, t: Tensor, beta: float) -> Tensor:
    p, q = s.exp(), t.exp()
    m = (1 - beta) * p + beta * q

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(a > 0, a * (a / b).log(), 0.0).sum(-1)

    return {1.0: kl(p, q), 0.0: kl(q, p)}.get(beta, beta * kl(q, m) + (1 - beta) * kl(p, m))


def check_against(policy: TextPolicy, rollouts: Rollouts, target: Target, folders: Callable[[int], tuple[str, str]]) -> None:
    """Every row's comparison is that of (student, teacher) by transformers."""
    found, trace = compare(policy, rollouts, target), text_trace(rollouts.trace)
    for row in range(len(trace)):
        s, t = (full_logprobs(folder, policy, trace, row) for folder in folders(row))
        n = len(s)
        torch.testing.assert_close(found.kl[row, :n].double(), by_definition(s, t, target.beta), atol=5e-5, rtol=1e-3)
        overlap = torch.minimum(s.exp(), t.exp()).sum(-1)
        torch.testing.assert_close(found.agreement[row, :n].double(), overlap, atol=1e-5, rtol=1e-4)
    assert float(found.kl[rollouts.action_mask].mean()) > 0.05


def test_another_model_is_read_as_transformers_reads_it(tiny: Tiny, other: str):
    policy = make(tiny("qwen3_vl"), teachers=(TextTeacher("big", model=other, dtype="float32"),), logit_chunk=4096)
    rollouts = policy.rollout(asked(prompts()), replace(policy.config.sampling, temperature=0.7))
    for beta in BETAS:
        check_against(policy, rollouts, Target("teacher", beta=beta), lambda _: (tiny("qwen3_vl"), other))
    trace, mask = text_trace(rollouts.trace), rollouts.action_mask
    frozen = policy.read(trace, [TEACHER_LOGPROBS], mask)[TEACHER_LOGPROBS]
    for row in range(len(trace)):
        n = int(trace.lengths[row])
        own = full_logprobs(other, policy, trace, row).gather(-1, trace.tokens[row, :n, None])[:, 0]
        torch.testing.assert_close(frozen[row, :n].double(), own, atol=1e-4, rtol=1e-4)
    # the policy's own tokens alone: what is outside the mask is 0, and changes nothing inside
    holes = mask & (torch.arange(mask.shape[1]) % 2 == 0)
    some, whole = (compare(policy, replace(rollouts, action_mask=one), Target("teacher")) for one in (holes, mask))
    assert torch.equal(some.kl[holes], whole.kl[holes]) and not some.kl[~holes].any()


def test_rows_choose_their_teacher_by_a_column(tiny: Tiny, other: str):
    mine = tiny("qwen3_vl")
    teachers = (TextTeacher("a", model=other, dtype="float32"), TextTeacher("b", model=mine, dtype="float32"))
    policy = make(mine, teachers=teachers)
    shown = [replace(prompt, columns={"teacher": "ab"[i % 2]}) for i, prompt in enumerate(prompts())]
    rollouts = policy.rollout(asked(shown))
    index = text_trace(rollouts.trace).prompt_index
    check_against(policy, rollouts, Target("teacher", beta=0.3), lambda row: (mine, [other, mine][int(index[row]) % 2]))
    lost = policy.rollout(asked(prompts()[:1]))
    refused(r"name none of policy\.teachers", compare, policy, lost, Target("teacher"))


@pytest.mark.parametrize("kind", ["models", "adapters"])
def test_a_process_without_rows_keeps_step_with_those_that_have_some(kind: str, tiny: Tiny, other: str, tmp_path: Path):
    if kind == "adapters":
        make(tiny("qwen3_vl"), lora=LORA).save(tmp_path / "x")
        teachers = tuple(TextTeacher(name, adapter=str(tmp_path / "x")) for name in "ab")
    else:
        teachers = tuple(TextTeacher(name, model=other, dtype="float32") for name in "ab")
    policy, read = make(tiny("qwen3_vl"), lora=LORA, teachers=teachers), list[str]()
    shown = [replace(prompt, columns={"teacher": "ab"[i % 2]}) for i, prompt in enumerate(prompts())]
    rollouts = policy.rollout(asked(shown))
    policy.ranks.world, evaluator = 2, policy.evaluator

    def count(work: Any) -> dict[str, Tensor]:
        read.append(type(work).__name__)
        return evaluator(work)

    policy.evaluator = count
    readings = [Reading("divergence", target=Target("teacher")), LOGPROBS, TEACHER_LOGPROBS]
    passes: list[list[str]] = []
    for rows in (torch.arange(len(rollouts.action_mask)), torch.zeros(0, dtype=torch.long)):
        values = policy.read(text_trace(rollouts.trace).take(rows), readings, rollouts.action_mask[rows])
        assert all(value.shape == rollouts.action_mask[rows].shape for value in values.values())
        passes.append(read.copy())
        read.clear()
    assert passes[0] == passes[1] and len(passes[0]) == (5 if kind == "adapters" else 1)


def test_an_adapter_teaches_beside_the_one_that_trains(tiny: Tiny, tmp_path: Path):
    taught = make(tiny("qwen3_vl"), lora=replace(LORA, rank=2))
    stir(taught, 0.1, seed=3)
    taught.save(tmp_path / "taught")
    teacher = TextTeacher("taught", adapter=str(tmp_path / "taught"))
    policy, alone = (make(tiny("qwen3_vl"), {"ref"}, lora=LORA, teachers=one) for one in ((teacher,), ()))
    rollouts = policy.rollout(asked(prompts()))
    assert list(policy.weights.named) == list(alone.weights.named) and not policy.weights.shadows["ref"].weights
    values = policy.read(rollouts.trace, [TEACHER_LOGPROBS, REF_LOGPROBS], rollouts.action_mask)
    own = taught.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS].detach()
    torch.testing.assert_close(values[TEACHER_LOGPROBS], own, atol=1e-5, rtol=1e-4)
    assert float((values[TEACHER_LOGPROBS] - values[REF_LOGPROBS]).abs().max()) > 0.01
    found = compare(policy, rollouts, Target("teacher"))
    assert float(found.kl.max()) > 0.01 and found.gradient > 0
    policy.save(tmp_path / "saved")
    alone.save(tmp_path / "alone")
    names = [sorted(one.name for one in (tmp_path / folder).rglob("*") if one.is_file()) for folder in ("saved", "alone")]
    assert names[0] == names[1]
    saved, usual = (load_file(tmp_path / folder / "adapter_model.safetensors") for folder in ("saved", "alone"))
    assert saved.keys() == usual.keys()


def test_an_adapter_that_sees_otherwise_looks_for_itself(tiny: Tiny, tmp_path: Path):
    """What the policy saw of a picture is kept where its own eyes stay as they are, and is not what such a teacher sees."""
    taught = make(tiny("qwen3_vl"), lora=replace(LORA, targets=("qkv", "linear_fc1")))
    stir(taught, 0.1, seed=3)
    taught.save(tmp_path / "taught")
    policy = make(tiny("qwen3_vl"), lora=LORA, teachers=(TextTeacher("taught", adapter=str(tmp_path / "taught")),))
    rollouts = policy.rollout(asked(prompts()))
    found = policy.read(rollouts.trace, [TEACHER_LOGPROBS, LOGPROBS], rollouts.action_mask)
    own = taught.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS].detach()
    torch.testing.assert_close(found[TEACHER_LOGPROBS], own, atol=1e-4, rtol=1e-4)
    assert float((own - found[LOGPROBS].detach()).abs().max()) > 0.01


def test_moved_weights_are_compared_with_their_reference_and_their_average(tiny: Tiny):
    for lora in (None, LORA):
        policy = make(tiny("qwen3_vl"), {"ref", "ema"}, lora=lora, ema_decay=0.5)
        rollouts = policy.rollout(asked(prompts()[:2]))
        stir(policy, 0.02, seed=3)
        before = [compare(policy, rollouts, Target(model)) for model in ("ref", "ema")]
        assert torch.equal(before[0].kl, before[1].kl) and float(before[0].kl.max()) > 1e-3
        policy.advance()
        after = compare(policy, rollouts, Target("ema"))
        assert 0 < float(after.kl.sum()) < float(before[1].kl.sum())


def test_a_teacher_that_sees_more_reads_the_same_tokens_behind_another_prompt(tiny: Tiny):
    views = {"v": Privileged(column="told", media="full")}
    policy = TextPolicy(TextPolicyConfig(tiny("qwen3_vl"), sampling=Sampling(max_new_tokens=6)), views=views)
    shown = [Prompt("one", "what?", (picture(0),), columns={"full": picture(1, 120, 90)})]
    rollouts = policy.rollout(asked(shown, 3))
    trace = text_trace(rollouts.trace).tell(["<<image>> blue <|image_pad|>", "", "no"])
    found = compare(policy, replace(rollouts, trace=trace), Target("policy", "v", beta=0.3))
    folder = policy.config.model
    for row, text in enumerate(("<< image>> blue < |image_pad|>", "", "no")):
        behind = policy.encode(views["v"](replace(shown[0], columns={**shown[0].columns, "told": text}), 0))
        s, t = full_logprobs(folder, policy, trace, row), full_logprobs(folder, policy, trace, row, behind)
        torch.testing.assert_close(found.kl[row, : len(s)].double(), by_definition(s, t, 0.3), atol=5e-5, rtol=1e-3)
    told = TextPolicy(policy.config, views={"v": Privileged(column="told")})
    again = told.rollout(asked(shown, 2))
    rows = replace(again, trace=text_trace(again.trace).tell(["a", "b"]))
    compare(told, rows, Target("policy", "v"))
    (one,) = text_trace(rows.trace).prompts
    assert len(one.views) == 2 and all(view.media is one.media for view in one.views.values()), "a picture is kept once"
    lengths = {len(one) for one in trace.prompts[0].views.values()}
    assert min(lengths) > len(trace.prompts[0]) and float(found.kl.mean()) > 0.01


def test_a_solution_may_be_the_number_0():
    view, shown = Privileged(column="solution"), [Prompt("a", "1 - 1?", columns={"solution": 0}), Prompt("b", "?")]
    view.check_prompts(shown)
    assert "solution:\n0\n" in view(shown[0], 0).text and view(shown[1], 0).text == "?"
    refused("none of the 1 prompts", view.check_prompts, [Prompt("a", "?", columns={"solution": ""})])


def test_settings_of_the_policy_alone_are_not_its_teachers():
    policy = TextPolicyConfig(
        "x", weights="nf4", lora=LORA, quantized=QuantizedSettings(embeddings="host"), trust_remote_code=True
    )
    plain, codes = (config_of(policy, TextTeacher("big", model="y", weights=weights)) for weights in ("float", "nf4"))
    assert plain.quantized == QuantizedSettings() and codes.quantized == policy.quantized
    assert (
        not plain.trust_remote_code and config_of(policy, TextTeacher("b", model="y", trust_remote_code=True)).trust_remote_code
    )
    with pytest.raises(ValueError, match=r"^set policy\.teachers\.1\.trust_remote_code = true, not policy\.lora"), named(1):
        raise ValueError("set policy.trust_remote_code = true, not policy.lora")


def test_who_cannot_teach_is_refused(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mmrl.policies.text.loading.load_weights", lambda *_, **__: pytest.fail("weights were loaded"))
    broken = shutil.copytree(tiny("qwen3_vl"), tmp_path / "broken")
    (broken / "tokenizer.json").write_text("{")
    for model, said in (
        (tiny("internvl"), r"policy.teachers 'x' \(.*\) has other tokens than policy.model .*sft"),
        (str(broken), r"policy\.teachers\.0\.model .*broken'.*cannot be loaded: check its files"),
    ):
        refused(said, make, tiny("qwen3_vl"), teachers=(TextTeacher("x", model=model),))
    monkeypatch.undo()
    whole = get_peft_model(plain_model(tiny("qwen3_vl"))[0], LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]))
    whole.save_pretrained(str(tmp_path / "whole"))
    found = {str(tmp_path / "whole"): r" .* trained whole \(.*lm_head.*merge it in peft", "/gone": ": there is no folder"}
    for folder, said in found.items():
        words, wrong = rf"policy\.teachers\.0\.adapter{said}", (TextTeacher("x", adapter=folder),)
        refused(words, make, tiny("qwen3_vl"), error=(ValueError, FileNotFoundError), lora=LORA, teachers=wrong)


SHOWN = [
    Prompt(str(i), "what is it?", (picture(i),), columns={"solution": f"it is {i}", "crop": picture(i + 7, 90, 60)})
    for i in range(2)
]
KINDS = {
    **DISTILLED,
    "sampled": replace(PRESETS["opd"], objective=((1.0, FollowTeacher(form="sampled", beta=1.0)),), group_size=8),
    "credit": replace(PRESETS["opd"], objective=((1.0, Reinforce()),), advantage=TowardsTeacher(bound=5.0), group_size=8),
}
"""What may follow a teacher."""


def odd_ones(group: Group) -> list[float]:
    """The second sample of every prompt is right."""
    return [float(i == 1) for i in range(len(group.samples))]


def run(folder: str, algorithm: Algorithm, teachers: Sequence[TextTeacher] = (), shown: Any = SHOWN, **more: Any) -> Trainer:
    reward, micro_batch = more.pop("reward", odd_ones), more.pop("micro_batch", 100_000)
    config = TextPolicyConfig(folder, sampling=Sampling(max_new_tokens=6), teachers=tuple(teachers), **more)
    torch.manual_seed(0)
    policy = TextPolicy(config, algorithm.shadows, algorithm.ema_decay or 0.99, algorithm.views)
    settings = TrainSettings(steps=6, prompts_per_step=2, micro_batch=micro_batch, optimizer=OptimizerSettings(lr=3e-3))
    runner = RewardRunner([] if algorithm.unscored else [NamedReward("odd", reward)], algorithm.unscored)
    return Trainer(policy, algorithm, Shuffled(shown, seed=0), runner, settings)


def teachers_of(algorithm: Algorithm, folder: str) -> list[TextTeacher]:
    models = {(reading.target or reading).model for reading in algorithm.all_reads}
    return [TextTeacher("big", model=folder, dtype="float32")] if "teacher" in models else []


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_run_comes_nearer_to_its_teacher(name: str, tiny: Tiny, other: str):
    algorithm = replace(KINDS[name], group_size=max(4, KINDS[name].group_size))
    trainer = run(tiny("qwen3_vl"), algorithm, teachers_of(algorithm, other), lora=LoraSettings(rank=4))
    steps = [trainer.step() for _ in range(6)]
    if name == "credit":
        assert all(step["policy/grad_norm"] > 0 for step in steps)
        return
    assert all(0 < step["teacher/agreement"] <= 1 and step["teacher/taught"] > 0 for step in steps)
    if name == "sampled":
        return
    assert sum(step["teacher/kl"] for step in steps[-2:]) < sum(step["teacher/kl"] for step in steps[:2])


def test_rows_of_sdpo_and_srpo_go_where_their_rewards_say(tiny: Tiny):
    found = {name: run(tiny("qwen3_vl"), replace(PRESETS[name], group_size=4)).step() for name in ("sdpo", "srpo")}
    # of sdpo the right row is told nothing and leaves; of srpo it keeps its reward
    assert found["sdpo"]["teacher/taught"] == pytest.approx(1.0) and 0.5 < found["srpo"]["teacher/taught"] < 1.0
    assert "policy/clip_frac" in found["srpo"]


def test_a_step_that_leaves_a_teacher_no_row_says_so(tiny: Tiny, caplog: pytest.LogCaptureFixture):
    sdpo = replace(PRESETS["sdpo"], group_size=4)
    trainer = run(tiny("qwen3_vl"), sdpo, reward=lambda group: [0.0] * len(group.samples))
    before = [weight.detach().clone() for weight in trainer.policy.parameters()]
    metrics = trainer.step()
    assert metrics["teacher/taught"] == 0.0 and metrics["loss"] != metrics["loss"]
    assert "does not train: its rewards leave no row to a teacher" in caplog.text
    assert all(map(torch.equal, before, trainer.policy.parameters()))
    with pytest.raises(ValueError, match=r"no reward .* answered for any sample"):
        run(tiny("qwen3_vl"), sdpo, reward=lambda group: [None] * len(group.samples)).step()


def test_a_run_is_resumed_to_the_bit_and_does_not_depend_on_how_it_is_cut(tiny: Tiny, other: str):
    algorithm = replace(PRESETS["opd"], group_size=4)
    teachers = teachers_of(algorithm, other)
    whole, cut, resumed = (
        run(tiny("qwen3_vl"), algorithm, teachers, lora=LoraSettings(rank=4), micro_batch=size) for size in (100_000, 1, 100_000)
    )
    first, apart = whole.step(), cut.step()
    state = copy_state(whole.state_dict())
    assert not any("teacher" in name for name in state["policy"]["weights"])
    for name in ("loss", "teacher/kl", "teacher/agreement", "policy/grad_norm"):
        assert apart[name] == pytest.approx(first[name], rel=1e-4), name
    resumed.load_state_dict(state)
    steps = [{k: v for k, v in one.step().items() if not k.startswith("time/")} for one in (whole, resumed)]
    assert steps[0] == steps[1] and same(*(copy_state(one.policy.state_dict()) for one in (whole, resumed)))


def test_each_of_several_terms_has_figures_of_its_own(tiny: Tiny, other: str):
    terms = tuple((1.0, FollowTeacher(model=model)) for model in ("teacher", "ref"))
    algorithm = measured_apart(replace(PRESETS["opd"], objective=terms, group_size=2), "two")
    trainer = run(tiny("qwen3_vl"), algorithm, teachers_of(algorithm, other), lora=LoraSettings(rank=4))
    found = trainer.step()
    assert found["teacher/kl/ref"] == 0.0 and found["teacher/agreement/ref"] == pytest.approx(1.0)
    assert found["teacher/kl/teacher"] > 0.01 and found["teacher/agreement/teacher"] < 0.99 and "teacher/kl" not in found
    again = measured_apart(replace(algorithm, objective=(terms[1], *terms)), "three")
    assert [getattr(term, "label", None) for _, term in again.objective] == ["ref-0", "teacher", "ref-2"]


def test_each_of_several_teachers_has_figures_of_its_own(tiny: Tiny, other: str):
    shown = [replace(one, columns={"teacher": ("a", 2)[i % 2]}) for i, one in enumerate(SHOWN)]
    teachers = [TextTeacher("a", model=other, dtype="float32"), TextTeacher("2", model=tiny("qwen3_vl"), dtype="float32")]
    algorithm = replace(PRESETS["opd"], objective=((1.0, FollowTeacher(names=("a", "2"))),), group_size=3)
    found = run(tiny("qwen3_vl"), algorithm, teachers, shown).step()
    assert found["teacher/agreement/2"] == pytest.approx(1.0) and found["teacher/kl/2"] == 0.0
    assert found["teacher/agreement/a"] < 0.99 and found["teacher/kl/a"] > 0.01
    assert found["teacher/taught/a"] + found["teacher/taught/2"] == pytest.approx(1.0)
