"""Small models that are taught a task on this machine, by kind of policy and name: `tiny:grounding`, `tiny:shapes`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from mmrl.data.drawn import moving, scenes, small_digits
from mmrl.data.drawn import shapes as drawn_shapes
from mmrl.data.drawn import wishes as drawn_wishes
from mmrl.data.drawn.digit_text import Prints
from mmrl.data.drawn.gliding import Glides
from mmrl.data.drawn.scenes import question
from mmrl.data.drawn.shapes import Sketches
from mmrl.data.drawn.sounds import beeps as drawn_beeps
from mmrl.data.files import mp4, wav
from mmrl.data.tools import pictures
from mmrl.lab.tiny import tokenizer
from mmrl.lab.tiny.flow import clip_generator, editor, generator, sound_generator
from mmrl.lab.tiny.teaching import GeneratorStart, PipelineKind
from mmrl.lab.tiny.text import beeps, ears, student
from mmrl.lab.tiny.text.student import Student
from mmrl.runtime.cache import Progress

SERIES = 1_000_003
"""Scenes and clips that are imitated come from series of their own, so that no later stage trains on them again."""
FEW: Mapping[str, Any] = {"pool": 128, "batch_size": 16, "vae_steps": 20, "steps": 20, "layers": 2, "heads": 2}
SMALL: Mapping[str, Any] = {"halvings": 2, "latents": 8, "layers": 1, "feed_forward": 64, "text_width": 32}
FEW_CLIPS: Mapping[str, Any] = {**FEW, **SMALL, "vae_pool": 64, "data": Glides(side=16)}


@dataclass(frozen=True)
class Pupil:
    """A model that the stages of a config teach."""

    config: str
    build: Callable[[Path, int], Path]
    """Saves the untaught model of a seed to a folder."""
    code: tuple[ModuleType, ...]
    """Modules that draw and build."""
    short: tuple[str, ...]
    """Overrides that leave a few steps."""
    data: tuple[str, ...] = ("data",)
    """The tables of the data that it learns from."""

    def words(self, seed: int, short: bool) -> list[str]:
        """Overrides of the config; two prompts score, and those behind them say when a stage ends that has a goal."""
        series = [f"{table}.seed={seed + SERIES}" for table in self.data]
        return [f"seed={seed}", *series, "evaluation.num_prompts=2", *(self.short if short else ())]


BOXES = Pupil(
    "tiny/hurried_boxes",
    Student((*map(question, range(10)), "user\nassistant\n", '[{"bbox_2d": [125, 125, 625, 625]}]'), 64, (0.16, 0.25)),
    (student, tokenizer, scenes),
    ("stage.0.steps=30", "prompts_per_step=8", "data.size=240"),
)
"""A Qwen3-VL that draws boxes round digits as hurried annotators do: too large, half of them round the wrong digit. It sees 64
patches of 8 x 8 pixels, merged 2 by 2, and answers as Qwen3-VL does, in thousandths of width and height."""
FPS = 2.2
"""Frames asked for per second: of the demo's clips 12, from the first to the last, half a second apart."""
STYLE = moving.ClipStyle(
    side=32,
    glyph=(20, 24),
    seconds=5.6,
    time_grid=1.0,
    stay=(1.2, 4.0),
    speed=10.0,
    digits=(0, 3, 4, 7),
    asked=(7,),
    shown=(1, 2),
    num_discs=0,
)
"""The look of the demo's clips; no span begins or ends near a multiple of the second that a pair of frames is."""
MOMENTS = [f"<{second + tenth / 10:.1f} seconds>" for second in range(10) for tenth in (2, 5, 8)]
SPANS = Pupil(
    "tiny/hurried_spans",
    Student(
        (
            *("When is the 7 visible?", "Which digits appear? A: 0 B: 3 C: 4 D: 7", "user\nassistant\n"),
            *("3.2 to 4.5", "A,B,C,D", *MOMENTS),
        ),
        side=STYLE.side,
        pixels=(0.13, 0.18),
        frames=64,
    ),
    (student, tokenizer, moving, scenes, mp4),
    ("stage.0.steps=20", "data.size=40"),
)
"""A Qwen3-VL that tells when a digit is to be seen in mp4 files, and which digits are, as hurried annotators do: spans are too
long, half of them of the wrong digit where there are two, and of two digits mostly one is named."""
LESSONS = ("data.0", "data.1", "stage.1.data.0", "stage.1.data.1", "stage.1.data.2")
LOOKS = Pupil(
    "tiny/hurried_looks",
    Student(
        (
            *(small_digits.QUESTION, "Which digit is this?", "Zoom in on the digit.", "\nYour answer?", "user\nassistant\n"),
            ",".join(map(str, small_digits.box_of((1, 2)))),
        ),
        side=64,
        pixels=(0.11, 0.13),
        tags=("<tool_call>", "</tool_call>"),
    ),
    (student, tokenizer, small_digits, scenes, pictures),
    (
        *("stage.0.until.most=15", "stage.0.until.num_prompts=4", "stage.0.prompts_per_step=4", "stage.1.steps=4"),
        *(f"{table}.size=64" for table in LESSONS),
    ),
    LESSONS,
)
"""A Qwen3-VL that can read the digit in a part that is cut from the file, and point at the digit in the overview, where it is too
small to be read; then it imitates people in a hurry: most answer at once, mostly "1", and of those who look many look at the
wrong place. A call is written as the environment `zoom` takes it: `<tool_call>[312,62,437,187]</tool_call>`."""
TONES = Pupil(
    "tiny/hurried_beeps",
    beeps.build,
    (beeps, ears, tokenizer, drawn_beeps, scenes, wav),
    ("stage.0.steps=20", "prompts_per_step=8", "data.size=80"),
)
"""A Qwen2.5-Omni thinker that tells when a tone is heard, as hurried annotators do."""
WISHED = {f" {word}" for known, others in drawn_wishes.OTHER.items() for word in (known, *others)} | {" on", " the"}
WORDS = Pupil(
    "tiny/hurried_words",
    Student(("user\nassistant\n", *drawn_wishes.OPENINGS), 32, (0.85, 0.2), tags=tuple(sorted(WISHED))),
    (student, tokenizer, drawn_wishes, drawn_shapes),
    ("stage.0.steps=20", "data.size=320"),
)
"""A Qwen3-VL that says a wish in other words, any that people use: which of them the painter understands, whose pictures it sees,
is left to reinforcement learning."""


