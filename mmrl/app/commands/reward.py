"""`mmrl reward test` and `mmrl reward score`: from the words of a command line to rewards, data, tables and pages."""

import base64
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
from PIL import Image
from rich.table import Table as Grid
from rich.text import Text

from mmrl.answers.block import Template
from mmrl.answers.boxes.box import SPACES, Space
from mmrl.app.commands.options import FileOptions, RewardTestOptions, ScoreOptions
from mmrl.app.config import run as configs
from mmrl.app.config.plug_ins import read_reward
from mmrl.app.config.reward_needs import read_runs_as_rewards
from mmrl.app.config.run import DataConfig, RewardConfig, RunConfig
from mmrl.app.errors import Terminal, printable
from mmrl.app.files import replace_text
from mmrl.app.modality.registry import modality_of
from mmrl.app.plugins import resolve as plugins
from mmrl.app.plugins.catalog import catalog
from mmrl.app.plugins.lab import TINY
from mmrl.app.reward_test import probes
from mmrl.app.reward_test.probes import ProbeRow, read_tasks
from mmrl.app.reward_test.verdict import Findings, compare_ranges, difference_when_served, examine
from mmrl.app.run.beforehand import what_is_missing
from mmrl.app.run.build import load_data, with_local_model
from mmrl.app.run.sample_files import strip_of, write_clip
from mmrl.app.toml.reader import make
from mmrl.app.toml.tables import Table
from mmrl.core.types import Group, Prompt, Sample
from mmrl.data.sources import first_of_each
from mmrl.policies.codes.settings import CodePolicyConfig
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.text.prompt.templates import tags_of
from mmrl.runtime.near import link
from mmrl.serving.media import data_url
from mmrl.training.rewards.runner import NamedReward, RewardRunner

MOST_CARDS = 200
MOST_PROMPTS = 1000
"""How many prompts of a data set are searched for those that a reward is tested on."""
Shown = tuple[list[Prompt], list[ProbeRow]]
"""Prompts of a data set, or rows of a file."""
Card = dict[str, Any]
"""One sample of a gallery, by the names that its template uses."""
THUMBNAIL = 320
DRAWN_SIDE = 256
"""Pixels along a side of the pictures that a reward of pictures is tried on where no config names their size."""
console = Terminal()


def test(target: str, settings: Sequence[str] = (), options: RewardTestOptions = RewardTestOptions()) -> bool:
    """Print what the probes show; True if no fault was found.

    Raises ValueError: no such reward or config, no data, data without truth, or of which several layouts fit.
    """
    space, template, most = options.space, options.template, options.prompts
    check_choice("--space", space, SPACES)
    check_choice("--template", template, get_args(Template))
    style = probes.Style(cast(Space, space or "norm1000"), cast(Template | None, template))
    read = None if options.data is None else partial(data_of, options.data, options)
    rewards, prompts, tasks, style = inputs_of_test(target, settings, read, style, space is not None)
    if tasks and any(task.draws for task in tasks):
        made = [probes.image_groups(tasks[:most], style.seed)] * len(rewards)
    else:
        shown = [*prompts, *(task.prompt for task in tasks)]
        own = [[one for one in shown if not tried.sources or one.source in tried.sources][:most] for tried in rewards]
        made = [
            probes.text_groups(each, style) if style.draws is None else probes.groups_of_drawings(each, style.draws)
            for each in own
        ]
    found = [examine(one, *groups) for one, groups in zip(rewards, made, strict=True)]
    compare_ranges(found)
    if options.served:
        for one, tried, (_, groups) in zip(found, rewards, made, strict=True):
            one.faults += filter(None, [difference_when_served(tried, groups)])
    for one, (_, groups) in zip(found, made, strict=True):
        print_findings(one, len(groups), options.served)
    return not any(one.faults for one in found)


def inputs_of_test(
    target: str, settings: Sequence[str], read: Callable[[], Shown] | None, style: probes.Style, space_given: bool
) -> tuple[list[NamedReward], list[Prompt], list[ProbeRow], probes.Style]:
    """Rewards, prompts or tasks, and how answers are written; `read` gives the data of the command line."""
    if not is_config(target):
        if read is None:
            raise ValueError(f"give the data to test {target} on: --data FILE, or a data set of `mmrl ls datasets`") from None
        tried = one_reward(target, settings, style.space)
        if plugins.modalities(tried.function) == ("image",):
            return [tried], *read(), replace(style, draws=(DRAWN_SIDE, DRAWN_SIDE))
        declared = getattr(tried.function, "space", None)
        if declared in SPACES and not space_given:
            style = probes.Style(cast(Space, declared), style.template)
        return [tried], *read(), style
    resolved = configs.load(target, settings)
    config, table = resolved.config, resolved.table
    if isinstance(config.policy, FlowPolicyConfig):
        if config.policy.frames > 1:
            raise ValueError("rewards of clips are tried on clips that you have: mmrl reward score REWARD FOLDER")
        style = replace(style, draws=(config.policy.width, config.policy.height))
    elif isinstance(config.policy, CodePolicyConfig):
        style = replace(style, draws=(DRAWN_SIDE, DRAWN_SIDE))
    elif not space_given:
        space = space_of(config)
        style = probes.Style(
            cast(Space, space or style.space), style.template or tags_of(getattr(config.policy, "answer_format", ""))
        )
    loaded = [tried_alone(one, i, table, style.space, one.label) for i, one in enumerate(config.reward)]
    if read is not None:
        return loaded, *read(), style
    prompts = load_data(config.data, ("data",), table)
    first = first_of_each(prompts, MOST_PROMPTS) if isinstance(prompts, Sequence) else list(islice(prompts, MOST_PROMPTS))
    return loaded, first, [], style


