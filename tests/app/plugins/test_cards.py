"""Cards of the algorithms: each preset has one, each is honest about what is missing, and lists stay within 80 columns."""

from pathlib import Path

import pytest

from mmrl.algorithms.presets import PRESETS
from mmrl.app.config.algorithm import changes, costs, needs
from mmrl.app.inspect.ls import listing, rows_of
from mmrl.app.inspect.show import description
from mmrl.app.plugins import cards
from mmrl.app.plugins.cards import SOURCES, missing_part, not_now, part_cards
from mmrl.lab.recipes.facts import recipes
from tests.support.each import for_each


def test_every_preset_has_a_card_and_what_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert cards.faults() == [] and set(cards.cards()) == set(PRESETS)
    (tmp_path / "cards").mkdir()
    (tmp_path / "more.py").touch()
    (tmp_path / "cards" / "more.toml").write_text(
        '[mine]\nidea = "So."\n[grpo]\nidea = "a"\nsource = "hearsay"\nwhen = "b"\navoid = "c"\n'
    )
    monkeypatch.setattr(cards, "FOLDER", tmp_path / "cards")
    found = cards.faults()
    assert "mine is the card of no preset: remove it, or write the preset" in found
    assert "the card of grpo has the source 'hearsay': choose one of code, paper, 2nd, reading" in found
    assert any(fault.startswith("the card of dapo lacks idea, source, when, avoid: write it in a file of") for fault in found)


def test_what_is_missing_is_what_the_preset_says():
    said = "Sums.\n\nA paper. Not implemented: the schedule\nof cross. Nothing else is left out."
    assert missing_part(said) == "the schedule of cross"
    assert missing_part("Sums.\n\nA paper. Nothing is left out.") == ""
    found = cards.cards()
    assert found["grpo"].status == "partial: without process rewards, iterated reward models"
    assert found["gspo"].status == "works"
    assert {one.status.partition(":")[0] for one in found.values()} == {"works", "partial"}


@for_each("name", sorted(PRESETS))
def test_a_preset_says_what_it_leaves_out(name: str):
    """Either something is not implemented, or nothing (else) is left out."""
    text = " ".join(cards.documents()[name][0].split())
    assert ("Not implemented: " in text) == bool(missing_part(text))
    assert missing_part(text) or "is left out" in text


def test_no_method_that_is_not_here_has_a_preset():
    told = {method.lower().replace("-", "").split(" ")[0] for _, methods in not_now() for method in methods if "'s" not in method}
    assert not told & {name.replace("_", "") for name in PRESETS}
    assert not told & {title.lower().replace("-", "").split(",")[0] for title in TITLES}, "a recipe is here"


@for_each("name", sorted(PRESETS))
def test_a_card_is_shown_within_a_terminal(name: str):
    shown = description(name).splitlines()
    start = next(i for i, line in enumerate(shown) if line.startswith("idea      "))
    end = next(i for i, line in enumerate(shown) if line.startswith("needs     "))
    block = shown[start : end + 1]
    assert max(map(len, block)) <= 80
    words = [line[:10].strip() for line in block if line[:1] != " "]
    assert words[:5] == ["idea", "use when", "not when", "status", "source"] and words[-3:] == ["changes", "costs", "needs"]
    assert SOURCES[cards.cards()[name].source] in " ".join(line.strip() for line in block)


def test_the_list_holds_status_evidence_and_what_is_not_here():
    lines = list(listing("algorithms"))
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("      status") for line in lines) == len(PRESETS) + len(part_cards())
    assert "not now" in lines and any("T-PPO" in line for line in lines)
    assert any("ahead (" in line for line in lines)


def test_methods_that_are_one_part_are_told_beside_presets():
    found = {card.name: card for card in part_cards()}
    known = {row.name for kind in ("samplers", "parts") for row in rows_of(kind)}
    assert set(found) <= known and "VarianceAware" in found
    unmeasured = {name for name, card in found.items() if not card.evidence}
    assert unmeasured == {"Mixture"}, "a mixture is what the data are"
    assert {card.status.partition(":")[0] for card in found.values()} == {"works", "partial"}
    lines = list(listing("algorithms"))
    assert "with any of them" in lines and any('sampler.kind = "Thompson"' in line for line in lines)


TITLES = [one.recipe.title for one in recipes()]
PUBLISHED = [
    *("NGRPO", "BNPO", "CANON", "COPO", "A-GRAE", "SEED-GRPO", "SPO", "GTPO", "DRPO", "DisCO", "REC-", "R2VPO", "LLDS", "NFT"),
    *("Stratified", "ADORA", "Polychromic", "RiskPO", "XRPO", "DCPO", "HAPO", "HART", "AP-GRPO", "Arbitrary", "ARES", "ReMix"),
    *("SPO-chain", "RLPR", "Preplan", "GiGPO", "HGPO", "GUI-G1", "MM-UPT", "MMR1", "VADE", "SEC", "DUMP", "CRAFT-GUI"),
    *("Scaf-GRPO", "GHPO", "NuRL", "SAGE", "Critique-GRPO", "Reinforce-Ada", "DARS", "PolicyRollout", "S-GRPO", "ARPO", "AHPO"),
    *("DaGRPO", "D3S", "ETR", "SSB", "PixelThink", "VSPO", "ARRoL", "CLPO", "V-Reason", "BRPO", "MagicMirror", "T-PPO", "HiLL"),
    *("MoDoMoDo", "VGPO", "similarity", "PCL", "Unlikeliness", "DPO", "Thyme"),
    *("TON", "VerIPO", "Veason-R1", "TriMPI", "UnifiedReward-Think", "MM-RLHF", "MM-HELIX", "VLAA-Thinker"),
]
"""Methods that the field has published and that the overview has to place."""


@for_each("method", PUBLISHED)
def test_every_method_has_its_place(method: str):
    """By its name in a preset's words, as a part, as a recipe, or among those that are not here."""
    texts = [text for text, _ in cards.documents().values()] + [card.method for card in part_cards()]
    texts += TITLES + [name for _, methods in not_now() for name in methods]
    assert any(method in text for text in texts)


def test_what_a_method_changes_costs_and_needs_is_read_off_its_parts():
    assert (changes(PRESETS["grpo"]), needs(PRESETS["grpo"])) == ("nothing", "groups of 2 or more")
    assert costs(PRESETS["grpo"]) == "1 more pass without gradient; weights kept beside: ref"
    assert changes(PRESETS["gdpo"]) == "advantage: Decoupled"
    assert costs(PRESETS["reinforce_ada"]) == "4 updates per step; up to 4 rounds of samples"
    assert needs(PRESETS["papo"]) == "prompts that can be shown masked; groups of 2 or more"
    assert needs(PRESETS["urpa"]) == "the reward pseudo_span; groups of 2 or more"
    assert "a whole minibatch in memory" in costs(PRESETS["kl_cov"])