@dataclass(frozen=True)
class Artist:
    """A generator that draws well enough to be improved, taught once and then kept."""

    kind: PipelineKind[Any]
    start: GeneratorStart
    few: Mapping[str, Any]
    """Settings of a training of a few steps."""

    def __call__(self, seed: int, progress: Progress | None, short: bool) -> Path:
        """The folder of the model of a seed; short: a few steps long."""
        return self.kind.warm_start(replace(self.start, seed=seed, **(self.few if short else {})), progress=progress)


SHAPES = Artist(generator.KIND, generator.WarmStart(Sketches(), steps=900, max_tokens=8), FEW)
"""A Stable Diffusion 3 that draws coloured shapes, from pictures of which half are stained and half have a wrong caption."""
CLEAN = replace(SHAPES, start=replace(SHAPES.start, data=Sketches(confused=0.0, stained=0.0), name="clean-shapes"))
"""The same, taught well by clean pictures with right captions: who draws for a writer."""
NUMBERS = Artist(generator.KIND, generator.WarmStart(Prints(), name="numbers", patch=2, max_tokens=6), FEW)
"""A Stable Diffusion 3 that prints numbers, from pictures of which half are smeared and half have a wrong caption."""
EDITS = Artist(editor.KIND, editor.EditorStart(), FEW)
"""A FLUX.1-Kontext that edits coloured shapes, from targets of which half are stained and half follow another instruction."""
GLIDES = Artist(clip_generator.KIND, clip_generator.ClipStart(Glides()), FEW_CLIPS)
"""A Wan that draws clips of moving shapes, from clips of which half flicker and half have a wrong caption."""
SOUNDS = Artist(sound_generator.KIND, sound_generator.SoundStart(), {**FEW, "width": 32})
"""A Stable Audio 3 that draws tones, from sounds of which half ring on and 1 in 5 have a wrong caption."""
TAUGHT: Mapping[str, Mapping[str, Artist | Pupil]] = {
    "text": {"grounding": BOXES, "clips": SPANS, "beeps": TONES, "look_twice": LOOKS, "wishes": WORDS},
    "flow": {"shapes": SHAPES, "clean_shapes": CLEAN, "numbers": NUMBERS, "edits": EDITS, "glides": GLIDES, "tones": SOUNDS},
}
"""Kind of policy -> name -> how it is taught."""
UNTAUGHT = {f"untaught_{name}": how.build for name, how in TAUGHT["text"].items() if isinstance(how, Pupil)}
"""`tiny:untaught_grounding`: what the config begins with that teaches it."""
