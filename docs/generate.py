"""Write the reference pages from the code: `python docs/generate.py` writes, `--check` says which pages are stale."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import transformers
import typer

from mmrl.algorithms.miners import BestAndWorst, Difficulty
from mmrl.app.cli import app
from mmrl.app.config.algorithm import Assembly
from mmrl.app.config.cluster import ClusterConfig
from mmrl.app.config.data import SourceConfig
from mmrl.app.config.method_facts import changes, costs, needs
from mmrl.app.config.reward_needs import needs_table
from mmrl.app.config.run import (
    CheckpointConfig,
    DataConfig,
    EnvironmentConfig,
    EvaluationConfig,
    RewardConfig,
    RunConfig,
    SamplerConfig,
    TrackerConfig,
    VariantConfig,
)
from mmrl.app.config.slots import SLOTS, kinds
from mmrl.app.config.slots import place as place_of
from mmrl.app.inspect.families import public_weights
from mmrl.app.inspect.settings import Setting, facts_of, settings_of
from mmrl.app.inspect.show import part_lines
from mmrl.app.inspect.things import Thing, classes, inner_parts, keys_inside, plug_in, things_called
from mmrl.app.lab.recipes.facts import recipes
from mmrl.app.lab.recipes.pages import card, figures_of, number, small_tasks
from mmrl.app.plugins.cards import Card, PartCard, cards, evidence, not_now, part_cards
from mmrl.app.plugins.catalog import catalog, details, preset_documents
from mmrl.core.episodes import Limits
from mmrl.data.convert import convert
from mmrl.data.suites.table import SUITES
from mmrl.data.video_rows import ANSWER, CHOOSE, WHEN
from mmrl.policies.codes.settings import CodePolicyConfig
from mmrl.policies.flow.families.base import FlowFamily
from mmrl.policies.flow.settings import FlowPolicyConfig, FlowQuantizedSettings
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.engine_settings import EngineConfig
from mmrl.policies.text.families import FAMILIES, Family
from mmrl.policies.text.families.qwen_vl import BOX_SPACES
from mmrl.policies.text.families.types import all_types
from mmrl.policies.text.prompt.templates import ANSWER_FORMATS, BOX_WORDS
from mmrl.policies.text.settings import QuantizedSettings, Sampling, TextPolicyConfig
from mmrl.policies.video.settings import VideoSettings
from mmrl.serving.judges.judge import Endpoint
from mmrl.tiny.text.vlms import FAMILIES as TINY
from mmrl.training.metric_names import METRICS
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.calls import Calling, Transform
from mmrl.training.settings import AlarmSettings, StageSettings, Until
from mmrl.training.watch.health import HealthSettings
from mmrl.training.worlds.runner import WorldCalling

FOLDER = Path(__file__).parent / "reference"
IN_A_CONFIG = 'In a config `[[reward]] use = "NAME"`; other keys are below. What prompts need is looked at before a model loads:'

NOTE = "<!-- Written by docs/generate.py: change the code's own words, then run it. -->"
TABLES: dict[str, tuple[str, type]] = {
    "": ("Length of the run, evaluations, checkpoints and checks.", RunConfig),
    "[optimizer]": ("", OptimizerSettings),
    "[policy], kind = text": ("A vision-language model or video LLM.", TextPolicyConfig),
    "[policy.sampling]": ("How completions are sampled; `[evaluation.sampling]` has the same keys.", Sampling),
    "[policy.video]": ("How much of a clip the model sees.", VideoSettings),
    "[policy], kind = flow": ("A generator.", FlowPolicyConfig),
    "[policy], kind = token_image": ("A model that draws by tokens.", CodePolicyConfig),
    "[policy.engine]": ("Without it the policy samples with its own network ([vLLM](../how_to/engine.md)).", EngineConfig),
    "[policy.quantized]": ("Acts with `policy.weights = \"nf4\"`.", QuantizedSettings),
    "[policy.quantized], kind = flow": ("The same for a generator.", FlowQuantizedSettings),
    "[policy.lora]": ("Without it all weights that are not frozen train.", LoraSettings),
    "[[stage]]": ("A stage of a chain, one table each ([how](../how_to/stages.md)).", StageSettings),
    "[stage.until]": ("Ends a stage that trains before its last step.", Until),
    "[[stage]], kind = filter": ("Keys beside those of a stage.", Difficulty),
    "[[stage]], kind = pairs": ("Keys beside those of a stage.", BestAndWorst),
    "[data]": ("Other keys belong to the data set: see [Data sets](datasets.md).", DataConfig),
    "[[data]]": ("Several data sets, one table each ([how](../how_to/mixtures.md)).", SourceConfig),
    "[[reward]]": ("One table per reward. Other keys belong to the reward: see [Rewards](rewards.md).", RewardConfig),
    "[reward.call]": ("How a reward is called.", Calling),
    "[reward.transform]": ("Without it the reward is not changed.", Transform),
    "[reward.server]": ("The model that judges ask, behind an OpenAI-compatible server.", Endpoint),
    "[sampler]": ("Which prompts come next. Other keys belong to the sampler.", SamplerConfig),
    "[evaluation]": ("`[evaluation.data]` is like `[data]`, `[[evaluation.reward]]` like `[[reward]]`.", EvaluationConfig),
    "[[evaluation.also]]": ("Other ways to answer the same prompts.", VariantConfig),
    "[environment]": ("An environment that answers the policy's turns, and how its worlds are called.", EnvironmentConfig),
    "[environment.limits]": ("How far an episode may go.", Limits),
    "[environment.call]": ("How worlds are called.", WorldCalling),
    "[checkpoint]": ("Which checkpoints are kept.", CheckpointConfig),
    "[trackers]": ("Where metrics go in addition to the run's own files.", TrackerConfig),
    "[cluster]": ("What runs where with `mmrl launch` ([many GPUs and machines](../how_to/scale_out.md)).", ClusterConfig),
    "[health]": ("Bounds beyond which a run gets a warning.", HealthSettings),
    "[health.alarm]": ("When a run is suspected of reward hacking.", AlarmSettings),
}  # fmt: skip
ALGORITHM_KEYS = ("group_size", "epochs", "minibatches", "old", "needs_rewards", "needs_turns")
INNER = (
    *("optimizer", "health", "args", "sampling", "lora", "video", "data", "reward", "also", "call", "alarm", "config"),
    *("algorithm", "policy", "sampler", "evaluation", "checkpoint", "trackers", "transform"),
)
"""Keys that are tables of their own."""
PUBLISHED = ("tasks", "licence", "licence_read", "tested")
"""Facts of a family that the table of all families shows."""


def cell(text: str) -> str:
    """Text that fits a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def table_of(settings: Sequence[Setting], skip: Sequence[str] = ()) -> Iterator[str]:
    """A row per setting: key, type, range, default and meaning."""
    shown = [one for one in settings if one.name not in skip]
    if not shown:
        yield "No settings."
        return
    yield "| key | type | range | default | meaning |"
    yield "|---|---|---|---|---|"
    for one in shown:
        default = "required" if one.default == "required" else f"`{cell(one.default)}`"
        yield f"| `{one.name}` | {cell(one.type)} | {cell(one.range)} | {default} | {cell(one.meaning)} |"


