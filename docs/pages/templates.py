"""All text that mmrl puts around prompts."""

import re
from collections.abc import Iterator

from mmrl.app.config.slots import SLOTS, kinds
from mmrl.app.inspect.settings import settings_of
from mmrl.data.layouts.annotations.coco import QUESTION
from mmrl.data.video_rows import ANSWER, CHOOSE, WHEN
from mmrl.policies.text.families import FAMILIES
from mmrl.policies.text.families.qwen_vl import BOX_SPACES
from mmrl.policies.text.prompt.templates import ANSWER_FORMATS, BOX_WORDS


def templates_page() -> Iterator[str]:
    """All text that mmrl puts around prompts."""
    yield "# Prompt templates\n"
    yield (
        "All text that mmrl puts around a prompt. A run's first lines, `prompt.txt`, `prompt_template.json`, the report and the "
        "model card of an export show the template and its text; `prompt.txt` also has what the model's chat template adds.\n"
    )
    yield "## Around every question: `policy.answer_format`\n"
    yield "`none`, the default, adds nothing. Any text with `{question}` in it is your own template. `policy.system_prompt` "
    yield "is the system message; if it is empty, there is none.\n"
    yield "| answer_format | text |\n|---|---|"
    yield from (f"| `{name}` | {shown(text)} |" for name, text in ANSWER_FORMATS.items())
    yield "\n`{where}` says how the model writes boxes (`policy.box_space`; `auto` is how it was trained):\n"
    yield "| box_space | `{where}` | models |\n|---|---|---|"
    for space, words in BOX_WORDS.items():
        named = [name for name in FAMILIES if space == (BOX_SPACES[name] if name in BOX_SPACES else FAMILIES[name].box_space)]
        yield f"| `{space}` | {words} | {', '.join(named) or 'those whose config says so'} |"
    yield "\nIf that is unknown, `box` and `think_box` are refused until `policy.box_space` is set.\n"
    yield "## In the data\n"
    yield "Data sets write these into the prompt's text; their setting `template` replaces them.\n"
    yield "| where | text |\n|---|---|"
    yield from (f"| {where} | {shown(text)} |" for where, text in DATA_TEXTS.items())
    yield "\n## In a method\n"
    yield "Parts that show a prompt again, with help or with the beginning of an answer; each text is a setting of its part.\n"
    yield "| part | setting | text |\n|---|---|---|"
    yield from part_texts()
    yield "\n## Generators\n"
    yield "mmrl adds nothing to a prompt. Their pipelines' own text encoders may add an instruction (Qwen-Image, Sana, FLUX.2), "
    yield 'here as in diffusers. Guidance leads away from the empty prompt, of Qwen-Image from `" "`.'


def shown(text: str) -> str:
    """A template in a cell of a table, with its line ends visible."""
    return "`" + text.replace("\n", "\\n").replace("|", "\\|") + "`"


DATA_TEXTS = {
    "clips: spans of time": WHEN,
    "clips: several right options": CHOOSE,
    "clips: everything else": ANSWER,
    "`mmrl data convert` from COCO": QUESTION,
}


def part_texts() -> Iterator[str]:
    """The settings of parts that are texts with something to fill in."""
    for slot in SLOTS:
        for name, part in sorted(kinds(slot).items()):
            for one in settings_of(part):
                text = one.default.strip("\"'")
                if re.search(r"\{[a-z]+\}", text):
                    yield f"| {name} | `{one.name}` | {shown(text)} |"