def is_config(target: str) -> bool:
    """True if an argument names a config; Python files and addresses are rewards."""
    if target.endswith((".py", ".toml")) or ":" in target:
        return target.endswith(".toml")
    return Path(target).expanduser().is_file() or target in [one.name for one in catalog("configs")]


def space_of(config: RunConfig) -> str | None:
    """How the config's model writes boxes; the demo's model is not taught for that, a random one of its family will do."""
    if config.policy.model == f"{TINY}grounding":
        config = replace(config, policy=replace(config.policy, model=f"{TINY}qwen3_vl"))
    policy = with_local_model(config).policy
    return modality_of(policy).box_space(policy)


def one_reward(use: str, settings: Sequence[str], space: Space) -> NamedReward:
    """A reward by name, path or address, with its settings as `key=value`."""
    table = Table.of({"reward": [{"use": use}]}, "command line", (f"reward.0.{assignment}" for assignment in settings))
    read_runs_as_rewards(table)
    reward = make(RewardConfig, table.values["reward"][0], ("reward", "0"), table)
    return tried_alone(reward, 0, table, space, reward.name or plugins.default_name(use))


def tried_alone(reward: RewardConfig, i: int, table: Table, space: Space, name: str) -> NamedReward:
    """A reward as it is tried, in this space where it would take the policy's; ValueError where what it needs is not there."""
    function: Any = read_reward(reward, ("reward", str(i)), table)()
    if missing := what_is_missing(function):
        raise ValueError(f"reward {name!r} {missing}")
    if getattr(function, "space", None) == "auto":
        function = replace(function, space=space)
    how = reward.timeout_s, reward.max_failed, reward.call, reward.transform, reward.sources
    return NamedReward(name, function, reward.weight, *how)


def data_of(data: str, file: FileOptions = FileOptions()) -> Shown:
    """Prompts of a data set by name, or the rows of a file or folder, of the layout that somebody says or that is guessed."""
    if Path(data).exists() and not data.endswith(".py"):
        return [], read_tasks(Path(data), file.layout, MOST_PROMPTS, print_plain, file.image_root)
    for option, said in (("--as", file.layout), ("--image-root", file.image_root)):
        if said is not None:
            raise ValueError(f"{option} {said} is about a file, and {data} is a data set or no file: leave {option} out")
    known = [one.name for one in plugins.listing("datasets")]
    if Path(data).suffix and ".py" not in data and data.partition(":")[0] not in known:
        raise FileNotFoundError(f"no file or folder {data}{link(Path(data))}: check the path")
    table = Table.of({"data": {"use": data}}, "command line")
    return list(islice(load_data(DataConfig(data), ("data",), table), MOST_PROMPTS)), []


def print_plain(line: str) -> None:
    console.print(line, soft_wrap=True)


def score(target: str, settings: Sequence[str], data: str, options: ScoreOptions = ScoreOptions()) -> None:
    """Score finished outputs: a table on the terminal, and a page and a JSONL file where asked for.

    Raises ValueError: rows without outputs, a reward that breaks its contract, or one that scored none of them.
    """
    found = read_tasks(Path(data), options.layout, say=print_plain, image_root=options.image_root)
    tasks, out, html = [task for task in found if task.samples], options.out, options.html
    if not tasks:
        raise ValueError(f"{data} has no outputs to score: give rows a `completion`, an `image` or a `video`")
    tried = one_reward(target, settings, "norm1000")
    if len(tasks) < len(found):
        console.print(f"{len(found) - len(tasks)} of {len(found)} rows have no output and are left out", style="yellow")
    runner = RewardRunner([replace(tried, max_failed=1.0, weight=1.0)])
    groups = [Group(i, task.prompt, task.samples) for i, task in enumerate(tasks)]
    cards = [
        card(task, i, float(table.values[i, 0]), int(table.status[i, 0]), table.parts[i])
        for task, table in zip(tasks, runner.score(groups), strict=True)
        for i in range(len(task.samples))
    ]
    cards.sort(key=lambda c: -math.inf if c["score"] is None else c["score"], reverse=True)
    print_scores(tried.name, cards)
    if out is not None:
        lines = [json.dumps({key: value for key, value in c.items() if key not in ("image", "clip")}) for c in cards]
        replace_text(out, "".join(line + "\n" for line in lines))
        console.print(f"scores: {out}")
    if html is not None:
        write_gallery(html, tried.name, data, cards)
        console.print(f"gallery: {html}")
    if all(c["score"] is None for c in cards):
        raise ValueError(f"{tried.name} scored none of the {len(cards)} outputs of {data}: it failed, or is for other data")