def config_page() -> Iterator[str]:
    yield "# Config"
    yield "\nEvery key of a TOML file or a command line. `mmrl show CONFIG` prints all values of a config and their origin.\n"
    for name, (words, cls) in TABLES.items():
        yield f"\n## {name or 'Top of the file'}\n"
        yield f"{words}\n" if words else ""
        yield from table_of(keys_inside(cls), INNER)
        if name == "[optimizer]":
            yield from algorithm_keys()


def algorithm_keys() -> Iterator[str]:
    from mmrl.algorithms.algorithm import Algorithm

    yield "\n## [algorithm]\n"
    yield "`preset` is where to start; `[algorithm.SLOT]` with `kind` replaces one part: see [Algorithms](algorithms.md).\n"
    yield from table_of([one for one in settings_of(Algorithm) if one.name in ALGORITHM_KEYS])


def plug_ins_page(kind: str, title: str, words: str) -> Iterator[str]:
    yield f"# {title}\n\n{words}\n"
    for listed in catalog(kind):
        yield from thing_lines(plug_in(listed.name, kind), details(listed.file))
    yield from inner_lines("a table inside a data set" if kind == "datasets" else "")


def inner_lines(*words: str) -> Iterator[str]:
    """A chapter per class of these kinds, which stand inside other settings."""
    for cls, word in inner_parts().items():
        if word in words:
            yield f"\n## {cls.__name__}\n\n{prose(inspect.getdoc(cls) or '')}\n"
            yield from table_of(keys_inside(cls))


