"""The words of a report, for models that write and for those that draw, and its tables of numbers."""

import math
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmrl.app.errors import printable
from mmrl.app.report.figures import PairedChange

Words = tuple[tuple[str, str, str], ...]
"""Title, metric, and how to read it."""
KL = ("KL to the reference", "policy/kl", "How far the policy has moved from where it began.")
CLIPPED = ("Clip fraction", "policy/clip_frac", "Share of actions whose ratio was clipped; above 0.3 the steps are too large.")
GRADIENT = ("Gradient norm", "policy/grad_norm", "Before clipping. Spikes come with unstable steps.")
NO_SPREAD = ("Groups without spread", "reward/no_spread", "All samples got the same reward: nothing to learn from them.")
HEALTH_OF_TEXTS: Words = (
    ("Tokens per completion", "rollout/length", "A sudden drop or climb means the model games its length."),
    KL,
    ("Entropy", "policy/entropy", "Near 0 the model always says the same and can no longer explore."),
    ("Surprise per token", "rollout/entropy", "Mean -log p of what was sampled, which estimates the entropy."),
    CLIPPED,
    GRADIENT,
    NO_SPREAD,
    ("Cut completions", "rollout/truncated", "Share that never stopped and was cut at the length limit."),
)
HEALTH_OF_PICTURES: Words = (
    ("Trained steps per sample", "rollout/length", "Denoising steps of a sample that train."),
    KL,
    CLIPPED,
    GRADIENT,
    NO_SPREAD,
)
AGREEMENT = ("Agreement with", "teacher/agreement", "Share of tokens that speculative decoding would accept: it should rise.")
TAUGHT: Words = (
    ("Surprise at what is taught", "policy/imitation", "Mean -log p of the taught tokens: it should fall."),
    ("Error of the flow", "policy/matching_error", "Squared error of velocity or noise. It differs from noise to noise."),
    ("Pairs in the right order", "policy/preferred", "Share of pairs. A dpo stage begins at 0: nothing has moved yet."),
    (f"{AGREEMENT[0]} the teacher", *AGREEMENT[1:]),
    ("Error of ratings", "policy/error", "How far scores are from the ratings of the data."),
)
"""What stages that teach should improve."""
NOT_OF_PICTURES = ("rollout/truncated", "rollout/entropy", "policy/entropy")
"""Metrics that mean nothing where pictures are drawn."""


def number(value: float) -> str:
    """Three decimals below 10, fewer above, powers of ten for what would vanish; a dash for what is not a number."""
    if not math.isfinite(value):
        return "\N{EN DASH}"
    if 0 < abs(value) < 0.0005:
        return f"{value:.1e}".replace("e-0", "e-").replace("-", "\N{MINUS SIGN}")
    digits = 3 if abs(value) < 10 else 1 if abs(value) < 1000 else 0
    return f"{value:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def percent(value: float) -> str:
    return f"{value * 100:.0f} %" if math.isfinite(value) else "\N{EN DASH}"


def points(value: float) -> str:
    """A difference of shares in percentage points."""
    return f"{value * 100:+.0f}".replace("-", "\N{MINUS SIGN}")


def signed(value: float) -> str:
    return ("+" if value >= 0 else "") + number(value)


def table(texts: Mapping[str, int | None], numbers: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> Table:
    """Columns of texts, folded at their greatest width, and then of numbers, to the right; nothing in a row is markup."""
    grid = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for heading, width in texts.items():
        grid.add_column(heading, overflow="fold", max_width=width)
    for heading in numbers:
        grid.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        grid.add_row(*(Text(printable(cell)) for cell in row))
    return grid


def cells_of(found: Sequence[PairedChange]) -> list[list[str]]:
    """Figures before and after as rows, names of the columns first; with the share of unread answers where there are such."""
    unread = any(max(filter(math.isfinite, one.unread), default=0.0) > 0 for one in found)
    rows = [["held out", "before", "after", "change", "95 % interval", *(["unparsed"] if unread else [])]]
    for one in found:
        interval = f"{one.low:+.3f} to {one.high:+.3f}" if one.has_interval else f"{one.num_prompts} prompts: none"
        share = [f"{percent(one.unread[0])} to {percent(one.unread[1])}"] if unread else []
        rows.append([one.name, f"{one.before:.3f}", f"{one.after:.3f}", f"{one.difference:+.3f}", interval, *share])
    return rows


def write_tsv(console: Console, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Tab-separated lines, past rich, which makes blanks of tabs; None and NaN are empty, tabs and line ends in words blanks."""

    def word(value: object) -> str:
        is_empty = value is None or (isinstance(value, float) and not math.isfinite(value))
        text = "" if is_empty else repr(value) if isinstance(value, float) else str(value)
        return " ".join(text.split("\t")).replace("\n", " ").replace("\r", " ")

    console.file.write(printable("".join("\t".join(map(word, row)) + "\n" for row in (header, *rows))))