def card(task: ProbeRow, index: int, value: float, status: int, parts: Mapping[str, float]) -> Card:
    sample = task.samples[index]
    said = {0: None, 1: "does not apply", 2: "failed"}[status]
    shown = {name.partition("/")[2]: number for name, number in parts.items()}
    return {
        "id": task.prompt.id,
        "output": task.names[index],
        "prompt": task.prompt.text,
        "completion": sample.text,
        "score": None if said else value,
        "status": said or "ok",
        "parts": shown,
        "image": sample.image if sample.image is not None else strip_of(sample.output),
        "clip": clip_url(sample),
    }


def print_scores(name: str, cards: Sequence[Card]) -> None:
    grid = Grid("score", "prompt", "output", "parts", title=f"{name}, best first", title_justify="left", box=None)
    for i, c in enumerate(cards):
        if len(cards) <= 40 or i < 20 or i >= len(cards) - 20:
            value = "-" if c["score"] is None else f"{c['score']:.4g}"
            parts = ", ".join(f"{key} {number:.3g}" for key, number in c["parts"].items())
            texts = [" ".join(text.split()) for text in (c["prompt"], c["completion"] or c["output"])]
            texts = [text if len(text) <= 60 else text[:57] + "..." for text in texts]
            grid.add_row(value, *(Text(printable(text)) for text in (*texts, parts)))
        elif i == 20:
            grid.add_row("...", f"{len(cards) - 40} more", "", "")
    console.print(grid)
    values = [c["score"] for c in cards if c["score"] is not None]
    missing = len(cards) - len(values)
    if values:
        console.print(f"{len(values)} scored, mean {sum(values) / len(values):.4g}, {min(values):.4g} to {max(values):.4g}")
    if missing:
        console.print(f"{missing} without a score (failed, or the reward does not apply)", style="yellow")


def write_gallery(file: Path, name: str, source: str, cards: Sequence[Card]) -> None:
    """One HTML file, best first; of many outputs the best and the worst."""
    from mmrl.app.report.page import ASSETS, environment

    kept = [*cards[: MOST_CARDS // 2], *cards[-MOST_CARDS // 2 :]] if len(cards) > MOST_CARDS else list(cards)
    shown = [c | {"image": None if c["image"] is None else thumbnail(c["image"])} for c in kept]
    page = (
        environment()
        .get_template("gallery.html.j2")
        .render(name=name, source=source, cards=shown, left_out=len(cards) - len(kept), css=(ASSETS / "report.css").read_text())
    )
    replace_text(file, page)


def clip_url(sample: Sample) -> str:
    """A clip inside the page; empty for other outputs."""
    with tempfile.TemporaryDirectory() as folder:
        file = write_clip(Path(folder), sample)
        return "" if file is None else f"data:video/mp4;base64,{base64.b64encode(file.read_bytes()).decode()}"


def thumbnail(image: Image.Image) -> str:
    """A picture inside the page, at most THUMBNAIL pixels wide."""
    return data_url(image, THUMBNAIL, "png" if max(image.size) <= 128 else "jpeg")


def print_findings(found: Findings, num_prompts: int, served: bool) -> None:
    grid = Grid(
        "probe", "mean", "zero", "failed", "None", title=f"{found.name} on {num_prompts} prompts", title_justify="left", box=None
    )
    for i, probe in enumerate(found.probes if len(found.values) else ()):
        values, status = found.values[:, i], found.status[:, i]
        shares = [float(x.float().mean()) for x in (values == 0, status == 2, status == 1)]
        grid.add_row(probe, f"{float(values.nanmean()):.3f}", *(f"{share:.0%}" for share in shares))
    console.print(grid)
    if found.seconds:
        fifty, ninety_five = (float(x) for x in 1e3 * np.percentile(found.seconds, [50, 95]))
        inside = float(found.values.std(dim=1).nanmean())
        console.print(f"  spread inside a group {inside:.3f}; one group takes {fifty:.2f} ms (p50), {ninety_five:.2f} ms (p95)")
        agreement = "; served scores equal local ones" if served and not any("served" in f for f in found.faults) else ""
        console.print(f"  {'can' if found.picklable else 'cannot'} be pickled{agreement}")
    for warning in found.warnings:
        console.print(f"  note: {warning}", style="yellow")
    for fault in found.faults:
        console.print(f"  FAULT: {fault}", style="red")
    if not found.faults:
        console.print("  no fault found", style="green")
    if probes.DRAWN in found.probes:
        said = f"none of these is known to be the best: mmrl reward score {found.name} FOLDER ranks pictures that you have"
        console.print(f"  {said}")


def check_choice(option: str, value: str | None, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        raise ValueError(f"{option} is {value!r}: use one of {', '.join(known)}")
