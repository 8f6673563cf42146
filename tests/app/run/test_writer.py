"""A model that writes for a generator, as a whole run: resumed, sampled ahead, its pictures kept; and runs that take turns."""

import math
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmrl.app.commands import alternate as verbs
from mmrl.app.commands.alternate import alternate, read_duet
from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.config import run as configs
from mmrl.app.evaluation.compare import compare, write_comparison
from mmrl.app.report.page import Pair, Picture, thumbnail
from mmrl.app.run.folder import RunDir, read_lines
from mmrl.core.types import Prompt, Sample
from mmrl.serving.scorers import painting
from mmrl.serving.scorers.painting import Painting, Studio
from tests.processes.cases import STOPS
from tests.support.each import for_each
from tests.support.refused import refused

SMALL = ["prompts_per_step=1", "algorithm.group_size=2", "policy.sampling.max_new_tokens=4", "evaluation.num_prompts=2"]


def lines_of(run: Path) -> list[Any]:
    """What was written, drawn and scored in each step."""
    files = [RunDir(run).samples_file(split, step) for step in (1, 2) for split in ("train", "eval")]
    names = ("digest", "scores", "parts", "image")
    return [tuple(line[name] for name in names) for file in files for line in read_lines(file).lines]


def resumed(folder: Path, ahead: int, *words: str) -> list[Any]:
    """The lines of a run, which one that was stopped after a step and resumed has too."""
    words = ("tiny/writer", *SMALL, *words, f"ahead={ahead}", f"cluster.samplers={ahead}", "save_every=1", "samples_every=1")
    train(TrainArguments([*words], output=folder / "whole"))
    train(TrainArguments([*words, "steps=1"], output=folder / "cut"))
    train(TrainArguments(["steps=2"], resume=folder / "cut"))
    whole = lines_of(folder / "whole")
    assert lines_of(folder / "cut") == whole
    return whole


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_resumed_writer_is_the_undisturbed_one_and_its_pictures_are_kept(tmp_path, ahead, monkeypatch):
    monkeypatch.setattr(painting, "_STUDIOS", {})
    whole = resumed(tmp_path, ahead)
    [studio] = painting._STUDIOS.values()
    assert studio.drawn < studio.asked, "the reward that watches draws nothing of its own"
    assert all((RunDir(tmp_path / "whole").samples / line[3]["file"]).is_file() for line in whole)
    assert "drawn/beside" in whole[-1][2] and "drawn/beside" not in whole[0][2]
    if not ahead:
        check_pages(tmp_path)


def check_pages(folder: Path) -> None:
    """The report has the picture of the user's words once, those of both evaluations, and both texts; so has `compare`."""
    (first, last) = (read_lines(RunDir(folder / "whole").samples_file("eval", step)).lines for step in (0, 2))
    assert all(line["beside"] != line["image"] for line in (*first, *last)) and len(first) == 2
    assert [line["beside"] for line in first] == [line["beside"] for line in last], "drawn from the same noise"
    page = (folder / "whole" / "report.html").read_text()
    gallery = page[page.index('<section id="gallery">') : page.index('<section id="steps">')]
    cards = gallery.split("<article")[1:]
    for line, after, card in zip(first, last, cards, strict=True):
        assert re.findall(r'<p class="label">([^<]*?) *<', card) == ["the user&#39;s words", "before", "after"]
        places = [card.index(source_of(folder / "whole", one)) for one in (line["beside"], line["image"], after["image"])]
        assert places == sorted(places)
        assert card.count('<pre class="said">') == 2
    both = write_comparison(compare(folder / "whole", folder / "cut"), folder / "both.html").read_text()
    (card, _) = both.split("<article")[1:]
    assert re.findall(r'<p class="label">([^<]*?) *<', card) == ["the user&#39;s words", "a", "b"]
    assert card.count(source_of(folder / "cut", last[0]["image"])) == 2 and "= " in card


def source_of(run: Path, picture: Any) -> str:
    return thumbnail(RunDir(run).samples / picture["file"])


def test_pictures_of_the_users_words_that_differ_are_both_shown():
    """As where the painter learned between two evaluations."""

    def side(*sources: str) -> Any:
        row = SimpleNamespace(iou=math.nan, total=0.0)
        return SimpleNamespace(row=row, beside=[Picture(one, 1, 1, "picture") for one in sources])

    found = [
        [(name, one.source) for name, one in Pair(*both).beside] for both in ((side("x"), side("x")), (side("x"), side("y")))
    ]
    assert found == [[("the user's words", "x")], [("the user's words, before", "x"), ("the user's words, after", "y")]]
    assert Pair(side(), side()).beside == []


DUET = """turns = 2
[[player]]
config = "tiny/flow"
output = "a"
steps = 3
[[player]]
config = "tiny/writer"
output = "b"
steps = 5
overrides = ["seed=7"]
"""


