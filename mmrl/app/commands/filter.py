"""`mmrl data filter`: the prompts a starting model gets right sometimes, found by letting it answer each k times."""

from collections.abc import Sequence
from pathlib import Path

from rich.progress import track

from mmrl.app.chain.mine import samples_with_totals
from mmrl.app.config.data import data_tables
from mmrl.app.config.run import load
from mmrl.app.config.tasks import root_key
from mmrl.app.run.build import build, load_data
from mmrl.app.run.context import console
from mmrl.core.types import Request
from mmrl.data.difficulty import Kept, keep_learnable
from mmrl.data.files.paths import write_jsonl
from mmrl.data.layouts.base import EDITED, MEDIA
from mmrl.data.layouts.write import LineWriter
from mmrl.data.prompt_rows import check_writable, columns_of


def keep_by_difficulty(
    name: str,
    out: Path,
    overrides: Sequence[str],
    num_samples: int,
    shares: tuple[float, float],
    success_at: float,
    image_root: Path | None = None,
) -> Kept:
    """Write the training prompts of a config whose share of successes lies within `shares` as JSONL in our words.

    Args:
        num_samples: completions per prompt (k of pass@k).
        success_at: total reward from which a completion counts as right.
        image_root: where the paths of pictures and clips start; None: as the config says.

    Raises ValueError for prompts that a row cannot say, or that a reward did not score, and where none is kept.
    """
    resolved = load(name, overrides)
    if image_root is not None:
        tables = data_tables(resolved.config.data, ("data",))
        roots = [f"{'.'.join(path)}.{root_key(data.use)}={str(image_root)!r}" for path, data in tables]
        resolved = load(name, [*overrides, *roots])
    prompts = list(load_data(resolved.config.data, ("data",), resolved.table))
    for prompt in prompts:
        check_writable(prompt)
    job = build(resolved)
    scores = dict[str, list[float]]()
    for index, prompt in enumerate(track(prompts, "sampling", console=console)):
        [(_, scores[prompt.id])] = samples_with_totals(job, [Request(prompt, num_samples, group_id=index, seed=index)])
    kept = keep_learnable(prompts, scores, *shares, success_at)
    if not kept.prompts:
        best = max((max(found) for found in scores.values()), default=0.0)
        raise ValueError(
            f"no prompt is left for {out} ({kept}): the best total reward was {best:.3g}, and {success_at:g} counts as right; "
            "set --success-at, --low or --high"
        )
    writer = LineWriter(out, out.parent, files=(*MEDIA, *EDITED))
    write_jsonl({out: [writer.line(columns_of(prompt)) for prompt in kept.prompts]})
    return kept
