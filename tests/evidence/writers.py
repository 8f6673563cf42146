"""Writers and painters at equal samples, one seed of one comparison: `python -m tests.evidence.writers turns --seed 0`.

Wishes in users' words reach pictures through a tiny Qwen3-VL that writes and a tiny Stable Diffusion 3 that draws. `turns`: the
writer alone learns, the painter alone, or both one after the other, 128 samples a step. `easel`: a writer that draws once, and
one that looks and draws again, 64 episodes a step, with held-out texts sampled at temperature 1, 2 per wish. Printed is the
reward `shapes` of 48 held-out wishes, 8 denoising steps a picture, as step -> value, and written to FOLDER/COMPARISON-SEED.json.
A run that is there is not repeated. `--steps` cuts every run short.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmrl.app.commands.alternate import alternate
from mmrl.app.export.export import export
from mmrl.app.run.folder import RunDir
from tests.evidence.teachers import curve, main, run

STEPS = {"turns": 24, "easel": 10}
TURNS = 3
CLEAN = "{{ {}, num_steps = 8, guidance = 1.0, rows = 64 }}"
MODEL = 'model = "tiny:clean_shapes", width = 32, height = 32, policy = { max_prompt_tokens = 0 }'
COMMON = ("save_every=0", 'optimizer.lr_schedule="constant"', "optimizer.warmup_steps=3")
DRAWS = ("policy.model=tiny:clean_shapes", "prompts_per_step=4", "evaluation.num_samples=1")
DRAWS += ('evaluation.data={use = "wishes", split = "held_out", size = 48}',)
HERE = Path(__file__).resolve().parent
DIALOGUES = f"data={{use = {str(HERE / 'corrected_words.py')!r}, size = 2400, seed = 1000003}}"
EASEL = 'environment={use = "easel", form = "plain", painter = %s, call = {where = "thread", workers = 64}, '
EASEL += "limits = {turns = %d, pictures = 2, timeout_s = 600.0}}"
SHOWN = 'reward=[{use = "shown", picture = {use = "shapes"}}]'
SAMPLED = ("evaluation.sampling.temperature=1.0", "evaluation.num_samples=2")


def duet(folder: Path, words: tuple[str, ...], steps: int) -> RunDir:
    """The writer's run after turns with a painter, which share the steps."""
    each = max(1, steps // (2 * TURNS))
    painter, writer = folder / "painter", folder / "writer"
    written = f'data={{use = "written", writer = {str(writer)!r}, source = {{ use = "wishes", size = 128 }}}}'
    drawn = "reward.0.painter=" + CLEAN.format(f"run = {str(painter)!r}")
    players = (("tiny/t2i", painter, (*words, *DRAWS, written)), ("tiny/writing", writer, (*words, drawn)))
    tables = [
        f"[[player]]\nconfig = {config!r}\noutput = {str(output)!r}\nsteps = {each}\noverrides = {json.dumps(own)}\n"
        for config, output, own in players
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "duet.toml").write_text("\n".join([f"turns = {TURNS}", *tables]))
    if code := alternate(folder / "duet.toml"):
        raise RuntimeError(f"{folder / 'duet.toml'} ended with {code}")
    return RunDir.open(writer)


def corrected(out: Path) -> str:
    """The folder of a writer that imitated dialogues in place of texts."""
    taught, folder = run(out / "corrected", "tiny/hurried_words", (DIALOGUES, "save_every=0"), 150), out / "corrected-model"
    if not folder.is_dir():
        export(taught.path, folder)
    return str(folder)


def compare(name: str, seed: int, out: Path, steps: int | None = None) -> dict[str, Any]:
    """The held-out curves of a comparison at one seed."""
    count, folder = steps or STEPS[name], out / f"{name}-{seed}"
    words = (f"seed={seed}", *COMMON)
    alone = (*words, f"steps={count}", f"evaluate_every={count}")
    found: Mapping[str, RunDir]
    if name == "turns":
        found = {
            "writer alone": run(folder / "writer-alone", "tiny/writing", alone, count),
            "painter alone": run(folder / "painter-alone", "tiny/t2i", (*alone, *DRAWS, 'data={use = "wishes"}'), count),
            "in turns": duet(folder / "duet", (*words, "evaluate_every=4"), count),
        }
    else:
        alone = (*alone, "prompts_per_step=8", SHOWN, *SAMPLED)
        start = f"policy.model={corrected(out)}"
        found = {
            key: run(folder / key, "tiny/writing", (*alone, EASEL % (CLEAN.format(MODEL), turns), start), count)
            for key, turns in (("one drawing", 1), ("two turns", 2))
        }
    curves = {key: curve(one) for key, one in found.items()}
    result = {"comparison": name, "seed": seed, "steps": count, "held-out reward": curves}
    (out / f"{name}-{seed}.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    main(compare, STEPS, __doc__, "runs/writers")
