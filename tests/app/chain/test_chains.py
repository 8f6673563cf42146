"""Chains of stages: what each trains or mines, kills and stops amid them, and what other commands say of them."""

import json
import math
from pathlib import Path
from traceback import walk_tb
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.app.chain.rows import load_rows, place_named
from mmrl.app.commands import check, plan
from mmrl.app.commands.launch import LaunchArguments, launch
from mmrl.app.commands.options import PlanArguments
from mmrl.app.commands.train import TrainArguments, run_training, train
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.config.stages import stages_of
from mmrl.app.evaluation.compare import compare
from mmrl.app.export.export import export
from mmrl.app.run.build import on_the_terminal
from mmrl.app.run.folder import RunDir, read_lines
from mmrl.data.files.mp4 import read_mp4
from mmrl.lab.models import tiny_model
from mmrl.training.checkpoints.save import Checkpoints
from tests.support.chains import killed, lines, same

pytestmark = pytest.mark.usefixtures("empty_desk")
WORDS = ["checkpoint.keep=0", "evaluation.num_prompts=2", "samples_every=0", "stage.3.prompts_per_step=4"]
SHORT = [
    *("evaluation.num_prompts=2", "samples_every=0", "prompts_per_step=2", "reward=[{use='./stops.py'}]"),
    "stage=[{kind='filter', num_prompts=4, num_samples=2, low=0.0, high=0.9, success_at=0.5}, "
    "{kind='rl', data={use='stage:filter'}, until={metric='stops', at_least=2.0, most=1, every=1, num_prompts=2}}]",
]
ON_PAIRS = "{kind='dpo', steps=1, data={use='stage:filter'}}"


def resolved(folder: Path, *words: str) -> Resolved:
    return configs.load("tiny/verifier_loop", [*WORDS, f"output={str(folder)!r}", *words])


def write_stops(first: str = "", score: str = "i") -> None:
    """Write the reward stops.py, which does something first."""
    Path("stops.py").write_text(
        f"from pathlib import Path\n\ndef stops(group):\n    {first}\n"
        f"    return [float({score}) for i, _ in enumerate(group.samples)]\n"
    )


