"""A demo in little, both parts of it in one process: `python tests/training/short_demo.py video FOLDER`."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmrl.app.commands import demo
from mmrl.app.run.folder import RunDir
from mmrl.data.drawn.digit_text import Prints
from mmrl.data.drawn.gliding import Glides
from mmrl.data.drawn.shapes import Sketches
from mmrl.tiny.flow import clip_generator, generator
from mmrl.tiny.text import clips, grounding

PICTURES = generator.WarmStart(data=Sketches(), pool=128, batch_size=16, vae_steps=20, steps=20, layers=2, heads=2, max_tokens=8)
NUMBERS = replace(PICTURES, data=Prints(), patch=2, max_tokens=6)
SMALL: dict[str, Any] = {"halvings": 2, "latents": 8, "layers": 1, "heads": 2, "feed_forward": 64, "text_width": 32}
CLIPS = clip_generator.WarmStart(data=Glides(side=16), pool=64, vae_steps=10, vae_pool=64, steps=20, **SMALL)
TAUGHT: Mapping[str, Callable[[Path], Path]] = {
    "grounding": lambda folder: grounding.warm_start(grounding.WarmStart(steps=80, batch_size=8), folder),
    "video": lambda folder: clips.warm_start(replace(clips.WarmStart(), steps=20, num_clips=40), folder),
    "t2i": lambda folder: generator.warm_start(PICTURES, folder),
    "t2i-text": lambda folder: generator.warm_start(NUMBERS, folder),
    "t2v": lambda folder: clip_generator.warm_start(CLIPS, folder),
}
FEW = ["evaluation.num_prompts=8", "evaluation.data.size=8", "data.size=64"]
# what so little imitation draws earns nothing from the demo's own reward
DRAWN = ["evaluation.num_samples=1", "prompts_per_step=2", 'reward=[{use = "jpeg_size", scale = 0.1}]']
GLIDING = ["policy.height=16", "policy.width=16", "evaluation.num_samples=1", "prompts_per_step=2"]
SHORT = {"grounding": FEW, "video": FEW, "t2i": DRAWN, "t2i-text": DRAWN, "t2v": GLIDING}


def main(name: str, folder: Path) -> RunDir:
    model = TAUGHT[name](folder.with_name(f"{folder.name}-model"))
    words = ["steps=3", "evaluate_every=0", "samples_every=1", f"policy.model={str(model)!r}", *SHORT[name]]
    return demo.run(name, folder, overrides=words)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
