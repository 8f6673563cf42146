"""An engine's server on the run's own card: what it takes of it, and that 4 bits are chosen beside it."""

import pytest

from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.config.tasks import one_line
from mmrl.app.fit.fit import less_server
from mmrl.app.planning.choices import ModelFacts, in_4_bits
from mmrl.app.planning.memory import CONTEXT, GIB, SERVER, SERVER_WRITES, Memory, add_server, target_device, without_server

ALONE = Memory({"weights in 4 bits": 2 * GIB}, {"update": 3 * GIB}, parameters=2 * GIB)
"""A model that takes 4 GiB in bfloat16."""


def run(*words: str) -> Resolved:
    return one_line("grounding", "tiny:qwen3_vl", "digits_grounding", ["iou"], ["policy.dtype=bfloat16", *words])


def beside(card: int, *words: str) -> Memory:
    return add_server(ALONE, run(*words).config, card * GIB)


def test_a_server_takes_its_share_or_the_whole_model_and_its_cache():
    assert beside(16, "policy.engine={memory_share = 0.5}").stays[SERVER] == 8 * GIB
    assert beside(16, "policy.engine={cache_mb = 1024}").stays[SERVER] == 5 * GIB + CONTEXT
    assert beside(16, "policy.engine={cache_mb = 1024, dtype = 'float32'}").stays[SERVER] == 9 * GIB + CONTEXT
    asleep = beside(16, "policy.engine={memory_share = 0.5, sleep = true}")
    assert asleep.stays == ALONE.stays and asleep.phases[SERVER_WRITES] == 8 * GIB and asleep.peak == 10 * GIB
    assert without_server(asleep) == without_server(beside(16, "policy.engine={}")) == ALONE


@pytest.mark.parametrize("words", [(), ("policy.engine={devices = '1'}",), ("policy.engine={url = ['http://127.0.0.1:9']}",)])
def test_servers_on_other_cards_take_nothing(words: tuple[str, ...]):
    assert beside(16, *words) == ALONE


def test_servers_that_launch_starts_have_cards_of_their_own():
    config = configs.load("tiny/image", ["policy.engine={}", "cluster={engines = 1}"]).config
    assert add_server(ALONE, config, 16 * GIB) == ALONE


def test_a_share_that_does_not_hold_the_model_is_refused_with_both_numbers():
    said = r"is 0.25, which gives the server 4.00 GiB of the card, and tiny:qwen3_vl takes 4.00 GiB there in bfloat16, with 0.50"
    with pytest.raises(ValueError, match=rf"policy.engine.memory_share {said} GiB for CUDA: raise it, or give the server"):
        beside(16, "policy.engine={memory_share = 0.25}")


@pytest.mark.parametrize("engine", ["policy.engine={}", "policy.engine={devices = '1'}"])
def test_4_bits_are_chosen_beside_a_server_on_any_card(engine: str):
    found = in_4_bits(run("policy.lora.rank=4", engine), ModelFacts(10**9, parts=("language",)), target_device("8GB"), 9 * GIB)
    assert [choice.value for choices in found for choice in choices] == ["nf4"]


def test_what_a_server_would_give_back_is_among_the_remedies():
    """All of it on another card; with a small cache 16 GiB less 4 of weights, 1 of cache and what CUDA takes."""

    def remedies(*words: str) -> list[tuple[int, str]]:
        found = less_server(run(*words).config, beside(32, *words))
        return [(remedy.saves, remedy.words.partition(":")[0]) for remedy in found]

    elsewhere, small = (
        'the server on another card (policy.engine.devices = "1"), or no engine',
        "a server with 1 GiB for keys and values",
    )
    assert remedies("policy.engine={memory_share = 0.5}") == [(16 * GIB, elsewhere), (11 * GIB - CONTEXT, small)]
    assert remedies("policy.engine={cache_mb = 512}") == [(4 * GIB + GIB // 2 + CONTEXT, elsewhere)]
    assert remedies() == []
