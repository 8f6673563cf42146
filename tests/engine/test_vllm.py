"""The vLLM that runs gets new weights and forgets what it computed with others; what it writes is what the policy reads."""

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmrl.core.episodes import Limits
from mmrl.core.types import Prompt, Request, Sample
from mmrl.engine.sync import BroadcastSync, Update
from mmrl.engine.venv import find_venv
from mmrl.engine.wire.client import EngineClient, EngineRefusedError
from mmrl.engine.wire.completions import EngineMismatchError
from mmrl.engine.worker.weight_group import WeightGroup
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.check.audit import audit_rollouts
from mmrl.policies.text.policy import Sampling, TextPolicy
from mmrl.policies.text.settings import EngineConfig
from mmrl.policies.text.trace import Inset
from tests.engine.servers import CLOSE, environment, gap, move, policy_of, renew, server_of
from tests.support.refused import refused
from tests.support.text_policies import hotter, ids_of, picture, text_of, text_trace
from tests.support.worlds import Inline, looking

pytestmark = pytest.mark.engine
Join = Callable[..., TextPolicy]


def requests_of(asked: Sequence[Prompt]) -> list[Request]:
    return [Request(prompt, 4, group_id=i, seed=21 + i) for i, prompt in enumerate(asked)]


@pytest.mark.parametrize("sync", ["file", "broadcast"])
def test_all_weights(sync: str, join: Join, asked: Sequence[Prompt]):
    policy = join(sync)
    for version in range(3):
        rollouts = policy.rollout(requests_of(asked))
        assert (gap(policy, rollouts) < CLOSE, rollouts.weights_version) == (True, version)
        move(policy)
        assert gap(policy, rollouts) > 100 * CLOSE, "the weights moved far enough to be seen"


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4, alpha=8)], ids=["all weights", "an adapter"])
def test_a_copy_beside_the_server_is_read(lora: LoraSettings | None, owner: TextPolicy, join: Join, asked: Sequence[Prompt]):
    if lora:
        renew(owner)
    with TemporaryDirectory(dir="/dev/shm") as local:
        policy = join("lora" if lora else "file", local, lora=lora)
        for _ in range(2):
            assert gap(policy, policy.rollout(requests_of(asked[:2]))) < CLOSE
            [copy] = Path(local).glob("mmrl-weights-*")
            assert (copy / ("adapter_model" if lora else "model")).with_suffix(".safetensors").is_file()
            move(policy, by=1.0 if lora else 0.05)
        server_of(policy).close()
        assert not list(Path(local).glob("mmrl-weights-*"))


@pytest.mark.parametrize("reset", [(), ("prefix",)])
def test_a_server_without_resets_is_refused(
    reset: tuple[str, ...], join: Join, asked: Sequence[Prompt], monkeypatch: pytest.MonkeyPatch
):
    """An update of vLLM's empties no cache: keys and values stay stale, and with a reset of these alone, features of pictures."""
    policy = join()
    requests = requests_of([Prompt(prompt.id, prompt.text * 30, prompt.media) for prompt in asked[:2]])
    assert gap(policy, policy.rollout(requests)) < CLOSE
    with monkeypatch.context() as patch:
        patch.setattr(EngineClient, "pause", lambda client: None)  # a pause forgets too
        patch.setattr(EngineClient, "reset_caches", lambda client: [client.post(f"/reset_{name}_cache") for name in reset])
        move(policy)
        refused("remembers what it computed with others", policy.rollout, requests, error=EngineMismatchError)
    move(policy)
    assert gap(policy, policy.rollout(requests)) < CLOSE


def test_an_adapter(owner: TextPolicy, join: Join, asked: Sequence[Prompt]):
    renew(owner)
    policy = join("lora", lora=LoraSettings(rank=4, alpha=8))
    for version in range(3):
        rollouts = policy.rollout(requests_of(asked))
        assert (gap(policy, rollouts) < CLOSE, rollouts.weights_version) == (True, version)
        move(policy, by=1.0)
        assert gap(policy, rollouts) > 100 * CLOSE