def thing_lines(thing: Thing, facts: dict[str, str]) -> Iterator[str]:
    """A chapter: what it is, facts in lines of their own, settings."""
    yield f"\n## {thing.name}\n"
    document = thing.document.strip()
    for name in facts:
        document = re.sub(rf"^{name}:.*?(?=^\S+:|\n\n|\Z)", "", document, flags=re.MULTILINE | re.DOTALL)
    yield prose(document)
    if facts:
        yield ""
        yield from (f"- {name}: {cell(text)}" for name, text in facts.items())
    yield ""
    yield from table_of(thing.settings)


def prose(document: str) -> str:
    """A docstring as paragraphs; what is indented stays as it is, without a language."""
    parts = re.split(r"\n\s*\n", document)
    return "\n\n".join(f"```text\n{part}\n```" if part.startswith("    ") else cell(part) for part in parts)


def algorithms_page() -> Iterator[str]:
    """One line per method to choose from, methods that are one part of a run, and methods that are missing."""
    from mmrl.algorithms.presets import PRESETS

    yield "# Algorithms\n"
    yield (
        'Choose one with `[algorithm] preset = "NAME"` in a config or `algorithm.preset=NAME` on the command line. Each method '
        "has a page with its paper, when to use it, what is missing, and its parts. [Methods compared](methods_compared.md) "
        "lists what each one changes, costs and needs; `mmrl show NAME` prints one with every value.\n"
    )
    slots = ", ".join(f"[{slot}](parts/{slot}.md)" for slot in SLOTS)
    yield f"\nParts that a config can replace, by slot: {slots}, and [parts inside parts](parts/inside_parts.md)."
    for title, generates in (("Models that write", False), ("Generators of images and videos", True)):
        yield f"\n## {title}\n\n| method | idea |\n|---|---|"
        named = (name for name in cards() if (PRESETS[name].schedule is not None) == generates)
        yield from (f"| [{name}](methods/{name}.md) | {cell(cards()[name].sentence)} |" for name in named)
    yield "\n## With any preset\n\nMethods that are one part of a run.\n"
    yield "| method | in a config | status | its claim |\n|---|---|---|---|"
    for part in part_cards():
        yield f"| {cell(part.method)} | `{part.take}` | {cell(part.status)} | {verdicts(part)} |"
    yield "\nMethods that are chains of stages, such as TON and VerIPO, are [recipes](recipes.md)."
    yield "\n## Not implemented\n\n| methods | why |\n|---|---|"
    yield from (f"| {', '.join(methods)} | {cell(why)} |" for why, methods in not_now())


OTHER_WAYS = ("dpo_once", "dpo_in_rounds", "best_of_n")
"""Rows of evidence that are no presets: stages in place of one run."""


def verdicts(one: Card | PartCard) -> str:
    """Ahead, level or behind its twin, for each task made for the method's claim."""
    return ", ".join(f"{found.verdict} ({found.task})" for found in one.evidence) or "not measured"


def comparison_page() -> Iterator[str]:
    """All presets in one table: changes, costs, needs, status and evidence."""
    from mmrl.algorithms.presets import PRESETS

    yield "# Methods compared\n"
    yield (
        "Each method compared with grpo or, for generators, with flow_grpo. The last column compares it with its plain twin on a "
        "small task made for its claim, over three seeds (`python -m tests.evidence`): ahead where all seeds agree that it is "
        "better, behind where all agree that it is worse, level otherwise. Such tasks show that a method has an effect, not that "
        "it helps on your data.\n"
    )
    yield "| method | changes | costs | needs | status | its claim |\n|---|---|---|---|---|---|"
    for name, one in cards().items():
        made = PRESETS[name]
        cells = (changes(made), costs(made), needs(made), one.status, verdicts(one))
        yield f"| [{name}](methods/{name}.md) | {' | '.join(map(cell, cells))} |"
    yield from grpo_or_dpo()


