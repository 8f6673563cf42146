"""Arguments that several commands take."""

from typing import Annotated

from typer import Argument, Option

from mmrl.app.commands.help import complete_reward

Overrides = Annotated[
    list[str] | None, Argument(metavar="[KEY=VALUE]...", help="Overrides, for example optimizer.lr=1e-5 reward.0.weight=0.5")
]
TaskName = Annotated[
    str | None,
    Option("--task", help="Without a config: grounding, video (clips), qa, t2i (pictures from texts) or edit (of pictures)."),
]
TaskModel = Annotated[str | None, Option("--model", help="With --task: a folder or hub name.")]
TaskData = Annotated[str | None, Option("--data", help="With --task: a data file, or a name from `mmrl ls datasets`.")]
TaskReward = Annotated[
    list[str] | None,
    Option(
        "--reward",
        metavar="NAME[=WEIGHT]",
        help="With --task: a name from `mmrl ls rewards` or ./file.py[:Callable]; repeat it.",
        autocompletion=complete_reward,
    ),
]
TaskHeldOut = Annotated[
    str | None,
    Option("--held-out", metavar="DATA", help="With --task: prompts to evaluate on (default: test beside train, if it is there)."),
]
