"""Slips in shipped configs are refused, with the right word suggested: keys, names of parts, overrides, kinds of values.

`python -m tests.configs.test_mutations [COUNT [few]]` tries COUNT slips per key (all of every distinct key without it), and slips
in names, on the command line and in kinds of values; `few`: of keys that several configs have, in one of them. It prints what was
refused, and how often the right word was suggested.
"""

import json
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mmrl.app.chain.rows import rows_before
from mmrl.app.config.plug_ins import read_plug_ins
from mmrl.app.config.run import resolve, value_at
from mmrl.app.config.stages import stages_of
from mmrl.app.plugins.catalog import configs as all_configs
from mmrl.app.toml.tables import KeyPath, Table, dotted_key
from tests.support.each import for_each
from tests.support.forked import run

ROOT = Path(__file__).parents[2]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789_"
NOBODY = "zzzzzzzzzzzz"
NAMED = ("preset", "kind", "use")
"""Keys whose values are names of mmrl's own things."""
OF_THE_DATA = ("columns", "schema")
"""Tables whose keys belong to the layout of a file, where a slip is refused when it is opened, or to a JSON schema."""
WRONG = {"text": "ten", "number as text": "3", "truth": True, "list": [1], "table": {"a": 1}, "number": 7, "fraction": 0.5}
Tables = dict[str, dict[str, Any]]
Keys = Mapping[str, Sequence[KeyPath]]
"""Config -> the keys of it that are tried."""


@dataclass
class Outcome:
    """Of many mutated configs."""

    total: int = 0
    right: int = 0
    """The right word was suggested."""
    accepted: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    """Refused, by a message that does not name the key."""

    def note(self, what: str, message: str | None, named: str, wanted: str = "") -> None:
        self.total += 1
        if message is None:
            self.accepted.append(what)
        elif named not in message:
            self.unnamed.append(f"{what}: {message}")
        elif wanted and f"did you mean {wanted!r}" in message:
            self.right += 1


@dataclass(frozen=True)
class Place:
    """One key of one config, and all that may stand in its place."""

    config: str
    path: KeyPath
    known: frozenset[str]

    @property
    def key(self) -> str:
        return self.path[-1]

    @property
    def same(self) -> tuple[Any, ...]:
        """Equal where two configs have the same key in the same kind of table."""
        return at_any(self.path), self.known

    def slips(self) -> list[str]:
        """All one-edit mutations of the key that are no keys themselves."""
        return sorted(set(one_edit(self.key)) - self.known - {"", self.key})


def tables() -> Tables:
    """Every shipped config as its file says."""
    return {listed.name: Table.read(listed.file).values for listed in all_configs()}


def every_key(shipped: Tables) -> Keys:
    return {name: list(key_paths(values)) for name, values in shipped.items()}


def each_key_once(shipped: Tables) -> Keys:
    """Of keys that stand at the same place in several configs the first."""
    seen: set[KeyPath] = set()
    found: dict[str, list[KeyPath]] = {}
    for name, paths in every_key(shipped).items():
        found[name] = [path for path in paths if at_any(path) not in seen]
        seen |= {at_any(path) for path in paths}
    return found


def at_any(path: KeyPath) -> KeyPath:
    """The path with no number of an item."""
    return tuple("#" if part.isdigit() else part for part in path)


def refusal(values: dict[str, Any], overrides: Sequence[str] = ()) -> str | None:
    """Why the config is refused before data are read or models loaded; None if it is not."""
    try:
        for stage in stages_of(resolve(Table.of(values, "a.toml"), overrides)):
            with rows_before(stage):
                read_plug_ins(stage.resolved)
    except ValueError as error:
        # what is wrong inside a stage is said as "a.toml, stage 1: optimizer.jr is unknown"
        return re.sub(r"^a\.toml, stage (\d+): ", lambda found: f"a.toml: stage.{int(found[1]) - 1}.", str(error))
    return None


def places(name: str, values: dict[str, Any], paths: Sequence[KeyPath]) -> Iterator[Place]:
    """These keys of a config, with all that may stand in their place."""
    for path in paths:
        message = refusal(renamed(values, path, NOBODY)) or ""
        found = re.search(r"known: ([^()]*)\)", message)
        yield Place(name, path, frozenset(found[1].split(", ")) if found else frozenset())


def key_paths(values: Any, above: KeyPath = ()) -> Iterator[KeyPath]:
    items = values.items() if isinstance(values, Mapping) else ()
    if isinstance(values, list):
        items = [(str(i), item) for i, item in enumerate(values) if isinstance(item, Mapping)]
    for key, value in items:
        if isinstance(values, Mapping):
            yield (*above, key)
        # a painter's own policy is read when the painter is looked at, before weights load
        if key not in OF_THE_DATA and (*above, key)[-2:] != ("painter", "policy"):
            yield from key_paths(value, (*above, key))