def grpo_or_dpo() -> Iterator[str]:
    """The other ways to learn from a group's scores, at the cost of GRPO."""
    yield (
        "\n## GRPO or DPO\n\nAt equal cost, counted in passes of the network (a row that trains counts three times), each run at "
        "the best of two or three learning rates. Three seeds, in brackets. `dpo_once` trains on pairs of the model as it began, "
        "`dpo_in_rounds` and `best_of_n` (supervised) mine eight times, by [stages](../how_to/stages.md) of the kinds `pairs` "
        "and `filter`.\n"
    )
    yield "| way | task | measured | this way | GRPO |\n|---|---|---|---|---|"
    for name, task in (*((name, "grpo_or_dpo") for name in OTHER_WAYS), ("flow_dpo", "points"), ("flow_sft", "points")):
        for one in evidence().get(name, ()):
            if one.task == task:
                ways = (
                    f"{sum(values) / len(values):.2f} ({', '.join(f'{x:.2f}' for x in values)})"
                    for values in (one.with_it, one.twin)
                )
                yield f"| {name} | {cell(one.claim)} | {cell(one.measured)} | {' | '.join(ways)} |"


def method_page(name: str) -> Iterator[str]:
    """A preset's own words, its card, its costs and needs, and its parts with their formulas."""
    from mmrl.algorithms.presets import PRESETS

    made = PRESETS[name]
    yield f"# {name}\n"
    yield prose(preset_documents()[name])
    yield ""
    yield from (f"- **{word}**: {cell(text)}" for word, text in cards()[name].lines())
    yield from (f"- **{word}**: {cell(facts(made))}" for word, facts in (("costs", costs), ("needs", needs)))
    yield "\n```text"
    yield from (re.sub(r":\d+$", "", line) for line in part_lines(Assembly(name, made, name)))
    yield "```\n\nAll methods: [Algorithms](../algorithms.md)."


def parts_page(slot: str) -> Iterator[str]:
    """Every part that fits a slot, with its settings."""
    yield f"# Parts: {slot}\n\nIn a config: `{place_of(slot)}`.\n"
    for name in sorted(kinds(slot)):
        for thing in things_called(name):
            if thing.kind in (f"a part of {slot}", "a sampler"):
                yield f"\n## {name}\n"
                yield prose(thing.document)
                yield ""
                yield from table_of(thing.settings)


def inner_page() -> Iterator[str]:
    yield "# Parts inside parts\n\nIn a config, dynamics are given as a name and a level, the others as tables."
    yield from inner_lines("a part inside a schedule", "a way to show prompts, inside a part")


def metrics_page() -> Iterator[str]:
    yield "# Metrics\n\nNames in `metrics.jsonl`, trackers and reports. `{name}` is a reward, a part of one, or a variant.\n"
    yield "| metric | unit | meaning |\n|---|---|---|"
    for one in METRICS:
        yield f"| `{one.name}` | {one.unit} | {cell(one.meaning)} |"


def commands_page() -> Iterator[str]:
    yield "# Commands\n\nEvery command with its options, as in its `--help`.\n"
    command: Any = typer.main.get_command(app)
    yield from command_lines(command, command.context_class(command, info_name="mmrl"))


def command_lines(command: Any, context: Any) -> Iterator[str]:
    """A chapter per command, groups opened."""
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            yield from command_lines(below, below.context_class(below, info_name=name, parent=context))
        return
    yield f"\n## {context.command_path}\n"
    yield cell(command.help or "")
    yield "\n| | default | meaning |\n|---|---|---|"
    for parameter in command.get_params(context):
        is_option = parameter.param_type_name == "option"
        label = (
            "/".join([*parameter.opts, *parameter.secondary_opts]) if is_option else (parameter.metavar or parameter.name).upper()
        )
        default = parameter.default if is_option and isinstance(parameter.default, str | int | float) else ""
        yield f"| `{label}` | {'required' if parameter.required else cell(str(default))} | {cell(parameter.help or '')} |"
    if command.epilog:
        lines = [line.strip() for line in command.epilog.splitlines() if line.startswith("  ")]
        yield "\n```text\n" + "\n".join(lines) + "\n```"


