"""Slips in shipped configs are refused, with the right word suggested: keys, names of parts, overrides, kinds of values."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.each import for_each
from tests.support.forked import run
from tests.support.mutations import refusal, tables

ROOT = Path(__file__).parents[2]
TABLES = tables()


def outcomes(*count: str) -> dict[str, dict[str, Any]]:
    """Of a process of its own, so that no test meets what a refused config leaves behind."""
    done = run("-m", "tests.support.mutations", *count, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def sampled() -> dict[str, dict[str, Any]]:
    """A slip in every key, of those that several configs have in one of them."""
    return outcomes("1", "few")


@for_each("name", TABLES)
def test_a_shipped_config_as_it_is_passes(name: str):
    assert refusal(TABLES[name]) is None


def test_a_slip_is_refused_and_the_right_word_suggested(sampled: dict[str, dict[str, Any]]):
    check(sampled["slips_in_keys"], 320)
    check(sampled["slips_on_the_command_line"], 180)


def test_a_slip_in_a_name_is_refused(sampled: dict[str, dict[str, Any]]):
    """Short names of presets lie close together: rgpo may be grpo or gpg."""
    check(sampled["slips_in_names"], 100, right=0.85)


def test_a_value_of_the_wrong_kind_is_refused_by_name(sampled: dict[str, dict[str, Any]]):
    found = sampled["wrong_values"]
    assert found["total"] > 320 and not found["accepted"] and not found["unnamed"], found


@pytest.mark.evidence
def test_a_slip_in_any_key_of_any_config_is_refused():
    found = outcomes("1")
    check(found["slips_in_keys"], 4500)
    check(found["slips_on_the_command_line"], 3000)
    assert found["wrong_values"]["total"] > 4500 and not found["wrong_values"]["accepted"] + found["wrong_values"]["unnamed"]


def check(found: dict[str, Any], least: int, right: float = 0.95) -> None:
    assert found["total"] >= least
    assert not found["accepted"], found["accepted"][:5]
    assert not found["unnamed"], found["unnamed"][:5]
    assert found["right"] >= right * found["total"], f"{found['right']} of {found['total']}"
