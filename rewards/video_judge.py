"""(x - low) / (high - low), x the number a vision-language model gives to frames of a video, or P(yes) of its first token.

The frames are spread evenly from the first to the last and sent as pictures in order, so any OpenAI-compatible server with vision
will do. An answer that cannot be read, or lies outside low..high, fails and never scores 0.

Modality: video
Range: [0, 1]
Source: frames as pictures as UnifiedReward's servers take them; template in our own words
Licence: own code Apache-2.0; the judge's weights see their card
"""

from dataclasses import dataclass
from typing import Literal

from mmrl import Group, Need, Scored
from mmrl.runtime.ranges import Count
from mmrl.serving.judges.judge import Question, ask_for_scores
from mmrl.serving.judges.verdicts import Graded, fill_template, template_text
from mmrl.serving.media import frames_of

NUMBER = """These {frames} pictures are frames of one video, in order. It was made for this description: {prompt}
Does it show what is described, does it move as things move, and do the frames fit each other?
Reply with one number from {low} (not at all) to {high} (entirely) and nothing else."""
YES = """These {frames} pictures are frames of one video, in order. Does the video show this: {prompt}
Reply with yes or no."""


@dataclass(frozen=True)
class VideoJudge(Graded):
    """A judge's opinion of the videos that a policy made."""

    frames: Count = 8
    """At most this many frames of each video."""
    scoring: Literal["number", "yes"] = "number"
    """Ask for a number, or for yes and no with their probabilities."""
    needs = Need(setup="server (OpenAI-compatible, several pictures per request)")
    pointwise = True

    def __call__(self, group: Group) -> list[float | Scored | None]:
        template = template_text(self.template, YES if self.scoring == "yes" else NUMBER)
        questions = []
        for sample in group.samples:
            shown = frames_of(sample, self.frames, group.prompt.id)
            numbers = {"frames": len(shown), "low": f"{self.low:g}", "high": f"{self.high:g}"}
            text = fill_template(template, prompt=group.prompt.text, **numbers)
            questions.append(Question(text, shown, probabilities=self.scoring == "yes"))
        return list(ask_for_scores(self.server, questions, lambda reply: self.read(reply, self.scoring)))