def families_page() -> Iterator[str]:
    """A table to choose from, the facts that all families have, then what is each one's own."""
    yield "# Families\n\nModels that mmrl can train, by the name in their own files.\n"
    yield "| family | tasks | licence of public weights | tested |\n|---|---|---|---|"
    for name, one in public_weights().items():
        yield f"| `{name}` | {', '.join(one.tasks)} | {cell(one.licence_and_note)} | {cell(one.tested)} |"
    for base, words in ((FlowFamily, "draw"), (Family, "write")):
        yield from facts_of_families(base, words)
    yield f"\n## Image-text types of transformers {transformers.__version__}\n"
    yield "Read from classes and default configs, as `mmrl ls families --all` does; tests try those in bold on a tiny model.\n"
    yield "| type | |\n|---|---|"
    for one in all_types():
        name = f"**{one.name}**" if one.name in TINY else one.name
        yield f"| {name} | {cell(one.summary)} |"


def facts_of_families(base: type, words: str) -> Iterator[str]:
    """The facts of families of this base, then a table per family of those that differ from the base's or are its own."""
    common = {one.name: one for one in facts_of(base) if one.name not in PUBLISHED}
    yield f"\n## Models that {words}: facts of a family\n\nNo config sets them. Below are those in which a family differs.\n"
    yield from table_of(list(common.values()))
    for listed in classes("families"):
        for thing in things_called(listed.name):
            if not (inspect.isclass(thing.found) and issubclass(thing.found, base)):
                continue
            different = [one for one in thing.settings if one.name not in PUBLISHED and one != common.get(one.name)]
            yield f"\n### {listed.name}\n"
            yield "| fact | here |\n|---|---|" if different else "As above."
            for one in different:
                yield f"| `{one.name}` | `{cell(one.default)}`{'' if one.name in common else ': ' + cell(one.meaning)} |"


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
    "`mmrl data convert` from COCO": inspect.signature(convert).parameters["question"].default,
}


def part_texts() -> Iterator[str]:
    """The settings of parts that are texts with something to fill in."""
    for slot in SLOTS:
        for name, part in sorted(kinds(slot).items()):
            for one in settings_of(part):
                text = one.default.strip("\"'")
                if re.search(r"\{[a-z]+\}", text):
                    yield f"| {name} | `{one.name}` | {shown(text)} |"


def recipes_page() -> Iterator[str]:
    yield "# Recipes\n\nPublished results to reproduce ([how](../how_to/recipes.md)). `?`: no public source gives the value.\n"
    for one in recipes():
        yield f"\n## {one.name}\n\n{cell(one.recipe.title)}. arXiv:{one.recipe.arxiv}; fits {card(one)}.\n"
        yield f"{cell(one.recipe.note)}\n" if one.recipe.note else ""
        yield "| measure | before | paper |\n|---|--:|--:|"
        yield from (f"| {cell(name)} | {number(base)} | {number(paper)} |" for name, base, paper in figures_of(one))
        yield f"\nNumbers: {cell(one.recipe.table)}.\n"
        yield from (f"On a task of letters: {cell(text)}.\n" for text in small_tasks(one))
        yield "| setting | published | here | why |\n|---|---|---|---|"
        yield from (f"| {cell(d.setting)} | {cell(d.published)} | {cell(d.here)} | {cell(d.why)} |" for d in one.deviation)
        yield "\n| file, below the data folder | what | size | licence | from |\n|---|---|---|---|---|"
        for f in one.file:
            yield f"| `{f.below}` | {cell(f.what)} | {cell(f.size)} | {cell(f.licence)} | {cell(f.source)} |"