@pytest.mark.parametrize("sync", ["file", "broadcast"])
def test_merged_adapters(sync: str, join: Join, asked: Sequence[Prompt]):
    policy = join(sync, lora=LoraSettings(rank=4, alpha=8))
    move(policy, by=1.0)
    assert gap(policy, policy.rollout(requests_of(asked))) < CLOSE


def test_a_file_that_does_not_fit_is_refused_and_the_old_weights_go_on(join: Join, asked: Sequence[Prompt], tmp_path: Path):
    """A failed update would end vLLM at the next request."""
    policy = join()
    before = policy.rollout(requests_of(asked))
    generator = server_of(policy)
    assert generator.fleet is not None
    client, sync = generator.fleet.members[0].client, generator.sync
    good = Update("good", tmp_path / "good")
    sync.save(policy, good)
    weights = load_file(good.path / "model.safetensors")
    (some,) = (name for name in weights if re.fullmatch(r"model\.(language_model\.)?norm\.weight", name))
    broken: dict[str, tuple[dict[str, torch.Tensor], str]] = {
        "missing": ({name: weight for name, weight in weights.items() if name != some}, "1 weights are missing, "),
        "strange": (weights | {"model.extra.weight": weights[some].clone()}, "none of the model's, model.extra.weight"),
        "other": (weights | {some: weights[some][:5].clone()}, r"has shape \(5,\), the model's has \(128,\)"),
        "cut": (weights, "cannot be read as safetensors"),
    }
    for name, (tensors, reason) in broken.items():
        folder = tmp_path / name
        folder.mkdir()
        file = folder / "model.safetensors"
        save_file(tensors, file)
        if name == "cut":
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        refused(reason, sync.push, client, Update(name, folder), error=EngineRefusedError)
        # The same file without a look at it beforehand is refused inside.
        refused("500", client.update, {"path": str(file)}, name, error=Exception)
        assert client.weight_version() != name
    shutil.rmtree(tmp_path / "cut")
    refused("is this folder shared with the engine", sync.push, client, Update("cut", tmp_path / "cut"), error=EngineRefusedError)
    after = policy.rollout(requests_of(asked))
    assert after.groups == before.groups and gap(policy, after) < CLOSE


def test_a_transfer_that_broke_is_mended_by_the_next(join: Join, asked: Sequence[Prompt], monkeypatch: pytest.MonkeyPatch):
    """vLLM has then part of a layer, which would count twice, and is asked for nothing before it has all."""
    policy = join("broadcast")
    sync = server_of(policy).sync
    assert isinstance(sync, BroadcastSync)
    sync.bundle = 1
    before = policy.rollout(requests_of(asked))
    move(policy)
    send, sent, names = WeightGroup.broadcast, list[int](), list(sync.weights)
    # keys, queries and values are one layer of vLLM's
    within = 1 + next(i for i, name in enumerate(names) if name.endswith("k_proj.weight"))

    def break_off(group: WeightGroup, data: torch.Tensor, look: Callable[[], None] = lambda: None) -> None:
        sent.append(len(data))
        if len(sent) == within + 1:
            raise RuntimeError("the network is gone")
        send(group, data, look)

    monkeypatch.setattr(WeightGroup, "broadcast", break_off)
    rollouts = policy.rollout(requests_of(asked))
    assert len(sent) == within + 1 + 1 + len(names), "broken off, joined anew, and all sent again"
    assert (gap(policy, rollouts) < CLOSE, rollouts.weights_version) == (True, 1)
    assert gap(policy, before) > 100 * CLOSE


def test_an_adapter_beside_rounded_weights(model: str, asked: Sequence[Prompt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path))
    engine = EngineConfig(environment=str(environment()), cache_mb=256, max_length=2048)
    policy = policy_of(model, engine, LoraSettings(rank=4, alpha=8), weights="nf4")
    try:
        for version in range(2):
            rollouts = policy.rollout(requests_of(asked))
            assert (gap(policy, rollouts) < CLOSE, rollouts.weights_version) == (True, version)
            move(policy, by=1.0)
        assert server_of(policy).model.startswith(f"{tmp_path}/whole-")
    finally:
        server_of(policy).close()


