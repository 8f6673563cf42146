"""Does the completion follow its template, and does its answer contain boxes?

    r = 1 if the whole text, blanks at its ends aside, follows the template, else 0

direct: `<answer>..</answer>`. think: `<think>..</think><answer>..</answer>`, the opening tag optional because chat templates may
write it. json: one JSON value. Every tag at most once: unlike the expression used by Video-R1 and VLM-R1, a second `<answer>`
fails and a newline at the end passes.

Modality: text
Range: {0, 1}
Source: the format rewards of Video-R1 (arXiv:2503.21776) and VLM-R1 (arXiv:2504.07615)
Licence: own code Apache-2.0
"""

from dataclasses import dataclass

from mmrl import Group, Need, Scored
from mmrl.answers.block import Template, completion_text, keeps_format
from mmrl.answers.boxes.parsing import parse_boxes, says_nothing


@dataclass(frozen=True)
class Format:
    """1 for a text in the template's form. To gate a box reward instead of adding to it, use that reward's own `template`."""

    template: Template = "think"
    """The form that the text must have."""
    needs_box: bool = False
    """True: the answer must also contain a box, or say that there is none."""
    needs = Need()

    def __call__(self, group: Group) -> list[float | Scored | None]:
        return [self._score(completion_text(group.prompt, sample)) for sample in group.samples]

    def _score(self, text: str) -> float:
        # which space does not matter for whether numbers form a box
        has_box = not self.needs_box or bool(parse_boxes(text, "pixel")) or says_nothing(text)
        return float(keeps_format(text, self.template) and has_box)