def test_a_loop_killed_between_its_rounds_goes_on_bit_for_bit(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    whole = run_training(resolved(tmp_path / "whole"))
    said = capfd.readouterr().err
    assert "cold start, then 2 rounds of rl, verifier, dpo, " in said and "stage 3 of 7, verifier (round 1 of 2): " in said
    assert "stage 7 of 7, dpo (round 2 of 2): step 1 of 1" in said
    measured = lines(whole)
    # the cold start ends at its goal, and leaves the numbers of its other steps out
    assert [line["step"] for line in measured if "loss" in line] == [*range(1, 13), 25, 26, 27, 28]
    assert [line["run/stage"] for line in measured if "loss" in line] == [1] * 12 + [2, 4, 5, 7]
    assert [(line["step"], line["run/stage"]) for line in measured if "mined/rows" in line] == [(25, 3), (27, 6)]
    assert [line["step"] for line in measured if "until/length" in line] == [12]
    pairs = read_lines(whole.path / "stages" / "03-pairs.jsonl").lines
    rows = [row for line in pairs for row in line["rows"]]
    assert len(pairs) == 8 and rows and all(row["chosen"] != row["rejected"] for row in rows)

    assert "stage 4: dpo, round 1, step 26; " in whole.report_file.read_text()
    assert (export(whole.path, tmp_path / "exported") / "model.safetensors").is_file()

    broken = RunDir(tmp_path / "broken")
    killed(__name__, broken.path, 26)
    assert Checkpoints(broken.checkpoints).newest_whole() == 25
    # as if the kill had come earlier, amid the second four prompts that were sampled together
    mined = broken.path / "stages" / "03-pairs.jsonl"
    mined.with_suffix(".part").write_text("\n".join(mined.read_text().splitlines()[:6])[:-3])
    mined.unlink()
    kept = [line for line in broken.metrics_file.read_text().splitlines(keepends=True) if "mined/rows" not in line]
    broken.metrics_file.write_text("".join(kept))
    again = run_training(resolved(broken.path), broken.path)
    assert read_lines(mined).lines == pairs and not mined.with_suffix(".part").exists()
    assert lines(again) == measured
    compared = compare(whole.path, again.path)
    assert compared.num_shared == 2 and compared.settings == []
    ends = [Checkpoints(run.checkpoints).load(28) for run in (whole, again)]
    assert same(ends[0]["policy"], ends[1]["policy"]) and same(ends[0]["optimizer"], ends[1]["optimizer"])


def test_prompts_are_filtered_stopped_amid_and_continued(tmp_path: Path, monkeypatch, capfd: pytest.CaptureFixture[str]):
    # asks the run to stop when it sees the second prompt; the third is too easy
    asks = "\n        Path('run/stop.request').touch()\n        Path('asked').touch()"
    once = f"if group.prompt.id.endswith('-1') and not Path('asked').exists():{asks}"
    write_stops(once, "group.prompt.id.endswith('-2') or i")
    words = [*SHORT, f"output={str(tmp_path / 'run')!r}"]
    with pytest.raises(SystemExit):
        run_training(configs.load("tiny/verifier_loop", words))
    part = tmp_path / "run" / "stages" / "01-filter.part"
    assert len(read_lines(part).lines) == 2 and "stopped by stop.request" in capfd.readouterr().err
    said = r"stage 1 of 2, filter: its rows were sampled from other data \(prompt .* and 1 more\)"
    with monkeypatch.context() as patch, pytest.raises(ValueError, match=said):
        patch.setattr("mmrl.app.commands.train.build", lambda *given: pytest.fail("a model was loaded"))
        run_training(configs.load("tiny/verifier_loop", [*words, "data.seed=7"]), tmp_path / "run")
    run = run_training(configs.load("tiny/verifier_loop", words), tmp_path / "run")
    kept = [bool(line["rows"]) for line in read_lines(part.with_suffix(".jsonl")).lines]
    assert kept == [True, True, False, True]
    (mined,) = [line for line in lines(run) if "mined/rows" in line]
    assert (mined["mined/rows"], mined["mined/prompts"], mined["mined/solved"]) == (3, 4, 1)
    warnings = [line["text"] for line in read_lines(run.warnings_file).lines]
    assert "stage 2 of 2, rl has not reached a stops of 2 in its 1 steps: the chain goes on as it is" in warnings
    capfd.readouterr()
    check.check("tiny/verifier_loop", words)
    said = capfd.readouterr().out
    assert "4 prompts x 2 samples, no update" in said and "stage 2 of 2, rl" in said and "4 prompts to train on" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["stage.0.success_at=9.0", "stage.0.low=0.1"],
            "stage 1 of 2, filter: no prompt is kept, of 4; right were 0 of 2 samples",
        ),
        (
            ["stage.0={kind='pairs', name='filter', num_prompts=4, num_samples=2, gap=9.0}", "stage.1=" + ON_PAIRS],
            r"stage 1 of 2, filter: no prompt gave a pair, of 4; the samples of each are alike, cut or",
        ),
        (["stage.1.until.metric='stops/x'"], "until.metric is 'stops/x', and what is measured is .*stops, total: take one"),
    ],
)
def test_what_shows_only_while_it_runs(tmp_path: Path, words: list[str], message: str):
    write_stops()
    with pytest.raises(ValueError, match=message):
        run_training(configs.load("tiny/verifier_loop", [*SHORT, *words, f"output={str(tmp_path / 'run')!r}"]))


def test_rows_of_other_settings_are_sampled_again(tmp_path: Path):
    write_stops("Path('run/stop.request').touch()")
    for count in (2, 3):
        words = [*SHORT, f"output={str(tmp_path / 'run')!r}", f"stage.0.num_samples={count}"]
        with pytest.raises(SystemExit):
            run_training(configs.load("tiny/verifier_loop", words), tmp_path / "run" if count == 3 else None)
        assert [line["scored"] for line in read_lines(tmp_path / "run/stages/01-filter.part").lines] == [count, count]


def test_errors_name_their_stage_once_and_keep_where_they_were_raised():
    first, *_ = stages_of(configs.load("tiny/cold_start"))
    for text, said in (("gone", "stage 1 of 2, cold start: gone"), ("stage 2 of 2, rl: gone", "stage 2 of 2, rl: gone")):
        with pytest.raises(ValueError) as caught, place_named(first):
            raise ValueError(text)
        assert str(caught.value) == said
        assert [frame for frame, _ in walk_tb(caught.value.__traceback__)][-1].f_code.co_filename == __file__