def test_it_knows_no_format_of_bitsandbytes():
    """The reason why a server reads what 4 bits stand for: one that knows them would read the codes in mmrl's cache."""
    python = find_venv(environment()).folder / "bin" / "python"
    look = "from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS as m; print('bitsandbytes' in m, 'fp8' in m)"
    found = subprocess.run([python, "-c", look], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "False True"


def samples_of(policy: TextPolicy, requests: Sequence[Request], sampling: Sampling | None = None) -> list[Sample]:
    return [sample for group in policy.rollout(requests, sampling).groups for sample in group.samples]


@pytest.mark.parametrize("name", ["text", "picture", "two", "clip"])
def test_log_probabilities_are_those_read(name: str, join: Join, asked: Sequence[Prompt], monkeypatch: pytest.MonkeyPatch):
    policy = join()
    monkeypatch.setattr("mmrl.engine.generator.write_locally", None)
    (prompt,) = (prompt for prompt in asked if prompt.id == name)
    for temperature in (1.0, 0.7):
        sampling = hotter(policy, temperature=temperature)
        rollouts = policy.rollout([Request(prompt, 8, group_id=0, seed=5)], sampling)
        assert gap(policy, rollouts) < CLOSE, "a wrong picture, frame or position would move some by 0.01 or more"


def test_a_step_of_prompts_of_all_kinds(join: Join, asked: Sequence[Prompt]):
    policy = join()
    rollouts = policy.rollout([Request(prompt, 1 + i, group_id=i, seed=i) for i, prompt in enumerate(asked)])
    assert [len(group.samples) for group in rollouts.groups] == [1, 2, 3, 4]
    assert gap(policy, rollouts) < CLOSE


def test_the_bound_would_see_another_picture(join: Join, asked: Sequence[Prompt]):
    policy = join()
    rollouts = policy.rollout([Request(asked[1], 8, group_id=0, seed=5)])
    trace = text_trace(rollouts.trace)
    other = policy.encode(Prompt("picture", asked[1].text, (picture(9, 96, 64),)))
    wrong = replace(rollouts, trace=replace(trace, prompts=(other,)))
    assert gap(policy, rollouts) < CLOSE < 100 * CLOSE < gap(policy, wrong)


def test_the_same_seed_gives_the_same_sample_however_rows_are_asked_for(join: Join, asked: Sequence[Prompt]):
    policy = join()
    requests = [Request(prompt, 4, group_id=i, seed=11 + i) for i, prompt in enumerate(asked[:3])]
    whole = [ids_of(sample) for sample in samples_of(policy, requests)]
    assert [ids_of(sample) for sample in samples_of(policy, requests)] == whole
    alone = [ids_of(sample) for request in requests[::-1] for sample in samples_of(policy, [request])]
    assert sorted(alone) == sorted(whole)
    assert len(set(whole)) == len(whole), "neighbouring seeds give no neighbour's sample"
    few = Request(asked[0], 2, group_id=0, seed=11)
    assert [ids_of(sample) for sample in samples_of(policy, [few])] == whole[:2]


def test_greedy_is_what_the_policy_itself_writes(join: Join, asked: Sequence[Prompt]):
    policy = join()
    greedy = hotter(policy, temperature=0.0)
    requests = [Request(prompt, 1, group_id=i) for i, prompt in enumerate(asked)]
    there = samples_of(policy, requests, greedy)
    policy.generator = server_of(policy).local
    assert [ids_of(sample) for sample in samples_of(policy, requests, greedy)] == [ids_of(sample) for sample in there]


def test_banned_tokens_are_never_written(join: Join, asked: Sequence[Prompt]):
    """The head is turned toward placeholders of pictures, so that most samples would hold some were they not banned."""
    policy = join()
    banned = sorted(policy.banned)
    head = policy.net.model.get_output_embeddings().weight
    with torch.no_grad():
        head[banned] = 3.0 * head[torch.randperm(256, generator=torch.Generator().manual_seed(0))[: len(banned)]]
    requests = [Request(asked[1], 32, group_id=0, seed=3)]
    rollouts = policy.rollout(requests)
    tokens = {token for sample in rollouts.groups[0].samples for token in ids_of(sample)}
    assert not tokens & policy.banned and gap(policy, rollouts) < CLOSE
    policy.banned = frozenset()
    free = server_of(policy).write([policy.encode(asked[1])], [0] * 32, [(3, i) for i in range(32)], policy.config.sampling)
    tokens = {token for row, length in zip(free.tokens.tolist(), free.lengths.tolist(), strict=True) for token in row[:length]}
    assert set(banned) & tokens, "without the ban there would be some"


def test_a_stop_text_ends_a_completion_and_stays_in_it(join: Join, asked: Sequence[Prompt]):
    policy = join()
    stops = ("a", "e", "7", "th", " ")
    sampling = Sampling(max_new_tokens=64, stop=stops)
    rollouts = policy.rollout([Request(asked[0], 16, group_id=0, seed=2), Request(asked[1], 16, group_id=1, seed=2)], sampling)
    samples = [sample for group in rollouts.groups for sample in group.samples]
    ended = [text_of(sample) for sample in samples if not sample.truncated and any(stop in text_of(sample) for stop in stops)]
    assert len(ended) > len(samples) // 2
    for text in ended:
        assert text.endswith(stops) and not any(stop in text[:-1] for stop in stops if len(stop) == 1)
    assert gap(policy, rollouts) < CLOSE


def test_the_end_of_a_turn_stays_in_the_tokens(join: Join, asked: Sequence[Prompt]):
    policy = join()
    eos = policy.eos_token_ids[0]
    head = policy.net.model.get_output_embeddings().weight
    with torch.no_grad():
        head[eos] *= 4.0
    rollouts = policy.rollout([Request(prompt, 16, group_id=i, seed=i) for i, prompt in enumerate(asked[:3])])
    samples = [sample for group in rollouts.groups for sample in group.samples]
    ended = [ids_of(sample) for sample in samples if not sample.truncated]
    assert ended and all(ids[-1] == eos and eos not in ids[:-1] for ids in ended)
    assert all(len(ids_of(sample)) == 12 and eos not in ids_of(sample) for sample in samples if sample.truncated)
    assert gap(policy, rollouts) < CLOSE


def test_turns_with_pictures_between_them(join: Join, asked: Sequence[Prompt], monkeypatch: pytest.MonkeyPatch):
    """Every turn is asked for with the ids and all pictures of the row so far, which the server must read as the policy does."""
    policy = join(worlds=Inline(looking, Limits(turns=4, tokens=1500)))
    generator = server_of(policy)
    write = generator.write
    monkeypatch.setattr("mmrl.engine.generator.write_locally", None)
    # what is played must not depend on where a random model stops
    monkeypatch.setattr(generator, "write", lambda *given: replace(one := write(*given), stopped=torch.ones_like(one.stopped)))
    requests = [Request(prompt, 3, group_id=i, seed=70 + i) for i, prompt in enumerate(asked[:3])]
    rollouts = policy.rollout(requests)
    audit_rollouts(policy, rollouts)
    trace = text_trace(rollouts.trace)
    shown = [one for row in trace.insets for one in row]
    assert len(shown) >= 8 and {len(sample.turns) for group in rollouts.groups for sample in group.samples} == {3, 4}
    assert gap(policy, rollouts) < CLOSE
    other = {id(one): other for one, other in zip(shown, reversed(shown), strict=True) if shapes(one) == shapes(other)}
    swapped = tuple(tuple(replace(one, media=other.get(id(one), one).media) for one in row) for row in trace.insets)
    assert gap(policy, replace(rollouts, trace=replace(trace, insets=swapped))) > 100 * CLOSE, "another row's picture would show"
    again = samples_of(policy, requests[::-1])
    assert sorted(map(ids_of, again)) == sorted(ids_of(sample) for group in rollouts.groups for sample in group.samples)


def shapes(one: Inset) -> list[torch.Size]:
    return [x.shape for x in one.media.values()]
