"""Published test sets."""

from collections.abc import Iterator

from docs.pages.lines import cell
from mmrl.app.plugins.suites import all_suites

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

A suite is a file of `datasets/suites/` that ends in `SUITE = Suite(...)`, such as
[refcoco+.py](../../datasets/suites/refcoco+.py), a variant of another one. A file of your own is found by its name in
`./datasets/suites/`, or by its path: `--suite ./mine.py`. `mmrl compare` takes the names of figures from suites that have a
name; it runs no file that an evaluation names.

Where a model judges what was drawn, name an OpenAI-compatible server with vision: `reward.0.server.url=http://127.0.0.1:8000/v1`
and `reward.0.server.model=NAME`. Its numbers compare with published ones only if it is the published judge, in the table below.
"""
FEW_FILES = 4
"""Of more files of one suite, the first is named."""


def suites_page() -> Iterator[str]:
    yield SUITES_WORDS
    suites = all_suites()
    yield "| suite | measures | headline | prompts | paper | scorer |\n|---|---|---|--:|---|---|"
    for one in suites:
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
    judges = ((one.name, one.judge) for one in suites if one.judge is not None)
    yield from (f"| `{name}` | {cell(judge.model)} | <{judge.source}> |" for name, judge in judges)
    yield "\n## Files\n\n| suite | file | from | licence |\n|---|---|---|---|"
    for one in suites:
        data = [file for file in one.files if not file.is_media]
        more = f" and {len(data) - 1} like it" if len(data) > FEW_FILES else ""
        for file in [*(data[:1] if more else data), *(file for file in one.files if file.is_media)]:
            others = "" if file.is_media else more
            yield f"| `{one.name}` | `{file.name}`{others} | <{file.source}> | {cell(file.licence)} |"
