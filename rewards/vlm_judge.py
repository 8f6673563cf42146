"""A vision-language model behind an OpenAI-compatible server says how good a picture, or an answer about one, is.

    number   (x - low) / (high - low) of the last number of its answer
    json     the same of the number under `key` of its JSON answer
    yes      P(yes) / (P(yes) + P(no)) at its first token, all spellings added up; needs log-probabilities

An answer that cannot be read, or lies outside low..high, fails and never scores 0.

Modality: image, text
Range: [0, 1]
Source: the usual judge of RL code (Flow-Factory, verl recipes); default templates in our own words
Licence: own code Apache-2.0; the judge's weights see their card
"""

from dataclasses import dataclass
from typing import Any, Literal

from mmrl import Group, Need, Prompt, Sample, Scored
from mmrl.data.files.pictures import open_picture
from mmrl.serving.judges.judge import Question, ask_for_scores
from mmrl.serving.judges.verdicts import Graded, fill_template, template_text
from mmrl.serving.media import sources_of

SHOWN = """You see a picture that was made for this description: {prompt}
Does it show everything the description names, as described, and is it well made? """
EDITED = {
    "all": "Was the instruction followed, and everything else kept as it was? ",
    "followed": "Was the instruction followed? Leave aside what else has changed. ",
    "kept": "Is everything that the instruction does not speak of as it was? Leave aside whether it was followed. ",
}
CHANGED = """A picture was to be changed by this instruction: {prompt}
You see {sources}, and last the result. """
WRITTEN = """Question: {prompt}
Reference answer: {answer}
Answer to judge: {completion}
Is the answer to judge right? """
ENDINGS = {
    "number": "Reply with one number from {low} (not at all) to {high} (entirely) and nothing else.",
    "json": 'Reply with JSON and nothing else: {"{key}": a number from {low} (not at all) to {high} (entirely)}',
    "yes": "Reply with yes or no.",
}


def _answer(prompt: Prompt, reward: Any, output: str) -> object:
    if prompt.answer is None and ("{answer}" in reward.template or (output == "text" and not reward.template)):
        raise ValueError(f"prompt {prompt.id!r} has no answer, which the judge's template asks for: set template")
    return prompt


@dataclass(frozen=True)
class VlmJudge(Graded):
    """A judge's opinion. Pictures that the policy drew are shown to it, after those that it was to edit if there were any; else
    those of the prompt with the written answer."""

    scoring: Literal["number", "json", "yes"] = "number"
    """How the judge is asked: one of the three forms above."""
    template: str = ""
    """A text with {prompt} (and {answer}, {completion}, or any column), or a file with one; empty: mmrl's wording."""
    about: Literal["all", "followed", "kept"] = "all"
    """For edits: whether the instruction was followed, the rest was kept, or both. Not with your own templates."""
    key: str = "score"
    """For `json`: the key of its answer that holds the number."""
    needs = Need("an answer, where the template says {answer}", _answer, setup="server (OpenAI-compatible, with vision)")
    pointwise = True

    def __call__(self, group: Group) -> list[float | Scored | None]:
        questions = [self._question(group, sample) for sample in group.samples]
        return list(ask_for_scores(self.server, questions, lambda reply: self.read(reply, self.scoring, self.key)))

    def _question(self, group: Group, sample: Sample) -> Question:
        prompt = group.prompt
        if sample.image is not None and prompt.media:
            pictures, default = [*sources_of(prompt), sample.image], CHANGED + EDITED[self.about]
        elif sample.image is not None:
            pictures, default = [sample.image], SHOWN
        elif sample.text is not None:
            # clips are for video_judge
            pictures, default = [open_picture(m) for m in prompt.media if not hasattr(m, "fps")], WRITTEN
        else:
            raise ValueError(f"a sample of prompt {prompt.id!r} has neither picture nor text to judge")
        values: dict[str, Any] = {**prompt.columns, "low": f"{self.low:g}", "high": f"{self.high:g}", "key": self.key}
        values["sources"] = (
            "first the picture as it was" if len(pictures) <= 2 else f"first the {len(pictures) - 1} pictures given"
        )
        values |= {"prompt": prompt.text, "answer": prompt.answer, "completion": sample.text or ""}
        text = template_text(self.template, default + ENDINGS[self.scoring])
        if prompt.answer is None and "{answer}" in text:
            raise ValueError(f"prompt {prompt.id!r} has no answer, which the judge's template asks for: set template")
        return Question(fill_template(text, **values), pictures, probabilities=self.scoring == "yes")