def test_players_train_in_turns_and_go_on_where_they_were_killed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("duet.toml").write_text(DUET)
    done, calls, ends = {"a": 0, "b": 0}, list[str](), iter([0, 1, 0, 0, 0])

    def run(words: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        calls.append(" ".join(words[4:]))
        code = next(ends)
        who = "a" if "a" in words else "b"
        if code == 0:
            done[who] = next(int(word.removeprefix("steps=")) for word in words if word.startswith("steps="))
        Path(who).mkdir(exist_ok=True)
        began = configs.find_config("tiny/flow" if who == "a" else "tiny/writer")
        (Path(who) / "config.toml").write_text(began.read_text())
        return subprocess.CompletedProcess(words, code)

    monkeypatch.setattr(verbs.subprocess, "run", run)
    monkeypatch.setattr(verbs.DuetPlayer, "done", lambda self: done[self.output])
    assert alternate(Path("duet.toml")) == 1, "a player that fails ends it"
    assert alternate(Path("duet.toml")) == 0
    assert calls == [
        "tiny/flow steps=3 --output a",
        "tiny/writer seed=7 steps=5 --output b",
        "--resume b steps=5",
        "--resume a steps=6",
        "--resume b steps=10",
    ]
    assert alternate(Path("duet.toml")) == 0 and len(calls) == 5
    said = "".join(capsys.readouterr())
    assert "2 turns are done: a, b" in said
    assert "b goes on with the settings it began with, and tiny/writer has others now:\n  seed 0 -> 7\n" in said
    assert "a goes on with" not in said


@for_each(
    "old, new, words",
    [
        ('output = "b"', 'output = "a"', "two players have the output"),
        ("turns = 2", "turns = 0", "turns"),
        ("turns = 2\n", "turns = 2\nturn = 1\n", "turn"),
        ("tiny/flow", "tiny/cold_start", "tiny/cold_start has stages"),
        ("tiny/flow", "tiny/nowhere", "nowhere"),
        ('config = "tiny/flow"', 'config = "tiny/flow"\noverrides = ["output=x"]', "an output of its own"),
        ('"seed=7"', '"sead=7"', "sead"),
        (
            '"seed=7"',
            '\'data={ use = "written", writer = "bb", source = { use = "prompts", path = "x.txt" } }\'',
            r"tiny/writer has data\.writer = 'bb', which is no run and no player's output \(a and b\): name one of these",
        ),
        ('"seed=7"', "'reward.0.painter={ run = \"aa\" }'", r"has reward\.0\.painter\.run = 'aa', which is no run"),
        (DUET[DUET.rindex("[[player]]") :], "", "player has 1 tables"),
        (DUET, "", "turns"),
    ],
)
def test_duets_that_cannot_be_played_are_refused_before_anybody_trains(tmp_path, old, new, words):
    file = tmp_path / "duet.toml"
    file.write_text(DUET.replace(old, new))
    assert file.read_text() != DUET
    refused(words, read_duet, file, error=(ValueError, FileNotFoundError))
    refused(r"none\.toml does not exist", read_duet, tmp_path / "none.toml", error=FileNotFoundError)


PAINTER = "{model='tiny:sd3', num_steps=2, width=64, height=64}"
ONE = ["tiny/writer", *SMALL, "samples_every=1", "evaluation.num_prompts=0", "steps=1"]
WORLD = [f"environment={{use='easel', form='plain', painter={PAINTER}}}", "environment.limits.turns=2"]
FOUR = "{weights='nf4', lora={rank=2}}"


def inside(name: str, use: str) -> list[str]:
    """A reward of pictures, or none, inside one of what was drawn."""
    own = f", painter={PAINTER}" if name == "drawn" else ""
    return [*(WORLD if name == "shown" else []), f"reward=[{{use='{name}', picture={{use='{use}'}}{own}}}]"]


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_resumed_easel_is_the_undisturbed_one(tmp_path, ahead):
    whole = resumed(tmp_path, ahead, *inside("shown", "jpeg_size"), STOPS, "evaluation.num_prompts=0")
    assert any(parts["shown/pictures"] for _, _, parts, _ in whole)


@pytest.mark.parametrize("words", [["policy.weights=nf4", "policy.lora.rank=2"], [f"reward.0.painter.policy={FOUR}"]])
def test_a_writer_and_a_painter_in_4_bits_take_a_step(tmp_path, words):
    train(TrainArguments([*ONE, *words], output=tmp_path / "run"))
    assert all(line["image"] for line in read_lines(RunDir(tmp_path / "run").samples_file("train", 1)).lines)


@for_each(
    "words, said",
    [
        (["reward.0.painter.policy={weights='nf4'}"], r"policy\.weights is \"nf4\", and weights in 4 bits do not train: add"),
        (inside("drawn", "format"), "'format in drawn' scores text"),
        (inside("shown", "format"), "'format in shown' scores text"),
        (inside("drawn", "tempo"), "'tempo in drawn' scores sound"),
        (inside("shown", "tempo"), "'tempo in shown' scores sound"),
        (inside("drawn", "shape_edits"), "'drawn' cannot score 16 of 16 prompts"),
    ],
)
def test_what_does_not_go_together_is_refused_before_weights_load(no_weights, tmp_path, words, said):
    refused(said, train, TrainArguments([*ONE, *words], output=tmp_path / "run"))


@pytest.mark.evidence
def test_a_painters_run_that_trains_on_changes_no_picture(tmp_path):
    painting = Painting(run=str(tmp_path / "painter"))
    words = ["tiny/flow", "steps=1", "save_every=1", "optimizer.lr=1e-1", "evaluation.num_prompts=0"]
    train(TrainArguments(words, output=tmp_path / "painter"))

    def drawn(studio: Studio, seed: int) -> bytes:
        (made,) = studio.pictures([(Prompt("a", "a cat"), seed)])
        assert isinstance(made, Sample)
        return made.image.tobytes()

    studio = Studio(painting)
    drawn(studio, 1)
    train(TrainArguments(["steps=2"], resume=tmp_path / "painter"))
    first, second = (drawn(Studio(replace(painting, step=step)), 2) for step in (1, 2))
    assert drawn(studio, 2) == first != second
