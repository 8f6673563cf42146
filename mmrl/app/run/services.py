"""TensorBoard, wandb and trackio: the same numbers under the same names, and samples as tables, pictures and clips."""

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmrl.app.run.folder import Line, RunDir
from mmrl.app.run.sample_files import frames_of, strip, write_clip
from mmrl.app.run.trackers import flat
from mmrl.core.types import Group, Scores, Status
from mmrl.runtime.net.secrets import hide_in_json
from mmrl.training.callbacks import Callback, Examples

NAMES = ("tensorboard", "wandb", "trackio")

Service = Any
"""A tracker of accelerate: of tensorboard, wandb or trackio, each with calls of its own."""
Rows = list[Line]
Pictures = Sequence[tuple[str, Image.Image, str]]
"""Tag, picture and caption of each."""
Clips = Sequence[tuple[str, Path, str]]
"""Tag, .mp4 file and caption of each."""


class AccelerateTrackers(Callback):
    """TensorBoard, wandb and trackio through accelerate's trackers, with pictures, clips and completions.

    All get the same numbers under the same names. TensorBoard writes to `<folder>/tensorboard`, and shows clips as strips of
    frames. The other two show the folder's name as the run's name and obey their own environment variables (WANDB_MODE=offline,
    TRACKIO_DIR).
    """

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        project: str = "mmrl",
        config: Mapping[str, object] | None = None,
        num_examples: int = 8,
    ) -> None:
        """`config` is the resolved run config; `num_examples` groups of every samples call are shown.

        Raises ValueError if a name is unknown, or its package is not installed.
        """
        for name in names:
            if name not in NAMES:
                raise ValueError(f"tracker {name!r} is unknown: choose among {', '.join(NAMES)}")
            if importlib.util.find_spec(name) is None:
                raise ValueError(f'tracker {name!r} needs the package {name}, which is not installed: pip install "mmrl[track]"')
        self.num_examples, self.media = num_examples, RunDir(folder).media
        self.trackers = {name: start_service(name, folder, project) for name in names}
        for tracker in self.trackers.values():
            tracker.store_init_configuration(flat(config or {}))

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        if examples is not None:
            self.samples(step, examples.groups, examples.scores, "train")
        self.log(step, metrics)

    def after_evaluation(self, step: int, metrics: Mapping[str, float], examples: Examples) -> None:
        self.log(step, metrics)
        self.samples(step, examples.groups, examples.scores, "eval")
        for name, one in examples.also.items():
            self.samples(step, one.groups, one.scores, f"eval/{name}")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for tracker in self.trackers.values():
            tracker.log({name: float(value) for name, value in metrics.items()}, step=step)

    def samples(self, step: int, groups: Sequence[Group], scores: Scores, split: str) -> None:
        """A table of completions with their scores, and pictures and clips shown or made, of the first `num_examples` groups."""
        chosen = groups[: self.num_examples]
        rows: list[Line] = hide_in_json(example_rows(chosen, scores))
        texts, shows_clips = iter(captions(rows)), not {"wandb", "trackio"}.isdisjoint(self.trackers)
        pictures, clips = list[tuple[str, Image.Image, str]](), list[tuple[str, Path, str]]()
        for group in chosen:
            own, tag = list(islice(texts, len(group.samples))), f"{split}/{group.prompt.id}"
            pictures += [(f"{tag}/{place}", picture, text) for place, picture, text in pictures_of(group, own)]
            for i, sample in enumerate(group.samples if shows_clips else ()):
                if (file := write_clip(self.media, sample)) is not None:
                    clips.append((f"{tag}/sample-{i}-clip", file, own[i]))
        for name, tracker in self.trackers.items():
            EXAMPLES[name](tracker, step, split, rows, pictures, clips)

    def close(self) -> None:
        for tracker in self.trackers.values():
            tracker.finish()


def start_service(name: str, folder: Path, project: str) -> Service:
    """The running accelerate tracker of this name."""
    from accelerate.state import PartialState
    from accelerate.tracking import TensorBoardTracker, TrackioTracker, WandBTracker

    PartialState()
    if name == "tensorboard":
        tracker = TensorBoardTracker("tensorboard", folder)
    elif name == "wandb":
        tracker = WandBTracker(project, name=folder.resolve().name, dir=str(folder))
    else:
        tracker = TrackioTracker(project, name=folder.resolve().name)
    tracker.start()
    return tracker