SUITES_WORDS = """# Published test sets

`mmrl eval` answers a published test set with its published prompts, and scores the answers as its official code does:

```sh
mmrl eval Qwen/Qwen2.5-VL-3B-Instruct --suite screenspot_v2 --data ScreenSpot-v2 --output evals/base
mmrl eval runs/clicks --suite screenspot_v2 --data ScreenSpot-v2 --output evals/tuned
mmrl compare evals/base evals/tuned
```

`--data` is a folder with the files below, as published; archives are unpacked. Without it the hub's snapshot on this machine
is used, where a suite has one. Nothing is downloaded: what is missing is named with its address. Pictures or clips may lie
elsewhere: `evaluation.data.media=FOLDER`. Files with other columns, or another number of prompts than was published, are
refused; `evaluation.data.any_size=true` takes any number.

The first line of the printed table is the headline with its 95 % interval; then come all figures of every kind of prompt.
Where kinds count equally, the interval draws prompts within their kind. `mmrl compare` shows the suite's score of each
prompt as `Reward`. [Evaluate and compare](evaluate.md) describes the files that are written, and a killed suite goes on with
the same words. `evaluation.num_prompts=100` answers the first 100 prompts. The title says how many of the published prompts
were answered and which settings of the protocol were changed. In a run's config, `use = "suite"` in `[evaluation.data]` and
`[[evaluation.reward]]` evaluates a suite during training.

Texts are sampled greedily, without a system prompt or anything around the published prompt, whatever the run trained with;
such settings may be given all the same, and are then named. Answers inside `<answer>` tags are read there; thoughts and
blanks around an answer are left out. Official code reads the whole text.

Where a model judges what was drawn, name an OpenAI-compatible server with vision: `reward.0.server.url=http://127.0.0.1:8000/v1`
and `reward.0.server.model=NAME`. Its numbers compare with published ones only if it is the published judge, in the table below.
"""


FEW_FILES = 4
"""Of more files of one suite, the first is named."""


def suites_page() -> Iterator[str]:
    yield SUITES_WORDS
    yield "| suite | measures | headline | prompts | paper | scorer |\n|---|---|---|--:|---|---|"
    for one in SUITES.values():
        headline, key = next(iter(one.figures.items()))
        kinds = f", mean over {one.macro[0]}" if one.macro else "" if isinstance(key, str) else f", mean over {len(key)} kinds"
        paper = f"[{one.paper}](https://arxiv.org/abs/{one.paper})"
        facts = [
            f"`{one.name}`",
            cell(one.measures),
            headline + kinds,
            f"{one.num_prompts:,}",
            paper,
            cell(one.exact),
        ]
        yield f"| {' | '.join(facts)} |"
    yield "\n## Judges\n\n| suite | published with | from |\n|---|---|---|"
    judges = ((one.name, one.judge) for one in SUITES.values() if one.judge is not None)
    yield from (f"| `{name}` | {cell(judge.model)} | <{judge.source}> |" for name, judge in judges)
    yield "\n## Files\n\n| suite | file | from | licence |\n|---|---|---|---|"
    for one in SUITES.values():
        data = [file for file in one.files if not file.is_media]
        more = f" and {len(data) - 1} like it" if len(data) > FEW_FILES else ""
        for file in [*(data[:1] if more else data), *(file for file in one.files if file.is_media)]:
            others = "" if file.is_media else more
            yield f"| `{one.name}` | `{file.name}`{others} | <{file.source}> | {cell(file.licence)} |"


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "config.md": config_page,
    "algorithms.md": algorithms_page,
    "methods_compared.md": comparison_page,
    **{f"methods/{name}.md": partial(method_page, name) for name in cards()},
    **{f"parts/{slot}.md": partial(parts_page, slot) for slot in SLOTS},
    "parts/inside_parts.md": inner_page,
    "rewards.md": lambda: plug_ins_page("rewards", "Rewards", "\n".join([IN_A_CONFIG, "", *needs_table()])),
    "datasets.md": lambda: plug_ins_page("datasets", "Data sets", "In a config `[data] use = \"NAME\"`; other keys are below."),
    "families.md": families_page,
    "metrics.md": metrics_page,
    "recipes.md": recipes_page,
    "commands.md": commands_page,
    "templates.md": templates_page,
    "../how_to/suites.md": suites_page,
}  # fmt: skip


def page(name: str) -> str:
    text = "\n".join([NOTE, "", *PAGES[name]()])
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def orphans() -> list[Path]:
    """Files of pages that are no longer written."""
    return [file for file in FOLDER.rglob("*.md") if file.relative_to(FOLDER).as_posix() not in PAGES]


def stale() -> list[str]:
    """Pages whose file differs from the code, is missing or is left over."""
    files = {name: FOLDER / name for name in PAGES}
    found = [name for name, file in files.items() if not file.is_file() or file.read_text(encoding="utf-8") != page(name)]
    return found + [file.relative_to(FOLDER).as_posix() for file in orphans()]


def main() -> None:
    if "--check" in sys.argv:
        sys.exit(f"stale, run python docs/generate.py: {', '.join(found)}" if (found := stale()) else 0)
    for file in orphans():
        file.unlink()
    for name in PAGES:
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main()
