"""Tokens written behind shared prompts by a compiled step: one graph for all lengths, equal completions, and the gate's word."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.views import Hint
from mmrl.core.episodes import Limits
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Branch, Given, Observation, Prefix, Request, Rollouts, Shown
from mmrl.policies.shared.hypotheses import COMPILED
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.check.diagnose import SHARED
from mmrl.policies.text.loading import load_config
from mmrl.policies.text.packed import room
from mmrl.policies.text.packed.room import SharedRoom
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.read.packable import shares_prompts
from mmrl.policies.text.write import generate
from tests.policies.text.packed.test_room import LONG, asked, check
from tests.support import text_policies as text
from tests.support.faults import Fault, message_of
from tests.support.text_policies import text_trace
from tests.support.worlds import Inline, player

Tiny = Callable[[str], str]
LORA = LoraSettings(rank=4)


def made() -> tuple[int, dict[str, int]]:
    """How many graphs there are, and what broke one."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"], dict(counters["graph_break"])


def ready(policy: TextPolicy) -> TextPolicy:
    policy.prepare(Accelerator(cpu=True))
    # Readings as they are written: these tests are about the step alone.
    blocks: Any = policy.net.compiled
    for block in blocks:
        block._compiled_call_impl = None
    return policy


def pair(folder: str, **settings: Any) -> tuple[TextPolicy, TextPolicy]:
    return text.make(folder, **settings), ready(text.make(folder, compile=True, **settings))


def some(counts: Sequence[int]) -> list[Request]:
    return [Request(prompt, count, i, seed=70 + i) for i, (prompt, count) in enumerate(zip(text.prompts(), counts, strict=False))]


def branch_of(episodes: Rollouts, seed: int) -> Given:
    """The first episode up to its second turn."""
    sample = episodes.groups[0].samples[0]
    ids = text_trace(episodes.trace).tokens[0, : sample.turns[1].span[0]].tolist()
    noted = episodes.recorded[ROLLOUT_LOGPROBS][0, : len(ids)].tolist()
    return Branch(tuple(sample.turns[:1]), tuple(ids), tuple(noted), (seed, 0))


@pytest.fixture
def traced() -> Iterator[None]:
    """Graphs are made and not compiled further, which takes a tenth of the time; breaks of others do not count."""
    from torch._dynamo.utils import counters

    counters["graph_break"].clear()
    with pytest.MonkeyPatch.context() as patch:
        usual = torch.compile
        patch.setattr(torch, "compile", lambda call, **how: usual(call, **how, backend="eager"))
        generate.program.cache_clear()
        yield
        generate.program.cache_clear()


@pytest.mark.usefixtures("traced")
def test_one_graph_whatever_the_lengths_and_the_rest(shallow: str, monkeypatch: pytest.MonkeyPatch):
    """Storage that doubles, other prompts and groups, chunks, another policy of the kind, episodes that keep what they have read,
    episodes that branch, completions that go on, and prompts under a view."""
    monkeypatch.setattr(room, "FIRST", 5)
    how: dict[str, Any] = {"sampling": Sampling(max_new_tokens=12)}
    before = made()[0]
    plain, shared = pair(shallow, **how)
    for policy in (plain, shared):
        policy.views["hinted"] = Hint("It is blue.")
    first = check(plain, shared, some((4, 4, 4, 4)))
    assert made() == (before + 1, {}), "no breaks, so that the host looks at nothing within"
    for counts in ((2, 2), (6, 6), (3, 3, 3)):
        check(plain, shared, some(counts))
    assert made() == (before + 1, {}), "for all lengths"
    check(plain, shared, [replace(one, view="hinted", shown=Shown(trained=True)) for one in some((3, 3))])
    begun = [Prefix(text.ids_of(group.samples[0]), 0.5) for group in first.groups]
    check(plain, shared, [replace(one, written=prefix) for one, prefix in zip(some((4, 4)), begun, strict=False)])
    check(*pair(shallow, rollout_rows=8, **how), some((4, 4, 4)))
    worlds = [Inline(lambda *_: Observation("go on"), Limits(turns=3, tokens=2000)) for _ in range(2)]
    both = player(shallow, worlds[0], **how), ready(player(shallow, worlds[1], compile=True, **how))
    episodes = check(*both, some((4, 4)))
    check(*both, [replace(some((3,))[0], seed=99, written=branch_of(episodes, some((3,))[0].seed))])
    kept = [policy.drain_metrics()["rollout/kept_tokens"] for policy in both]
    assert kept[0] == kept[1] > 0.3
    assert made()[0] <= before + 3 and not made()[1], "lone rows of a prompt, and a lone prompt, are kinds of their own"


@pytest.mark.usefixtures("traced")
def test_with_adapters_while_rows_leave(shallow: str):
    """One graph more for a lone row of each prompt, and for a lone prompt."""
    before = made()[0]
    check(*pair(shallow, lora=LORA, sampling=LONG), asked())
    assert made()[0] <= before + 3 and not made()[1]


@pytest.mark.evidence
def test_what_a_compiler_makes_of_it(shallow: str):
    """With an adapter; readings of a model like this one are compiled in tests/policies/shared/test_compiled.py."""
    generate.program.cache_clear()
    check(*pair(shallow, lora=LORA, sampling=Sampling(max_new_tokens=8)), some((4, 4)))


@pytest.mark.parametrize("wrong", ["step", "room"])
def test_numbers_that_leave_the_gate_name_what_wrote_them(shallow: str, monkeypatch: pytest.MonkeyPatch, wrong: str):
    """The compiled step alone, or what it was compiled from."""
    attend = SharedRoom.attend

    def off(own: Any, *rest: Any) -> Any:
        return 1.05 * attend(own, *rest)

    def program(net: Any, *rest: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SharedRoom, "attend", off)
            return generate.step(net, *rest)

    monkeypatch.setattr(generate, "program", lambda: program if wrong == "step" else generate.step)
    if wrong == "room":
        monkeypatch.setattr(SharedRoom, "attend", off)
    policy = ready(text.make(shallow, ("ref",), decode="shared", compile=True))
    message = message_of(policy, PRESETS["grpo"], text.prompts()[:2], Fault(""))
    cause, remedy = (COMPILED, "leave policy.compile out") if wrong == "step" else (SHARED, "Set policy.decode = 'plain'")
    assert f"Likely cause: {cause} (" in message and remedy in message, message


def test_what_auto_takes(tiny: Tiny):
    def shares(family: str = "qwen3_vl", **settings: Any) -> bool:
        config = TextPolicyConfig(tiny(family), **settings)
        return shares_prompts(SimpleNamespace(config=load_config(config)), config)  # type: ignore[arg-type] - all it looks at

    assert shares(compile=True) and not shares() and shares(decode="shared")
    assert not shares("gemma3", compile=True) and not shares("qwen3_5", compile=True)
    assert not shares(compile=True, prefix="repeated") and not shares(compile=True, decode="plain")