def show_in_tensorboard(tracker: Service, step: int, split: str, rows: Rows, pictures: Pictures, clips: Clips) -> None:
    tracker.log({f"{split}/completions": markdown_table(rows)}, step=step)
    for tag, picture, _ in pictures:
        tracker.log_images({tag: np.asarray(picture)[None]}, step=step, dataformats="NHWC")


def show_in_wandb(tracker: Service, step: int, split: str, rows: Rows, pictures: Pictures, clips: Clips) -> None:
    import wandb  # pyright: ignore[reportMissingImports] - part of the extra [track]

    if rows:
        columns, data = list(rows[0]), [list(row.values()) for row in rows]
        tracker.log_table(f"{split}/completions", columns=columns, data=data, step=step)
    if pictures:
        shown = [wandb.Image(picture, caption=caption) for _, picture, caption in pictures]
        tracker.log({f"{split}/pictures": shown}, step=step)
    if clips:
        moving = [wandb.Video(str(file), caption=caption, format="mp4") for _, file, caption in clips]
        tracker.log({f"{split}/clips": moving}, step=step)


def show_in_trackio(tracker: Service, step: int, split: str, rows: Rows, pictures: Pictures, clips: Clips) -> None:
    import pandas
    import trackio  # pyright: ignore[reportMissingImports] - part of the extra [track]

    tracker.log({f"{split}/completions": trackio.Table(dataframe=pandas.DataFrame(rows))}, step=step)
    for tag, picture, caption in pictures:
        tracker.log({tag: trackio.Image(picture, caption=caption)}, step=step)
    for tag, file, caption in clips:
        tracker.log({tag: trackio.Video(str(file), caption=caption, format="mp4")}, step=step)


EXAMPLES: dict[str, Callable[[Service, int, str, Rows, Pictures, Clips], None]] = {
    "tensorboard": show_in_tensorboard,
    "wandb": show_in_wandb,
    "trackio": show_in_trackio,
}


def captions(rows: Sequence[Line]) -> list[str]:
    """A sample's prompt and total in one line each: 'a red fox: 0.41'."""
    totals = ["no total" if not math.isfinite(row["total"]) else f"{row['total']:.3g}" for row in rows]
    return [f"{row['text'] or row['prompt']}: {total}" for row, total in zip(rows, totals, strict=True)]


def example_rows(groups: Sequence[Group], scores: Scores) -> list[Line]:
    """One row of plain values per sample of the first groups; `scores` begins with their rows."""
    totals, values, status = scores.total().tolist(), scores.values.tolist(), scores.status.tolist()
    samples = [(group, sample) for group in groups for sample in group.samples]
    return [
        {"prompt": group.prompt.id, "text": group.prompt.text, "completion": sample.text or "", "total": total}
        | {name: v if s == Status.OK else None for name, v, s in zip(scores.names, row, states, strict=True)}
        for (group, sample), total, row, states in zip(samples, totals, values, status, strict=False)
    ]


def pictures_of(group: Group, texts: Sequence[str]) -> list[tuple[str, Image.Image, str]]:
    """The pictures of a prompt and those that its samples made, each with its place in the group and its caption.

    Videos are strips, and pictures made of a prompt's picture stand beside it.
    """
    shown = [(f"prompt-{i}", media, group.prompt.text) for i, media in enumerate(group.prompt.media)]
    source = frames_of(group.prompt.media[0])[0][:1] if group.prompt.media else []
    made = [
        (f"sample-{i}{'-sound' if drawn is sample.sound is not sample.output else ''}", drawn, texts[i])
        for i, sample in enumerate(group.samples)
        for drawn in (sample.image, sample.video, sample.sound)
        if drawn is not None
    ]
    found: list[tuple[str, Image.Image, str]] = []
    for place, media, text in shown + made:
        frames, kind = frames_of(media)
        if frames:
            beside = source if kind == "picture" and place.startswith("sample") else []
            whole = strip([*beside, *frames]) if beside or kind != "picture" else frames[0]
            found.append((place, whole, text))
    return found


def markdown_table(rows: list[Line]) -> str:
    """TensorBoard shows text as Markdown; cells keep to one line and show HTML as text."""
    if not rows:
        return "no samples"
    escape = {"|": "\\|", "\n": " ", "<": "&lt;", ">": "&gt;", "&": "&amp;"}
    cells = [["".join(escape.get(c, c) for c in str(value)) for value in row.values()] for row in rows]
    lines = [list(rows[0]), ["---"] * len(rows[0]), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
