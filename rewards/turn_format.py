"""Is every turn of an episode well formed: a call that can be followed or no call, and tags that are closed?

    r = share of the turns that are; with whole = true 1 if all are, else 0

tags: `<tool_call>` with a JSON call inside. json: a JSON object with a list of actions, in every turn. code: `<code>` or a fence
of Python. A sample without turns is one turn. Whether the last turn is an answer in its template is for the reward format to say.

Modality: text
Range: [0, 1]
Source: the format rewards of OpenThinkIMG (arXiv:2505.08617; share, json) and DeepEyes (arXiv:2505.14362; whole, tags)
Licence: own code Apache-2.0
"""

from dataclasses import dataclass

from mmrl import Need, Prompt, Sample, Scored
from mmrl.answers.calls import CallError, Form, parse_call
from mmrl.answers.needs import OfSamples


@dataclass(frozen=True)
class TurnFormat(OfSamples):
    """The share of well-formed turns."""

    form: Form = "tags"
    """How the model writes calls."""
    whole: bool = False
    """True: 1 if all turns are well formed, else 0."""
    closed: tuple[str, ...] = ("think", "answer")
    """Tags that a turn opens as often as it closes them; the first may be open from the start, as templates leave it."""
    needs = Need()

    def score(self, sample: Sample, prompt: Prompt) -> Scored:
        texts = [turn.text for turn in sample.turns] or [sample.text or ""]
        well = [self._is_well(text) for text in texts]
        return Scored(float(all(well)) if self.whole else sum(well) / len(well), {"malformed": float(len(well) - sum(well))})

    def _is_well(self, text: str) -> bool:
        for i, tag in enumerate(self.closed):
            missing = text.count(f"</{tag}>") - text.count(f"<{tag}>")
            if missing and (i or missing != 1):
                return False
        if self.form == "json" and "{" not in text:
            return False
        try:
            parse_call(text, self.form)
        except CallError:
            return False
        return True