def renamed(values: dict[str, Any], path: KeyPath, key: str) -> dict[str, Any]:
    """The config with one key called otherwise, at the same place among its neighbours."""
    changed = deepcopy(values)
    holder = value_at(changed, *path[:-1])
    items = list(holder.items())
    holder.clear()
    holder.update({key if name == path[-1] else name: item for name, item in items})
    return changed


def with_value(values: dict[str, Any], path: KeyPath, value: Any) -> dict[str, Any]:
    changed = deepcopy(values)
    value_at(changed, *path[:-1])[path[-1]] = value
    return changed


def one_edit(word: str) -> Iterator[str]:
    for i in range(len(word) + 1):
        head, tail = word[:i], word[i:]
        yield from (head + letter + tail for letter in LETTERS)
        if tail:
            yield head + tail[1:]
            yield from (head + letter + tail[1:] for letter in LETTERS)
        if len(tail) > 1:
            yield head + tail[1] + tail[0] + tail[2:]


def some(rng: random.Random, words: Sequence[str], count: int | None) -> Sequence[str]:
    return words if count is None else rng.sample(words, min(count, len(words)))


def slips_in_keys(shipped: Tables, keys: Keys, count: int | None) -> Outcome:
    """`count` of every key of every config; all of every distinct one."""
    rng, found = random.Random(0), Outcome()
    everywhere = [place for name, values in shipped.items() for place in places(name, values, keys[name])]
    for place in everywhere if count is not None else {place.same: place for place in everywhere}.values():
        for slip in some(rng, place.slips(), count):
            wrong = dotted_key((*place.path[:-1], slip))
            message = refusal(renamed(shipped[place.config], place.path, slip))
            found.note(f"{place.config} {wrong}", message, f"a.toml: {wrong} is ", place.key)
    return found


def slips_in_names(shipped: Tables, _: Keys, count: int | None) -> Outcome:
    """In the names of presets, kinds and plug-ins, each once, whichever keys are tried."""
    rng, found = random.Random(1), Outcome()
    named = [(values, path) for values in shipped.values() for path in key_paths(values) if path[-1] in NAMED]
    # An address is nobody's name.
    named = [(values, path) for values, path in named if "://" not in str(value_at(values, *path))]
    once = {(path[-2:], value_at(values, *path)): (values, path) for values, path in named}
    for values, path in once.values():
        name = value_at(values, *path)
        for slip in some(rng, sorted(set(one_edit(name)) - {name, ""}), count):
            found.note(f"{dotted_key(path)} = {slip}", refusal(with_value(values, path, slip)), slip, name)
    return found


def slips_on_the_command_line(shipped: Tables, keys: Keys, count: int | None) -> Outcome:
    """In any part of a dotted key: `optimzer.lr=1`. They take the same ways as those in files, so three of each are all."""
    rng, found = random.Random(2), Outcome()
    count = 3 if count is None else count
    for name, values in shipped.items():
        for path in [path for path in keys[name] if not any(part.isdigit() for part in path)]:
            i = rng.randrange(len(path))
            [place] = places(name, values, [path[: i + 1]])
            for slip in some(rng, place.slips(), count):
                wrong = dotted_key((*path[:i], slip))
                message = refusal(deepcopy(values), [f"{dotted_key((*path[:i], slip, *path[i + 1 :]))}=1"])
                found.note(f"{name} {wrong}", message, f"command line: {wrong}", path[i])
    return found


def wrong_values(shipped: Tables, keys: Keys, count: int | None) -> Outcome:
    """A text or truth value for a number, a number for a text, a list or table for either, and the other way round."""
    rng, found = random.Random(3), Outcome()
    for name, values in shipped.items():
        for path in keys[name]:
            old = value_at(values, *path)
            for what in some(rng, [what for what, new in WRONG.items() if is_wrong(old, new)], count):
                found.note(f"{dotted_key(path)} = {WRONG[what]!r}", refusal(with_value(values, path, WRONG[what])), path[-1])
    return found


def is_wrong(old: Any, new: Any) -> bool:
    """Is the value of another kind than the shipped one? A whole number may stand for any number, not the other way round."""
    if isinstance(old, float):
        return isinstance(new, bool) or not isinstance(new, int | float)
    return type(new) is not type(old)


TABLES = tables()


def outcomes(*count: str) -> dict[str, dict[str, Any]]:
    """Of a process of its own, so that no test meets what a refused config leaves behind."""
    done = run("-m", "tests.configs.test_mutations", *count, cwd=ROOT)
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


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else None
    trials = (slips_in_keys, slips_in_names, slips_on_the_command_line, wrong_values)
    shipped = tables()
    keys = each_key_once(shipped) if sys.argv[2:] == ["few"] else every_key(shipped)
    sys.stdout.write(json.dumps({trial.__name__: asdict(trial(shipped, keys, wanted)) for trial in trials}) + "\n")
