"""`--help` in the order in which one uses the commands, with examples, and names for shell completion; loads no torch."""

from collections.abc import Callable, Sequence
from typing import Any

from mmrl.app.errors import Commands
from mmrl.app.plugins.catalog import KINDS, catalog

PANELS = {
    "Look around": ("demo", "doctor", "ls", "show", "cp"),
    "Prepare": ("data", "reward", "environment", "engine", "plan", "check"),
    "Train": ("train", "launch", "alternate", "eval", "recipe"),
    "Look at a run": ("watch", "report", "draw", "ask", "compare", "arena", "sample", "export"),
    "Clean up": ("cache",),
}
"""Heading -> its commands, in the order in which one usually needs them."""
EXAMPLES: dict[str, Sequence[str]] = {
    "demo": ("mmrl demo grounding",),
    "demo grounding": ("mmrl demo grounding --seed 1", "mmrl demo grounding steps=50 --output runs/short"),
    "demo look-twice": ("mmrl demo look-twice", "mmrl demo look-twice --short"),
    "demo video": ("mmrl demo video --output runs/clips",),
    "demo beeps": ("mmrl demo beeps", "mmrl demo beeps --seed 1 --output runs/beeps"),
    "demo writer": ("mmrl demo writer", "mmrl demo writer --seed 1 --output runs/writer"),
    "demo t2i": ("mmrl demo t2i", "mmrl demo t2i algorithm.preset=cps"),
    "demo t2i-text": ("mmrl demo t2i-text --seed 2",),
    "demo tones": ("mmrl demo tones", "mmrl demo tones --short"),
    "demo t2v": ("mmrl demo t2v", "mmrl demo t2v --seed 1 --output runs/clips"),
    "demo edit": ("mmrl demo edit", "mmrl demo edit --seed 1 --output runs/edits"),
    "doctor": ("mmrl doctor",),
    "ls": ("mmrl ls", "mmrl ls rewards", "mmrl ls parts"),
    "show": (
        "mmrl show dapo",
        "mmrl show iou",
        "mmrl show GroupNorm",
        "mmrl show datasets/shapes",
        "mmrl show tiny/image --all",
        "mmrl show flow_grpo algorithm.schedule.kind=Window",
    ),
    "cp": ("mmrl cp rewards/iou mine.py", "mmrl cp tiny/image my_run.toml"),
    "data": ("mmrl data check boxes.jsonl",),
    "data check": (
        "mmrl data check boxes.jsonl box_format=xywh",
        "mmrl data check boxes.jsonl --boxes xywh --fix right.jsonl",
        "mmrl data check tiny/image",
    ),
    "data convert": (
        "mmrl data convert instances_val2017.json boxes.jsonl",
        "mmrl data convert llava.json rows.jsonl --turns each",
    ),
    "data split": (
        "mmrl data split boxes.jsonl parts train=0.9 test=0.1",
        "mmrl data split llava.json parts train=0.9 test=0.1 --as llava",
    ),
    "data filter": ("mmrl data filter tiny/image kept.jsonl --samples 16 --low 0.2",),
    "reward": ("mmrl reward test iou --data boxes.jsonl",),
    "environment": ("mmrl environment test zoom",),
    "environment test": ("mmrl environment test ./mine.py --say 'top left' --say 7", "mmrl environment test zoom --play shown"),
    "reward test": (
        "mmrl reward test iou --data boxes.jsonl",
        "mmrl reward test iou --data instances_val2017.json",
        "mmrl reward test ./mine.py:short --data boxes.jsonl",
    ),
    "reward score": ("mmrl reward score jpeg_size pictures --html page.html",),
    "reward train": (
        "mmrl reward train --model Qwen/Qwen2.5-VL-3B-Instruct --data pairs.jsonl --held-out other.jsonl --output runs/rm",
        "mmrl reward train --task picture_scores --model M --data pictures.jsonl --card 24GB",
    ),
    "reward serve": ("mmrl reward serve spec.toml --port 8501",),
    "engine": ("mmrl engine install",),
    "engine install": ("mmrl engine install", "mmrl engine install --accelerator cpu --folder engines/vllm --yes"),
    "engine status": ("mmrl engine status",),
    "engine remove": ("mmrl engine remove",),
    "plan": (
        "mmrl plan tiny/image --card 24GB",
        "mmrl plan --task grounding --model Qwen/Qwen2.5-VL-3B-Instruct --data boxes.jsonl --reward iou --card 24GB",
        "mmrl plan tiny/flow --calibrate 3 --price 2.5",
    ),
    "check": ("mmrl check tiny/image",),
    "train": (
        "mmrl train tiny/image",
        "mmrl train tiny/image optimizer.lr=1e-5 --output runs/first",
        "mmrl train --task grounding --model Qwen/Qwen2.5-VL-3B-Instruct --data boxes.jsonl --reward iou",
        "mmrl train --resume runs/first",
        "mmrl train tiny/image steps=6 --profile 3-5",
    ),
    "launch": ("mmrl launch tiny/image --dry-run", "mmrl launch tiny/image cluster.trainers=2"),
    "alternate": ("mmrl alternate duet.toml",),
    "eval": (
        "mmrl eval runs/first",
        "mmrl eval tiny/image evaluation.num_prompts=4",
        "mmrl eval --task grounding --model Qwen/Qwen2.5-VL-3B-Instruct --data boxes.jsonl --output evals/base",
    ),
    "recipe": ("mmrl recipe ls",),
    "recipe ls": ("mmrl recipe ls",),
    "recipe show": ("mmrl recipe show flow_grpo_geneval",),
    "recipe run": (
        "mmrl recipe run vlm_r1_refcoco --scale tiny",
        "mmrl recipe run flow_grpo_geneval --run runs/flow_grpo_geneval",
    ),
    "recipe prompts": ("mmrl recipe prompts geneval-like prompts_made_up.jsonl --size 50000",),
    "watch": ("mmrl watch runs/first", "mmrl watch runs/first --port 0"),
    "draw": (
        'mmrl draw runs/first "a lighthouse at dusk" --seed 3',
        'mmrl draw runs/first "a lighthouse at dusk" --seed 3 --step 0 --out before.png',
        'mmrl draw runs/edits "remove the chair" --image room.jpg',
    ),
    "ask": ('mmrl ask runs/first photo.png "Where is the dog?"', 'mmrl ask runs/clips clip.mp4 "What happens?" --step 0'),
    "report": ("mmrl report runs/first",),
    "compare": ("mmrl compare runs/first runs/second --html both.html", "mmrl compare evals/base evals/tuned"),
    "arena": (
        "mmrl arena --task grounding --methods grpo,dr_grpo,rloo --budget-seconds 60",
        "mmrl arena --task t2i --methods flow_grpo,./mine.toml --budget-seconds 120 --seeds 0,1,2,3",
    ),
    "sample": ("mmrl sample runs/first --step 3 --prompt 7", "mmrl sample runs/first --step 3 --prompt 7 --out seen"),
    "export": ("mmrl export runs/first exported --merge", "mmrl export runs/first exported --push me/my-model --private"),
    "cache": ("mmrl cache ls",),
    "cache ls": ("mmrl cache ls",),
    "cache clear": ("mmrl cache clear",),
}
"""Command -> complete command lines, with placeholders for one's own files and folders."""