def test_check_plan_and_launch_look_at_every_stage(capfd: pytest.CaptureFixture[str]):
    assert check.check("tiny/cold_start", TWO)
    said = capfd.readouterr().out
    assert "stage 1 of 2, cold start" in said and "stage 2 of 2, rl" in said and "no reward, for none" in said
    assert plan.plan(PlanArguments(["tiny/cold_start", *TWO], card="24GB"))
    assert "stage 2 of 2, rl" in capfd.readouterr().out
    assert on_the_terminal(configs.load("tiny/cold_start").config)
    assert plan.plan(PlanArguments(["tiny/verifier_loop"], card="24GB"))
    said = capfd.readouterr().out
    assert "stage 3 of 7, verifier (round 1 of 2): 8 prompts x 8 samples, no update" in said and said.count("fits a card") == 3
    launch(LaunchArguments(["tiny/verifier_loop"], dry_run=True))
    assert "stages: cold start, then 2 rounds of rl, verifier, dpo\n" in capfd.readouterr().out


BEST = "{kind='filter', name='best', num_prompts=3, num_samples=3, success_at=-1.0, low=0.0, high=1.0, column='picture'}"
PAIRS = "{kind='pairs', num_prompts=3, num_samples=3}"
SFT = "{kind='sft', steps=2, data={use='stage:best'}}"
CHAIN = f"[{BEST}, {SFT}, {PAIRS}, {{kind='dpo', steps=1, data={{use='stage:pairs'}}}}]"
CLIPS = ["policy.model=tiny:wan", "policy.frames=5", "policy.fps=4.0", "policy.max_prompt_tokens=8"]
SHORT_CLIPS = ["evaluate_every=0", "evaluation.num_prompts=0", "samples_every=0", "prompts_per_step=2", "save_every=1"]
BRIGHT = """
from pathlib import Path

import numpy as np


def bright(group):
    if Path("ask").exists() and group.prompt.id.startswith("yellow"):
        Path("ask").unlink()
        Path("stopped/stop.request").touch()
    return [float(np.asarray(sample.output).mean() / 255) for sample in group.samples]
"""


def resolved_drawn(folder: Path, *words: str) -> Resolved:
    (folder.parent / "bright.py").write_text(BRIGHT)
    reward = f"reward=[{{use={str(folder.parent / 'bright.py')!r}}}]"
    return configs.load("tiny/taught_drawing", [*SHORT_CLIPS, reward, f"stage={CHAIN}", f"output={str(folder)!r}", *words])


def rows_of(run: RunDir, name: str) -> list[dict[str, Any]]:
    return [row for line in read_lines(run.path / "stages" / name).lines for row in line["rows"]]


def brightness(run: RunDir, file: str) -> float:
    path = run.path / "stages" / file
    return float((np.asarray(Image.open(path)) if path.suffix == ".png" else read_mp4(path)[0]).mean() / 255)


def test_the_best_pictures_and_pairs_of_them_are_taught_and_a_stopped_chain_goes_on_bit_for_bit(tmp_path: Path):
    whole = run_training(resolved_drawn(tmp_path / "whole"))
    best, pairs = rows_of(whole, "01-filter.jsonl"), rows_of(whole, "03-pairs.jsonl")
    assert len(best) == len(pairs) == 3 and all(row["picture"].startswith("media/") for row in best)
    for row in pairs:
        light, dark = (brightness(whole, row[name]) for name in ("chosen", "rejected"))
        assert light - dark == pytest.approx(row["margin"], abs=1e-6) and row["margin"] > 0

    Path("ask").touch()
    with pytest.raises(SystemExit):
        run_training(resolved_drawn(tmp_path / "stopped"))
    assert 0 < len(read_lines(tmp_path / "stopped/stages/01-filter.part").lines) < 3
    again = run_training(resolved_drawn(tmp_path / "stopped"), tmp_path / "stopped")
    assert rows_of(again, "01-filter.jsonl") == best and rows_of(again, "03-pairs.jsonl") == pairs
    assert lines(again) == lines(whole)
    one, other = (Checkpoints(run.checkpoints).load(3) for run in (whole, again))
    assert same(one["policy"], other["policy"])

    stages = stages_of(resolved_drawn(tmp_path / "gone"))
    moved = RunDir((tmp_path / "whole").rename(tmp_path / "moved"))
    taught = [prompt.columns["picture"] for prompt in load_rows(stages[0], moved)]
    assert taught == [str(moved.path / "stages" / row["picture"]) for row in best]
    rows_are_of_what_was_sampled(moved, tmp_path)
    Path(taught[1]).unlink()
    with pytest.raises(ValueError, match=r"stage 1 of 4, best: its rows name .*\.png, which is gone: put"):
        load_rows(stages[0], moved)
    (moved.path / "stages" / "01-filter.jsonl").unlink()
    with pytest.raises(ValueError, match=r"stage 1 of 4, best: its rows, .*01-filter\.jsonl, are gone"):
        load_rows(stages[0], moved)


