"""Rows written by two real servers over a real tiny model: exact, shared, and refused where they are not the policy's."""

import logging
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmrl.app.plugins.resolve import load
from mmrl.core.episodes import Limits
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.samples import Video
from mmrl.core.types import Prompt, Request, Rollouts
from mmrl.engine import generator as generators
from mmrl.engine.facts import Wanted, ask_facts, look_at_engine, most_pictures, refuse_other
from mmrl.engine.fleet import FAR
from mmrl.engine.generator import text_parts
from mmrl.engine.sync import InFolder, Update
from mmrl.engine.wire.client import EngineClient
from mmrl.engine.wire.completions import EngineMismatchError
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.settings import EngineConfig
from mmrl.runtime.blame import EngineUnavailableError
from tests.engine.servers import gap, policies_on, server_of
from tests.support.fake_engines import FILES, FakeEngine, engines, impatient, kill_in_a_request, make_environment
from tests.support.refused import refused
from tests.support.text_policies import ids_of, logprobs, mixed, move, prompts, text_trace
from tests.support.videos import write_video

CLIPS = ("--media-io-kwargs", '{"video": {"num_frames": -1, "fps": 2.0}}')
BOUND = 2e-4
"""Far above what rounding makes of moved weights, and far below what stale caches do."""
SHORT, LORA = Sampling(max_new_tokens=5), LoraSettings(rank=4, alpha=8)
Make = Callable[..., TextPolicy]


@pytest.fixture(scope="module")
def two(tiny: Callable[[str], str]) -> Iterator[list[FakeEngine]]:
    with engines(tiny("qwen2_5_vl"), 2, (*FILES, *CLIPS)) as started:
        yield started


@pytest.fixture
def make(tiny: Callable[[str], str], two: list[FakeEngine]) -> Iterator[Make]:
    """Policies whose rows the two servers write; `count` of them."""
    with policies_on(two) as made:

        def build(count: int = 2, shadows: tuple[str, ...] = (), views: object = None, **settings: object) -> TextPolicy:
            given = {"timeout_s": 60.0, **settings.pop("engine", {})}  # type: ignore[dict-item]
            url = tuple(engine.url for engine in two[:count])
            settings = {"sampling": SHORT, **settings}
            config = TextPolicyConfig(tiny("qwen2_5_vl"), engine=EngineConfig(url=url, **given), **settings)  # type: ignore[arg-type]
            torch.manual_seed(0)
            made.append(TextPolicy(config, shadows, views=views, parts=text_parts(config)))  # type: ignore[arg-type]
            return made[-1]

        yield build