class InOrder(Commands):
    """A group that lists its commands in the order of PANELS, with panels and examples."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of PANELS; others come last."""
        order = [name for names in PANELS.values() for name in names]
        known = super().list_commands(ctx)
        return sorted(known, key=lambda name: order.index(name) if name in order else len(order))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        if command is None:
            return None
        above = "" if ctx.parent is None else f"{self.name} "
        examples = EXAMPLES.get(f"{above}{cmd_name}", ())
        if examples:
            word = "Example" if len(examples) == 1 else "Examples"
            command.epilog = "\n\n".join([f"{word}:", *(f"  {line}".replace("[", "\\[") for line in examples)])
        if ctx.parent is None:
            command.rich_help_panel = next((panel for panel, names in PANELS.items() if cmd_name in names), None)
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command and what follows it; ValueError for an option of one value, or a key, given twice: the last would count."""
        _, command, rest = found = super().resolve_command(ctx, args)
        if command is None or ctx.resilient_parsing:
            return found
        own = command.context_class(command, parent=ctx, resilient_parsing=True)
        values, _, given = command.make_parser(own).parse_args([*rest])
        once = [one.opts[0] for one in given if not (one.multiple or getattr(one, "is_flag", False))]
        several = [one.name for one in given if one.nargs == -1 and "=" in (one.metavar or "")]
        once += [word.partition("=")[0].strip() for name in several for word in values[name] or () if "=" in word]
        if twice := [one for one in once if once.count(one) > 1]:
            raise ValueError(f"{twice[0]} is given twice, and takes one value: leave one of them out")
        return found


def completing(*kinds: str) -> Callable[[str], list[str]]:
    """A completion of words by names of these kinds; the shell itself completes files."""

    def complete(incomplete: str) -> list[str]:
        return [listed.name for kind in kinds for listed in catalog(kind) if listed.name.startswith(incomplete)]

    return complete


complete_config, complete_reward, complete_name = completing("configs"), completing("rewards"), completing(*KINDS)
