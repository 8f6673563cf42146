"""(x - low) / (high - low), x the number a vision-language model gives to frames of a video, or P(yes) of its first token.

The frames are spread evenly from the first to the last and sent as pictures in order, so any OpenAI-compatible server with vision
will do. An answer that cannot be read, or lies outside low..high, fails and never scores 0.

Modality: video
Range: [0, 1]
Source: frames as pictures as UnifiedReward's servers take them; template in our own words
Licence: own code Apache-2.0; the judge's weights see their card
"""

from dataclasses import dataclass, field
from typing import Literal

from mmrl import Group, Need, Scored
from mmrl.runtime.ranges import Count, Number, check_ranges
from mmrl.serving.judges.judge import Endpoint, Question, Reply, ask_for_scores
from mmrl.serving.judges.verdicts import fill_template, number, template_text, yes_share
from mmrl.serving.media import frames_of

NUMBER = """These {frames} pictures are frames of one video, in order. It was made for this description: {prompt}
Does it show what is described, does it move as things move, and do the frames fit each other?
Reply with one number from {low} (not at all) to {high} (entirely) and nothing else."""
YES = """These {frames} pictures are frames of one video, in order. Does the video show this: {prompt}
Reply with yes or no."""


@dataclass(frozen=True)
class VideoJudge:
    """A judge's opinion of the videos that a policy made."""

    server: Endpoint = field(default_factory=Endpoint)
    """The server that is asked: see `[reward.server]`."""
    frames: Count = 8
    """At most this many frames of each video."""
    scoring: Literal["number", "yes"] = "number"
    """Ask for a number, or for yes and no with their probabilities."""
    template: str = ""
    """A text with {prompt}, or a file with one; empty: mmrl's wording."""
    low: Number = 0.0
    """The worst number that the judge may give."""
    high: Number = 10.0
    """The best number that the judge may give."""
    label: str = ""
    """For `number`: the words in front of the number, such as "Final score"."""
    needs = Need(setup="server (OpenAI-compatible, several pictures per request)")
    pointwise = True

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.low < self.high:
            raise ValueError(f"{self}: needs low < high")

    def ready(self) -> None:
        """Raises RewardUnavailableError without the server."""
        self.server.ready()

    def __call__(self, group: Group) -> list[float | Scored | None]:
        template = template_text(self.template, YES if self.scoring == "yes" else NUMBER)
        questions = []
        for sample in group.samples:
            shown = frames_of(sample, self.frames, group.prompt.id)
            numbers = {"frames": len(shown), "low": f"{self.low:g}", "high": f"{self.high:g}"}
            text = fill_template(template, prompt=group.prompt.text, **numbers)
            questions.append(Question(text, shown, probabilities=self.scoring == "yes"))
        return list(ask_for_scores(self.server, questions, self._read))

    def _read(self, reply: Reply) -> Scored:
        if self.scoring == "yes":
            return Scored(yes_share(reply))
        raw = number(reply, self.low, self.high, self.label)
        return Scored((raw - self.low) / (self.high - self.low), {"raw": raw})