@pytest.fixture
def local() -> Iterator[str]:
    """A folder on another file system than that of tests."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield folder


def tokens(rollouts: Rollouts) -> list[tuple[int, ...]]:
    return [ids_of(sample) for group in rollouts.groups for sample in group.samples]


NUMBERS = [1, 2, 3, 4, *(pytest.param(n, marks=pytest.mark.evidence) for n in range(5, 13))]
number_of_the_reset = pytest.mark.parametrize("number", NUMBERS)


def sample_around_a_broken_reset(policy: TextPolicy, engine: FakeEngine, number: int) -> None:
    """Updates until the reset of this number has failed: rows are those of the new weights all the same."""
    policy.rollout(mixed())
    before = len(engine.told()["calls"])
    engine.order(break_reset=number)
    updates = (number + 2) // 3
    for _ in range(updates):
        move(policy)
        assert gap(policy, policy.rollout(mixed())) < BOUND
    calls = engine.told()["calls"][before:]
    assert calls.count("/pause?mode=wait") == updates + 1, "one update was made again"


def test_adapters_are_swapped_under_new_names(make, two):
    policy = make(lora=LORA)
    for _ in range(3):
        move(policy, 0.2)
        assert gap(policy, policy.rollout(mixed())) < BOUND
    told = two[0].told()
    names = list(dict.fromkeys(told["wrote"]))[-3:]
    assert [name.rsplit("-", 1)[1] for name in names] == ["1", "2", "3"]
    assert told["calls"].count("/v1/unload_lora_adapter") == 2, "the one before is dropped"
    assert "/start_weight_update" not in told["calls"], "the model's own weights stay as they were"


def test_adapters_on_top_of_other_weights_are_refused(make):
    policy = make(1, lora=LORA)
    with torch.no_grad():
        policy.net.model.get_output_embeddings().weight *= 1.1
    refused(r"the first token of a test prompt .* it has other weights", policy.rollout, mixed(), error=EngineMismatchError)


@number_of_the_reset
def test_so_is_one_that_serves_adapters(make, two, number):
    sample_around_a_broken_reset(make(1, lora=LORA), two[0], number)


@pytest.mark.parametrize("lora", [LORA, None], ids=["lora", "file"])
def test_what_a_worker_copied_the_other_server_reads(lora, make, two, local, tmp_path, monkeypatch):
    """What lies in the shared folder is broken behind the first reader, so that a second one would be found out."""
    near, read = InFolder.near, list[Path]()

    def near_and_break(sync: InFolder, client: EngineClient, update: Update) -> Path:
        read.append(near(sync, client, update))
        for file in update.path.glob("*.safetensors"):
            file.write_bytes(b"gone")
        return read[-1]

    monkeypatch.setattr(InFolder, "near", near_and_break)
    policy = make(lora=lora, engine={"folder": str(tmp_path), "local": local})
    look_at_engine(policy.config)
    for version in range(2):
        rollouts = policy.rollout(mixed())
        assert (gap(policy, rollouts) < BOUND, rollouts.weights_version) == (True, version)
        assert len(set(read)) == version + 1 and [*Path(local).glob("*-?")] == read[-1:], "one copy, in place of the last"
        move(policy)
    server_of(policy).close()
    assert len(read) == 4 and not list(Path(local).glob("mmrl-weights-*")), "the run is over"


def test_servers_share_a_step_and_give_the_policys_own_log_probabilities(make, two):
    policy = make()
    assert not policy.generator.exact
    rollouts = policy.rollout(mixed())
    assert gap(policy, rollouts) < BOUND
    before = [len(engine.told()["wrote"]) for engine in two]
    assert policy.rollout(mixed()).groups == rollouts.groups
    assert [len(engine.told()["wrote"]) for engine in two] == [count + 2 for count in before], "four prompts, two for each server"
    assert not policy.banned & {token for row in tokens(rollouts) for token in row}
    assert tokens(policy.rollout(mixed(70))) != tokens(rollouts)
    many = policy.rollout([Request(prompts()[0], 20, 0, seed=5)])
    assert len(set(tokens(many))) > 15 and tokens(policy.rollout([Request(prompts()[0], 3, 0, seed=5)])) == tokens(many)[:3]
    assert tokens(make(1).rollout(mixed())) == tokens(rollouts), "a sample does not depend on who writes it"
    refused("let no other run update this server", policy.rollout, mixed(), error=EngineMismatchError)


def test_new_weights_reach_all_servers(make, two):
    policy = make()
    before = policy.rollout(mixed())
    move(policy)
    after = policy.rollout(mixed())
    assert (before.weights_version, after.weights_version) == (0, 1)
    assert tokens(after) != tokens(before) and gap(policy, after) < BOUND
    calls = [call for call in two[1].told()["calls"] if call != "/weight_info"]
    last = calls[len(calls) - calls[::-1].index("/update_weights") - 6 :]
    caches = [f"/reset_{name}_cache" for name in ("prefix", "encoder", "mm")]
    weights = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
    assert last[:8] == ["/pause?mode=wait", *caches, *weights, "/resume"], "a name that others see means empty caches"


@pytest.mark.parametrize("kept", [["prefix", "encoder", "mm"], ["encoder"]])
def test_caches_that_are_not_reset_show(make, two, kept, monkeypatch):
    monkeypatch.setitem(FAR, "float32", 1e9)
    policy = make(1)
    policy.rollout(mixed())
    two[0].order(silent=kept)
    move(policy)
    assert gap(policy, policy.rollout(mixed())) > 1e-3, "the servers' caches must go stale for this test to mean anything"
    two[0].order()
    move(policy, 0.01)
    assert gap(policy, policy.rollout(mixed())) < BOUND


def test_a_server_that_keeps_old_keys_and_values_is_found_by_its_first_answer(make, two):
    policy = make(1)
    policy.rollout(mixed())
    two[0].order(silent=["prefix"])
    move(policy)
    refused("or remembers what it computed with others", policy.rollout, mixed(), error=EngineMismatchError)


@number_of_the_reset
def test_a_server_whose_caches_were_not_reset_is_not_used_before_they_are(make, two, number):
    sample_around_a_broken_reset(make(1), two[0], number)


def test_adapters_can_travel_merged_in_a_file(make):
    policy = make(1, lora=LORA, engine={"sync": "file"})
    move(policy, 0.2)
    assert gap(policy, policy.rollout(mixed())) < BOUND


def test_a_completion_that_was_given_up_is_drawn_again(make, two):
    policy = make(1)
    expected = tokens(policy.rollout(mixed()))
    two[0].order(abort=3)
    assert tokens(policy.rollout(mixed())) == expected
    two[0].order(abort=1000)
    refused("'abort', 4 times", policy.rollout, mixed(), error=EngineUnavailableError)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong_version", "wrote with the weights somebody-else"),
        ("nan", "the log-probability -9999.0"),
        ("banned", "which no completion may hold"),
        ("lose", "answered 2 completions of prompt 'two', 3 were asked for"),
    ],
)
def test_answers_that_do_not_fit_are_refused(make, two, fault, words):
    policy = make(1)
    requests = [Request(prompts()[1], 3, 0, seed=1)]
    policy.rollout(requests)
    two[0].order(**{fault: 1})
    refused(words, policy.rollout, requests, error=EngineMismatchError)


def test_ids_that_are_expanded_already_are_refused(make, monkeypatch):
    policy, ask = make(1), generators.wire_prompts
    asked = [Request(prompts()[0], 1, 0)]
    policy.rollout(asked)
    monkeypatch.setattr(generators, "wire_prompts", lambda *asked: [replace(one, token_ids=one.expanded) for one in ask(*asked)])
    refused(r"read prompt 'one' as \d+ tokens, the policy as \d+.*min_pixels", policy.rollout, asked, error=EngineMismatchError)


def test_clips_are_sent_as_frames_where_the_server_knows_their_times(make, two, tmp_path, caplog):
    policy = make(1)
    told = Prompt("told", "what?", (Video(write_video(tmp_path / "told.mp4", [k / 10 for k in range(41)]), frames=8),))
    even = Prompt("even", "what?", (Video(write_video(tmp_path / "even.mp4", [k / 2 for k in range(8)]), fps=2.0),))
    policy.rollout(mixed())
    written = len(two[0].told()["wrote"])
    with caplog.at_level(logging.WARNING, "mmrl"):
        rollouts = policy.rollout([Request(even, 2, 0, seed=1), Request(told, 2, 1, seed=2)])
    assert gap(policy, rollouts) < BOUND
    assert len(two[0].told()["wrote"]) == written + 1
    assert "prompt 'told' is answered by the policy's own network" in caplog.text and "'even'" not in caplog.text


def test_views_and_weights_kept_beside_are_written_locally(make, two):
    policy = make(1, ("ref",), {"other": lambda prompt, seed: replace(prompt, text="never mind")})
    policy.rollout(mixed())
    written = len(two[0].told()["wrote"])
    move(policy)
    seen = Request(prompts()[0], 2, 0, seed=1)
    rollouts = policy.rollout([replace(seen, view="other"), replace(seen, group_id=1, model="ref"), replace(seen, group_id=2)])
    assert len(two[0].told()["wrote"]) == written + 2, "one of them is the first question after an update"
    assert len(tokens(rollouts)) == 6
    assert policy.rollout([replace(seen, view="other")]).recorded[ROLLOUT_LOGPROBS].isnan().all()


def test_greedy_rows_and_stops(make):
    policy = make(1)
    local = TextPolicy(replace(policy.config, engine=None))
    asked, cold = [Request(prompts()[1], 2, 0)], replace(SHORT, temperature=0.0)
    greedy = policy.rollout(asked, cold)
    assert tokens(greedy)[0] == tokens(greedy)[1]
    assert tokens(greedy) == tokens(local.rollout(asked, cold))
    letter = policy.decode([list(tokens(greedy)[0][:1])])[0]
    stopped = policy.rollout([Request(prompts()[1], 1, 0)], replace(cold, stop=(letter,)))
    assert tokens(stopped) == [tokens(greedy)[0][:1]] and not stopped.truncated().any()


def test_filters_leave_no_record(make):
    rollouts = make(1).rollout(mixed(), replace(SHORT, top_p=0.5))
    assert rollouts.recorded[ROLLOUT_LOGPROBS][rollouts.action_mask].isnan().all()
    assert text_trace(rollouts.trace).lengths.min() > 0


def test_servers_sleep_while_the_policy_reads(make, two):
    policy = make(engine={"sleep": True})
    rollouts = policy.rollout(mixed())
    before = len(two[1].told()["calls"])
    for _ in range(2):
        logprobs(policy, rollouts)
    assert two[1].told()["calls"][before:] == ["/sleep?level=1&mode=wait"]
    move(policy)
    assert gap(policy, policy.rollout(mixed())) < BOUND
    assert two[1].told()["calls"][before + 1] == "/wake_up", "before weights are sent"
    policy.generator.wake()


def test_another_model_type_or_way_is_refused_before_anything_is_loaded(tiny, two):
    folder, url = tiny("qwen2_5_vl"), (two[0].url,)
    look_at_engine(TextPolicyConfig(folder, engine=EngineConfig(url=url)))
    for config, words in (
        (TextPolicyConfig("Qwen/Qwen2.5-VL-3B-Instruct", engine=EngineConfig(url=url)), "serve that model there"),
        (TextPolicyConfig(folder, dtype="bfloat16", engine=EngineConfig(url=url)), r"--dtype bfloat16"),
        (TextPolicyConfig(folder, lora=LoraSettings(rank=20), engine=EngineConfig(url=url)), "--max-lora-rank 32"),
        (TextPolicyConfig(folder, sampling=Sampling(max_new_tokens=9000), engine=EngineConfig(url=url)), "--max-model-len"),
        (TextPolicyConfig(folder, engine=EngineConfig(url=("http://127.0.0.1:9",))), "nothing answers at 127.0.0.1:9"),
    ):
        refused(words, look_at_engine, config)
    with pytest.raises(ValueError, match=r"limits\.tokens alone is 9000: start it with a larger --max-model-len"):
        look_at_engine(TextPolicyConfig(folder, engine=EngineConfig(url=url)), Limits(tokens=9000))


def test_copies_that_spare_nothing_or_cannot_be_made_are_refused_before_anything_is_loaded(tiny, two, local, tmp_path):
    def config(local: str) -> TextPolicyConfig:
        engine = EngineConfig(url=(two[1].url,), folder=str(tmp_path / "not" / "yet"), local=local)
        return TextPolicyConfig(tiny("qwen2_5_vl"), engine=engine)

    look_at_engine(config(local))
    for folder, words in ((str(tmp_path), "one file system on .*: a copy would spare nothing"), ("/proc/x", "cannot be written")):
        refused(rf"policy\.engine\.local: {folder} .*{words}", look_at_engine, config(folder))
    own = EngineConfig(environment=str(make_environment(tmp_path / "vllm")), folder=str(tmp_path), local=str(tmp_path / "x"))
    refused("a copy would spare nothing", look_at_engine, TextPolicyConfig(tiny("qwen2_5_vl"), engine=own))
    two[1].order(repeat={"/collective_rpc": 500})
    refused(r"makes no copies .* start it with --worker-extension-cls", look_at_engine, config(local))
    two[1].order()


def test_another_vocabulary_other_options_and_an_address_that_is_no_engine_are_refused(two):
    facts = ask_facts(EngineClient(two[0].url))
    wanted = Wanted(facts.model, "float32", facts.tokens, "file", episodes=Limits(tokens=2000, pictures=8))
    refuse_other(facts, wanted, "here")
    bounds = [most_pictures({"multimodal_config": {"limit_per_prompt": {"image": limit}}}) for limit in (7, {"count": 7})]
    too_few = "takes 7 pictures in a prompt, and environment.limits.pictures is 8"
    named, adapted = replace(facts, model="m0", weight_version="3fe0-7"), replace(wanted, model="m0", sync="lora")
    for other, asked, words in (
        *((replace(facts, most_pictures=bound), wanted, too_few) for bound in bounds),
        (named, adapted, "has other weights than those of 'm0', which adapters are added to"),
        (replace(facts, tokens=facts.tokens[1:]), wanted, "another vocabulary"),
        (replace(facts, missing=("--no-mm-device-do-normalize",)), wanted, "started without --no-mm-device-do-normalize"),
        (replace(facts, transfer=""), wanted, "takes new weights by nothing"),
    ):
        refused(words, refuse_other, other, asked, "here")
    assert facts.version == "0.32.0"
    refused("no vLLM server", ask_facts, EngineClient(two[0].url + "/v1"))


def test_a_thought_that_the_template_opened_and_a_server_did_not_close_answers_nothing(make):
    """Even where the prompt's answer is what it says."""
    policy = make()
    policy.processor.chat_template = f"{policy.processor.chat_template}<think>\n"
    (group,) = policy.rollout([Request(Prompt("p", "Which word?", columns={"problem_type": "OCR"}), 4, 0)]).groups
    assert [sample.opened for sample in group.samples] == ["<think>"] * 4
    score = load("by_type", "rewards")()
    for sample in group.samples:
        true = replace(group, prompt=replace(group.prompt, answer=f"so {sample.text}"))
        said = [replace(sample, text=text) for text in (true.prompt.answer, f"Hm.</think>{true.prompt.answer}")]
        assert [scored.value for scored in score(replace(true, samples=tuple(said)))] == [0.0, 1.0]


def test_rows_of_a_killed_server_go_to_the_other_and_without_any_the_run_stops(make, two, monkeypatch):
    policy = make()
    expected = tokens(policy.rollout(mixed()))
    two[0].order(hold=True)
    killer = threading.Thread(target=kill_in_a_request, args=(two[0].url,))
    killer.start()
    assert tokens(policy.rollout(mixed())) == expected
    killer.join()
    two[1].process.kill()
    impatient(monkeypatch)
    refused(r"no engine answers \(.*start it again", policy.rollout, mixed(), error=EngineUnavailableError)
    move(policy)
    refused("no engine answers", policy.rollout, mixed(), error=EngineUnavailableError)
