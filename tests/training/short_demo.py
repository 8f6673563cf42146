"""A demo in little, both parts of it in one process: `python tests/training/short_demo.py video FOLDER`."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from mmrl.app.commands import demo
from mmrl.data.drawn.shapes import Sketches
from mmrl.tiny.flow import generator
from mmrl.tiny.text import clips, grounding

PICTURES = generator.WarmStart(data=Sketches(), pool=128, batch_size=16, vae_steps=20, steps=20, layers=2, heads=2, max_tokens=8)
TAUGHT: Mapping[str, Callable[[Path], Path]] = {
    "grounding": lambda folder: grounding.warm_start(grounding.WarmStart(steps=80, batch_size=8), folder),
    "video": lambda folder: clips.warm_start(replace(clips.WarmStart(), steps=20, num_clips=40), folder),
    "t2i": lambda folder: generator.warm_start(PICTURES, folder),
}
FEW = ["evaluation.num_prompts=8", "evaluation.data.size=8", "data.size=64"]
# what so little imitation draws earns nothing from the demo's own reward
DRAWN = ["evaluation.num_samples=1", "prompts_per_step=2", 'reward=[{use = "jpeg_size", scale = 0.1}]']
SHORT = {"grounding": FEW, "video": FEW, "t2i": DRAWN}


def main(name: str, folder: Path) -> None:
    model = TAUGHT[name](folder.with_name(f"{folder.name}-model"))
    words = ["steps=3", "evaluate_every=0", "samples_every=1", f"policy.model={str(model)!r}", *SHORT[name]]
    demo.run(name, folder, overrides=words)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