def rows_are_of_what_was_sampled(run: RunDir, folder: Path) -> None:
    """Neither data nor rows nor the pictures they name may be others than they were."""

    def refused(message: str, *words: str) -> None:
        with pytest.raises(ValueError, match=f"stage 1 of 4, best: {message}"):
            load_rows(stages_of(resolved_drawn(folder / "gone", *words))[0], run)

    refused(r"its rows were sampled from other data \(prompt '.*' and 2 more\): put the data back, or", "data.seed=7")
    refused(r".*\(one of 3 prompts, where there are 2 now\)", "stage.0.num_prompts=2")
    file = run.path / "stages" / "01-filter.jsonl"
    written = file.read_text()
    file.write_text(written.replace('"right": 3', '"right": 2', 1))
    refused(r"line 1 of .*01-filter\.jsonl, or a file that it names, is not as it was written: put it back, or begin")
    file.write_text(written.partition("\n")[2])
    refused("its rows were sampled from other data")
    file.write_text(written)
    picture = run.path / "stages" / rows_of(run, file.name)[0]["picture"]
    drawn = picture.read_bytes()
    Image.new("RGB", (16, 16)).save(picture)
    refused("line 1 of ")
    picture.write_bytes(drawn)


def test_the_best_clips_are_taught(tmp_path: Path):
    chain = f"stage=[{BEST}, {SFT}]".replace("'picture'", "'clip'").replace("steps=2", "steps=1")
    run = run_training(resolved_drawn(tmp_path / "run", chain, "data.pictures=false", *CLIPS))
    best = [row["clip"] for row in rows_of(run, "01-filter.jsonl")]
    assert len(best) == 3 and read_mp4(run.path / "stages" / best[0])[0].shape == (5, 16, 16, 3)
    assert [line["run/stage"] for line in lines(run) if "loss" in line] == [2]
    assert json.loads(run.metrics_file.read_text().splitlines()[-1])["loss"] > 0


TWO = [
    *("stage.0.steps=2", "stage.1.steps=2", "evaluation.num_prompts=2", "evaluate_every=0", "samples_every=0"),
    *("save_every=1", "checkpoint.keep=0", "policy.lora.rank=2", "data.size=8", "prompts_per_step=2"),
    'stage.1.algorithm.objective=[{kind="Clip"}, {kind="ReferenceKL", coef=0.1}]',
]


def resolved_two(folder: Path, *words: str) -> Resolved:
    """The chain, whose second stage is rewarded for different letters."""
    letters = folder.parent / "letters.py"
    letters.write_text("def letters(group):\n    return [len(set(sample.text)) for sample in group.samples]\n")
    return configs.load("tiny/cold_start", [*TWO, f'stage.1.reward=[{{use="{letters}"}}]', f"output={str(folder)!r}", *words])


def test_a_chain_killed_on_both_sides_of_a_border_is_the_chain_that_nobody_disturbed(tmp_path: Path, capfd):
    whole = run_training(resolved_two(tmp_path / "whole"))
    assert "stage 1 of 2, cold start: step 2 of 2" in (said := capfd.readouterr().err)
    assert "stage 2 of 2, rl: step 2 of 2" in said and "cold start, then rl, " in said
    killed(__name__, tmp_path / "broken", 2, chain="resolved_two")
    assert Checkpoints(RunDir(tmp_path / "broken").checkpoints).newest_whole() == 1
    killed(__name__, tmp_path / "broken", 3, True, "resolved_two")
    again = run_training(resolved_two(tmp_path / "broken"), tmp_path / "broken")
    assert lines(again) == lines(whole)
    steps = [line["step"] for line in lines(whole) if "loss" in line]
    assert steps == [1, 2, 3, 4] and [line["run/stage"] for line in lines(whole) if "loss" in line] == [1, 1, 2, 2]
    states = {name: Checkpoints(run.checkpoints).load(4) for name, run in (("whole", whole), ("broken", again))}
    assert same(states["whole"]["policy"], states["broken"]["policy"])
    assert same(states["whole"]["optimizer"], states["broken"]["optimizer"])
    # the reference of the second stage is what the first one ended with, not the model without its adapter
    border, end = Checkpoints(whole.checkpoints).load(2)["policy"], states["whole"]["policy"]
    assert border["shadows"] == {} and same(end["shadows"]["ref"], border["weights"])
    assert not same(end["weights"], border["weights"])
    with pytest.raises(ValueError, match=r"stage.0.steps is 3, .* hold the place in the chain of that"):
        run_training(resolved_two(tmp_path / "whole", "stage.0.steps=3"), whole.path)


