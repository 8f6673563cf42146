"""One HTML file that shows what a run did: no address in it, no script needed to read it, nothing loaded from elsewhere."""

import base64
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from mmrl.app.errors import middle_cut
from mmrl.app.files import replace_text
from mmrl.app.report.curves import curves, evenly, health, others, reward_histogram
from mmrl.app.report.data import (
    EVAL,
    LEAST_MOVE,
    RunData,
    also_changes,
    change_of,
    changes,
    column,
    extremes,
    kinds,
    load,
    pairs,
    read_rows,
    regressions,
)
from mmrl.app.report.figures import LEAST_PROMPTS, PairedChange
from mmrl.app.report.rows import SampleLine, by_task, mean
from mmrl.app.report.timing import phases, read_steps, step_lines, time_band
from mmrl.app.report.words import number, percent, points, signed
from mmrl.app.run.folder import SEEN, Line, RunDir
from mmrl.app.run.resume import read_choices
from mmrl.app.run.trackers import duration
from mmrl.app.toml.tables import value_at
from mmrl.core.samples import KINDS
from mmrl.serving.media import data_url

ASSETS = Path(__file__).parent / "assets"
NUM_PAIRS = 12
NUM_EXTREMES = 4
NUM_REGRESSIONS = 6
MOST_TEXT_BYTES = 20_000
MEDIA_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".mp4": "video/mp4", ".wav": "audio/wav"}
"""Files of a run's media by their suffix."""
MADE = ("image", "video", "sound")
"""What a generator made, by its key in a line of a samples file; older files know no sounds."""
MOST_CLIP_BYTES = 400_000
"""Most bytes of a clip or sound in the page; larger ones stay next to the samples, and the page shows strip or waveform."""
MOST_PROMPTS = 6
MOST_STEPS = 8
SIDE = 320
"""Pixels of a strip's picture along its longer side; frames of a clip side by side have twice as many."""
SMALL_BYTES = 12_000
"""Files up to this size are shown as they are."""


@dataclass(frozen=True)
class Picture:
    """A picture of the page with what is drawn over it."""

    source: str
    """Its address; empty when the file is missing."""
    width: int
    height: int
    kind: str
    row: SampleLine | None = None
    """The sample whose boxes or spans are drawn over it: they refer to a prompt's first picture or clip."""
    clip: str = ""
    """The address of the clip itself, where there is one that may be shown."""
    sound: str = ""
    """The same of a sound."""

    @property
    def small(self) -> bool:
        """Enlarged pixels should stay sharp."""
        return max(self.width, self.height) <= 128


def write_report(run: Path | str) -> Path:
    """Write report.html into the run's folder and return its path; errors as in `load`."""
    data = load(run)
    figures = changes(data)
    both = pairs(data)
    best, worst = extremes(data, NUM_EXTREMES)
    worse = regressions(data)
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            data=data,
            # runs of earlier versions have none
            prompt=data.run.prompt_file.read_text(encoding="utf-8") if data.run.prompt_file.is_file() else "",
            name=data.run.path.resolve().name,
            sentence=description(data.config),
            facts=facts(data),
            figures=figures,
            verdict=verdict(figures),
            training=training_change(data) if not figures else None,
            pairs=[Pair(Example(data.run, before), Example(data.run, after)) for before, after in both[:NUM_PAIRS]],
            regressions=[Pair(Example(data.run, before), Example(data.run, after)) for before, after in worse[:NUM_REGRESSIONS]],
            num_worse=len(worse),
            kinds=kinds(data),
            also=also_changes(data),
            choices=read_choices(data.run),
            step_lines=step_lines(read_steps(data.run.spans_file)),
            num_pairs=len(both),
            strips=strips(data),
            has_boxes=any(row.truth for row in (*data.before, *data.after, *data.first_train)),
            has_spans=any(row.spans for row in (*data.before, *data.after, *data.first_train)),
            curves=curves(data),
            health=health(data),
            others=others(data),
            rewards=reward_histogram(data),
            best=[Example(data.run, row) for row in best],
            worst=[Example(data.run, row) for row in worst],
            phases=phases(data.train),
            time_band=time_band(data.train),
        )
    )
    replace_text(data.run.report_file, page)
    return data.run.report_file


