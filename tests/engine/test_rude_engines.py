"""An engine that drips, floods, lies or repeats its key: every call is over by its deadline, with a sentence without the key."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mmrl.policies.text.engine_settings import EngineConfig
from tests.attacks.__main__ import carry_out
from tests.attacks.engine import ATTACKS, LIES, LIES_OF_TEACHERS
from tests.support.rude_servers import RUDE

PARTS = {
    "completions: ": len(RUDE) + 8,
    "the weights' name: ": len(RUDE) + 8,
    "adapters: ": 13,
    "workers: ": 13,
    "facts: ": 13,
    "a pause: ": 8,
    "answer": len(LIES) + 1,
    "teacher": len(LIES_OF_TEACHERS) + 1,
}
"""Words in the names of attacks, and how many there are at least."""


@pytest.mark.parametrize("words", PARTS)
def test_attacks_of_an_engine_are_held(words: str, tmp_path: Path):
    chosen = [attack for attack in ATTACKS if words in attack.name]
    assert len(chosen) >= PARTS[words]
    with ThreadPoolExecutor(len(chosen)) as pool:
        outcomes = list(pool.map(carry_out, chosen))
    assert [(attack.name, told) for attack, (held, told) in zip(chosen, outcomes, strict=True) if not held] == []


def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MMRL_ENGINE_TOKEN", "sk-01 234")
    with pytest.raises(ValueError, match="MMRL_ENGINE_TOKEN holds no key: character 6 of 9") as caught:
        EngineConfig()
    assert "sk-" not in str(caught.value)