def test_pairs_of_a_file_are_preferred_from_where_the_stage_before_ended(tmp_path: Path):
    Image.new("RGB", (64, 64), "red").save("a.png")
    row = {
        "prompt": "Which colour?",
        "images": ["a.png"],
        "chosen": "red",
        "rejected": [{"role": "assistant", "content": "blue"}],
    }
    Path("pairs.jsonl").write_text("".join(json.dumps({**row, "id": str(i)}) + "\n" for i in range(4)))
    data = 'data={use="qa_jsonl", path="pairs.jsonl"}'
    dpo = 'stage.1={kind="dpo", steps=3, beta=0.5, optimizer={lr=0.01}, ' + data + "}"
    more = ["algorithm={}", 'stage.0.column="chosen"', f"stage.0.{data}", dpo]
    run = run_training(resolved_two(tmp_path / "run", *more))
    steps = [line for line in lines(run) if "loss" in line]
    assert [line["loss"] for line in steps[2:3]] == [pytest.approx(math.log(2), abs=1e-5)]
    assert steps[2]["policy/margin"] == pytest.approx(0, abs=1e-4) and steps[-1]["policy/margin"] > 0.05
    assert steps[-1]["policy/preferred"] == 1 and steps[-1]["loss"] < math.log(2)
    Path("pairs.jsonl").write_text(json.dumps({**row, "rejected": "red"}))
    with pytest.raises(ValueError, match="stage 2 of 2, dpo: prompt 'pairs-1' has the same text in the columns 'chosen' and"):
        run_training(resolved_two(tmp_path / "other", "policy.model=/nowhere", *more))


def test_llavas_answers_are_taught_whole_by_one_line(tmp_path: Path):
    said = "<think>It is red.</think><answer>red</answer>"
    turns = [{"from": "human", "value": "<image>\nWhich colour?"}, {"from": "gpt", "value": said}]
    Image.new("RGB", (64, 64), "red").save("a.png")
    Path("llava.json").write_text(json.dumps([{"id": str(i), "image": "a.png", "conversations": turns} for i in range(8)]))
    words = ["steps=4", "optimizer.lr=0.01", "save_minutes=0", "samples_every=1", f"output={str(tmp_path / 'run')!r}"]
    run = train(TrainArguments(words, task="sft", model="tiny:qwen3_vl", data="llava.json"))
    unlikely = [line["policy/imitation"] for line in lines(run) if "loss" in line]
    assert unlikely[-1] < 0.8 * unlikely[0] and [line["loss"] for line in lines(run) if "loss" in line] == pytest.approx(unlikely)
    written = [json.loads(line) for line in run.samples_file("train", 1).read_text().splitlines()]
    assert {line["completion"] for line in written} == {said} and written[0]["answer"] == "red"


def test_a_chain_begins_from_the_adapter_of_another_tool_or_from_its_merged_folder(tmp_path: Path):
    """peft alone makes both, as the supervised trainers of others do."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForImageTextToText, AutoProcessor

    bare = tiny_model("tiny:qwen3_vl")
    loaded, adapters = AutoModelForImageTextToText.from_pretrained(bare), ["q_proj", "up_proj"]
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = get_peft_model(loaded, LoraConfig(r=4, lora_alpha=8, target_modules=adapters))
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5)
    model.save_pretrained("adapter")
    merged = model.merge_and_unload()
    merged.save_pretrained("merged")
    AutoProcessor.from_pretrained(bare).save_pretrained("merged")
    starts = {"bare": [], "adapter": ['policy.lora.adapter="adapter"'], "merged": ['policy.model="merged"']}
    losses = {}
    for name, words in starts.items():
        steps = ["stage.0.steps=1", "stage.1.steps=1", "evaluation.num_prompts=0", f"policy.model={str(bare)!r}", *words]
        run = run_training(resolved_two(tmp_path / f"run-{name}", *steps))
        losses[name] = [line["loss"] for line in lines(run) if "loss" in line]
        assert len(losses[name]) == 2
    assert losses["adapter"][0] == pytest.approx(losses["merged"][0], abs=1e-4)
    assert abs(losses["adapter"][0] - losses["bare"][0]) > 1e-2
    saved = Checkpoints(RunDir(tmp_path / "run-adapter").checkpoints).load(2)["policy"]["weights"]
    assert {weight.size(0) for name, weight in saved.items() if "lora_A" in name} == {4}, "its own rank, not the run's"
