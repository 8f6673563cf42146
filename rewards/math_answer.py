"""Is the answer mathematically equal to the true one? (1/2 = 0.5 = \\frac{1}{2}, sets, intervals, equations)

    r = 1 if math-verify finds both equal, else 0

The answer is the inside of the last answer tag, else the text without its thought; of several expressions in it math-verify takes
the boxed one, else the last. It runs in a separate process, one per calling thread: math-verify stops itself with signals, which
work in a main thread only (elsewhere it finds nothing and everything scores 0), and an expression such as 9^9^9^9 never ends. One
that takes longer than limit_s fails and leaves the statistics, and the process is killed. Equal texts need no process.

Modality: text
Range: {0, 1}
Source: huggingface/Math-Verify
Licence: own code Apache-2.0; Math-Verify Apache-2.0
"""

from dataclasses import dataclass
from math import nan

from mmrl import Need, Prompt, Scored
from mmrl.answers.block import answer_block
from mmrl.answers.needs import answer
from mmrl.answers.questions import OfAnswers
from mmrl.runtime.ranges import Count, Positive
from mmrl.serving.judges.math_grader import grade_math


@dataclass(frozen=True)
class MathAnswer(OfAnswers[Prompt]):
    """1 for an answer equal to the true one. No answer in the prompt: None; one that is no expression is an error."""

    limit_s: Positive = 5.0
    """For one sample."""
    most_characters: Count = 2000
    """A longer answer is unreadable."""
    needs = Need("a number or a text with LaTeX as answer", answer(), package="math_verify")

    def score(self, text: str, truth: Prompt, prompt: Prompt) -> Scored:
        wanted = str(prompt.answer).strip()
        grade = grade_math(answer_block(text), wanted, prompt.id, self.limit_s, self.most_characters)
        value = nan if grade.timeout else float(grade.equal)
        return Scored(value, {"unparsed": float(grade.unparsed), "timeout": float(grade.timeout)})