def environment() -> Environment:
    """Templates that escape everything a model, a prompt or a config wrote."""
    env = Environment(
        loader=FileSystemLoader(ASSETS), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    env.filters |= {one.__name__: one for one in (short, number, percent, signed, points, duration)}
    env.globals["stored"] = {kind.stored for kind in KINDS.values()}
    env.globals["asset"] = lambda name: Markup((ASSETS / name).read_text(encoding="utf-8"))
    env.globals["script_hash"] = script_hash
    return env


def short(text: object) -> str:
    """A text of at most about MOST_TEXT_BYTES, the middle of a longer one left out: browsers take hundreds of times as much."""
    whole = str(text)
    size = len(whole.encode(errors="replace"))
    return whole if size <= MOST_TEXT_BYTES else middle_cut(whole, MOST_TEXT_BYTES * len(whole) // size)


def script_hash(name: str) -> str:
    """The only script that a page's policy lets a browser run, as such policies name it."""
    digest = hashlib.sha256((ASSETS / name).read_bytes()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def inline_assets(file: Path) -> str:
    """The address of a picture or clip that holds all of it; empty where it is missing, or too large for a page."""
    if not file.is_file() or (file.suffix in (".mp4", ".wav") and file.stat().st_size > MOST_CLIP_BYTES):
        return ""
    return f"data:{MEDIA_TYPES.get(file.suffix, 'image/jpeg')};base64,{base64.b64encode(file.read_bytes()).decode()}"


@lru_cache(maxsize=256)
def thumbnail(file: Path) -> str:
    """The address of a small copy of a picture that holds all of it; empty where it is missing, damaged, or a clip."""
    try:
        if file.stat().st_size <= SMALL_BYTES:
            return inline_assets(file) if file.suffix in (".png", ".jpg") else ""
        with Image.open(file) as picture:
            return data_url(picture, SIDE * (2 if picture.width > 2 * picture.height else 1), "jpeg", 85)
    except OSError:
        return ""


class Example:
    """One sample as a page shows it; `address` says where a page finds a file of media."""

    def __init__(self, run: RunDir, row: SampleLine, address: Callable[[Path], str] = inline_assets) -> None:
        self.row = row
        self.shown = [picture_of(run, media, None if i else row, address) for i, media in enumerate(row.line["media"])]
        self.made = [picture_of(run, row.line[kind], None, address) for kind in MADE if row.line.get(kind)]
        self.beside = [picture_of(run, row.line["beside"], None, address)] if row.line.get("beside") else []
        """What the user's own words gave, where a writer's are drawn."""
        self.iou = row.iou
        file = run.samples_file(row.line["split"], row.line["step"])
        self.samples = quote(file.relative_to(run.path).as_posix()) if address is inline_assets else ""
        """Where a report links to all of a text that is cut."""
        turns = [(turn, turn["observation"] or {"role": "", "text": "", "media": ()}) for turn in row.line.get("turns", ())]
        pictures = [[picture_of(run, media, None, address) for media in seen["media"]] for _, seen in turns]
        said = [(turn["text"], turn["reward"], seen["role"], seen["text"]) for turn, seen in turns]
        self.turns = [(*words, shown) for words, shown in zip(said, pictures, strict=True)]
        """Each turn's text and reward, and who answered it with which text and pictures; no role: nobody did."""
        self.answer = row.line["answer"] if not row.truth and row.spans is None else None
        self.scores = [(name, value, row.line["status"][name]) for name, value in row.line["scores"].items()]


class Pair:
    """The same held-out prompt before and after, or in two runs."""

    def __init__(self, before: "Example", after: "Example", names: tuple[str, str] = ("before", "after")) -> None:
        self.before, self.after, self.names = before, after, names
        first, second = before.row, after.row
        self.figure = "IoU" if math.isfinite(first.iou) and math.isfinite(second.iou) else "reward"
        self.values = (first.iou, second.iou) if self.figure == "IoU" else (first.total, second.total)
        self.change = change_of(first, second)

    @property
    def beside(self) -> list[tuple[str, Picture]]:
        """Whose picture of the user's own words it is, and the picture; once where both have the same."""
        pictures = [(name, one) for name, side in zip(self.names, (self.before, self.after), strict=True) for one in side.beside]
        words = "the user's words"
        if len({one.source for _, one in pictures}) < 2:
            return [(words, one) for _, one in pictures[:1]]
        return [(f"{words}, {name}", one) for name, one in pictures]

    @property
    def direction(self) -> str:
        """better, worse or same, for the filter buttons."""
        if not math.isfinite(self.change) or abs(self.change) <= LEAST_MOVE:
            return "same"
        return "better" if self.change > 0 else "worse"


def strips(data: RunData) -> dict[str, list[list[Example]]]:
    """By split, as small pictures: the first samples of its first prompts at its first step, its last, and some between.

    Two evaluations of held-out prompts need none: they are shown as pairs.
    """
    found: dict[str, list[list[Example]]] = {}
    for split, least in ((EVAL, 3), (SEEN, 1)):
        if len(every := data.run.sample_steps(split)) >= least:
            steps = [by_task(read_rows(data.run, split, [step], data.box_space)) for step in evenly(every, MOST_STEPS)]
            own = [[rows[prompt][0] for rows in steps if prompt in rows] for prompt in list(steps[0])[:MOST_PROMPTS]]
            found[split] = [[Example(data.run, row, thumbnail) for row in rows] for rows in own]
    return found


def picture_of(run: RunDir, media: Line, row: SampleLine | None, address: Callable[[Path], str] = inline_assets) -> Picture:
    """A stored picture, clip or sound."""
    if media["file"] is None:
        return Picture("", 1, 1, media["what"])
    source, *beside = (address(run.samples / media[name]) if media.get(name) else "" for name in ("file", "clip", "sound"))
    return Picture(source, media["width"], media["height"], media["kind"], row, *beside)


def description(config: Mapping[str, object]) -> str:
    """'grpo, model Qwen/Qwen2.5-VL-3B-Instruct, data geometry3k, rewards math_answer and short'."""

    def setting(table: str, *names: str) -> str:
        return next((str(found) for name in names if (found := value_at(config, table, name)) is not None), "")

    def names_of(table: str) -> list[str]:
        found = config.get(table, [])
        entries = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
        return [str(one.get("name") or one.get("use")) for one in entries]

    names = names_of("reward")
    parts = [
        f"{len(stages)} stages" if isinstance(stages := config.get("stage"), list) else setting("algorithm", "preset", "name"),
        (model := setting("policy", "model", "kind")) and f"model {model}",
        (source := setting("data", "use", "path") or " and ".join(names_of("data"))) and f"data {source}",
        f"{'reward' if len(names) == 1 else 'rewards'} {' and '.join(names)}" if names else "",
    ]
    return ", ".join(part for part in parts if part)


def facts(data: RunData) -> list[tuple[str, str]]:
    """The facts that a reader asks for first: how many steps, how long, how many held-out prompts."""
    wanted = data.steps_wanted
    seconds = sum(value for value in column(data.train, "time/step_s")[1] if math.isfinite(value))
    # stages that end early leave numbers out
    taken = len({one["step"] for one in data.train})
    found = [("steps", str(taken) if wanted is None or data.stages else f"{data.steps_done} of {wanted}")]
    algorithm = data.config.get("algorithm", {})
    if isinstance(algorithm, Mapping) and {"epochs", "minibatches"} <= set(algorithm):
        updates = int(algorithm["epochs"]) * int(algorithm["minibatches"])
        found.append(("update per step" if updates == 1 else "updates per step", str(updates)))
    if seconds:
        found.append(("in training steps", duration(seconds)))
    if data.before:
        found.append(("held-out prompts", str(len({row.prompt for row in data.before}))))
    if data.warnings:
        found.append(("warning" if len(data.warnings) == 1 else "warnings", str(len(data.warnings))))
    return found


def verdict(figures: Sequence[PairedChange]) -> str:
    """One sentence on the first figure."""
    if not figures:
        return ""
    first = figures[0]
    name = first.name[:1].lower() + first.name[1:]
    values = f"from {number(first.before)} to {number(first.after)}"
    if not first.has_interval:
        few = f"Too few prompts ({first.num_prompts}) to say whether anything changed"
        return f"{few}: the {name} went {values}. Evaluate {LEAST_PROMPTS} or more."
    interval = f"{signed(first.low)} to {signed(first.high)}"
    where = f"on {first.num_prompts} held-out prompts"
    if not first.clear:
        return f"No clear change: the {name} {where} went {values}, and the 95 % interval of the change, {interval}, includes 0."
    return f"The {name} {where} {'rose' if first.difference > 0 else 'fell'} {values} (95 % interval of the change: {interval})."


def training_change(data: RunData) -> tuple[float, float, int] | None:
    """Mean reward of the first and last tenth of the steps, for runs without a second evaluation."""
    values = column(data.train, "reward/total")[1]
    if not values:
        return None
    size = max(1, len(values) // 10)
    return mean(values[:size]), mean(values[-size:]), size
