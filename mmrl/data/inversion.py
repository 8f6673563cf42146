"""Inversion of questions: the one right option becomes the one wrong one, so that several answers are right.

A question is negated by its auxiliary verb: "what color is the cube?" becomes "what color isn't the cube?".
"""

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from mmrl.answers.choices import LETTERS
from mmrl.data.readers import Row
from mmrl.data.video_rows import VideoRow
from mmrl.runtime.ranges import Seed, Share, check_ranges

NEGATED = {
    "is": "isn't", "are": "aren't", "was": "wasn't", "were": "weren't", "do": "don't", "does": "doesn't", "did": "didn't",
    "has": "hasn't", "have": "haven't", "had": "hadn't", "can": "can't", "could": "couldn't", "will": "won't",
    "would": "wouldn't", "should": "shouldn't", "must": "mustn't", "might": "mightn't",
}  # fmt: skip
"""Auxiliary -> its negation. `may`, which has none, is left out."""
ASKING = frozenset(("what", "which", "who", "whom", "whose", "where", "when", "why", "how"))
PREPOSITIONS = frozenset(("in", "at", "on", "to", "for", "from", "with", "of", "by", "about", "during", "after", "before"))
AMOUNTS = frozenset(("many", "much", "long", "old", "often", "far", "big", "tall", "fast"))
"""Words after `how` that ask for an amount: negated, every number but one would be right."""
BEGINS_A_CLAUSE = ASKING | {
    "that", "while", "after", "before", "if", "because", "since", "until", "as", "once", "though", "although", "unless"
}  # fmt: skip
NEGATIVE = frozenset(("not", "no", "never", "none", "nothing", "nobody", "neither", "nor", "cannot"))
OPINIONS = frozenset(("think", "believe", "suppose", "guess", "say"))
HAVING = frozenset(("has", "have", "had"))
DOING = frozenset(("do", "does", "did"))
_PARTICIPLES = frozenset((
    "been", "done", "gone", "made", "put", "taken", "seen", "left", "held", "kept", "got", "had", "said", "told", "found",
    "brought", "built", "bought", "cut", "hit", "let", "lost", "met", "read", "run", "sat", "set", "shut", "stood", "thrown",
    "come", "become", "begun", "broken", "chosen", "driven", "eaten", "fallen", "given", "grown", "hidden", "known", "ridden",
    "shown", "spoken", "torn", "worn", "won", "written",
))  # fmt: skip
"""Past participles without -ed that follow `have` in questions about videos."""
_WORD = re.compile(r"[A-Za-z']+")


def negate(question: str) -> str | None:
    """The question with the auxiliary of its main clause negated; None where that is not plain, or makes no sense.

    The auxiliary follows the question word, which begins the question or the clause after a comma. A question is left
    alone if it has no auxiliary ("Who broke it?"), is negative already, asks yes or no, how many, or for an opinion, or if
    its `have` or `do` may be the verb itself ("who has the ball?", "who did it?").
    """
    words = [(found.group().lower(), found.span()) for found in _WORD.finditer(question)]
    if any(word in NEGATIVE or word.endswith("n't") for word, _ in words):
        return None
    asking = _question_word(question, words)
    place = None if asking is None else _auxiliary([word for word, _ in words], asking)
    if place is None:
        return None
    word, (begin, end) = words[place]
    return question[:begin] + NEGATED[word] + question[end:]


def _question_word(question: str, words: list[tuple[str, tuple[int, int]]]) -> int | None:
    """The place of the question word: the first of the question or of a clause after a comma, perhaps after a preposition."""
    for i, (word, (begin, _)) in enumerate(words):
        starts = i == 0 or (i == 1 and words[0][0] in PREPOSITIONS) or question[:begin].rstrip().endswith((",", ":", "."))
        if word not in ASKING or not starts:
            continue
        # "when the ball hits it, what happens": the clause before a comma is no question
        if i == 0 and word == "when" and (len(words) == 1 or words[1][0] not in NEGATED):
            continue
        return i
    return None


def _auxiliary(words: list[str], asking: int) -> int | None:
    """The place of the main clause's auxiliary, None where there is none or where it may be another verb."""
    after = words[asking + 1 : asking + 2]
    if words[asking] == "how" and after and after[0] in AMOUNTS:
        return None
    for place in range(asking + 1, len(words)):
        word = words[place]
        if word in BEGINS_A_CLAUSE:
            return None
        if word not in NEGATED:
            continue
        rest = words[place + 1 :]
        has_participle = any(one in _PARTICIPLES or (one.endswith("ed") and len(one) > 4) for one in rest)
        asks_what_is_done = word in DOING and (words[place - 1] == "who" or len(rest) < 2)
        may_be_the_verb = (word in HAVING and not has_participle) or asks_what_is_done
        gives_an_opinion = word in DOING and rest[:1] == ["you"] and bool(OPINIONS & set(rest[1:2]))
        return None if may_be_the_verb or gives_an_opinion or not rest else place
    return None


@dataclass(frozen=True)
class Inversion:
    """Inversion with a probability: "what is he holding?" becomes "what isn't he holding?" (TW-GRPO, arXiv:2505.24718).

    A random number of the wrong options stay and become right, the right one becomes wrong, and all are shuffled. Which
    questions are inverted depends only on the seed and the question's id. Questions that cannot be negated plainly (see
    `negate`), or that have one option or several right ones, stay as they are; the authors' script inverts the answer even
    where it cannot negate the question, whose words it then keeps.
    """

    probability: Share = 0.5
    seed: Seed = 0

    __post_init__ = check_ranges

    def __call__(self, row: VideoRow) -> VideoRow:
        """The question, perhaps inverted; the column `inverted` says that it was."""
        rng = random.Random(f"{self.seed}/{row.id}")
        letters, negated = LETTERS[: len(row.options)], negate(row.question)
        if rng.random() >= self.probability or len(row.options) < 2 or row.answer not in list(letters) or negated is None:
            return row
        wrong = [option for letter, option in zip(letters, row.options, strict=True) if letter != row.answer]
        kept = rng.sample(wrong, rng.randint(1, len(wrong)))
        shown = [*kept, row.options[letters.index(str(row.answer))]]
        order = rng.sample(range(len(shown)), len(shown))
        answer = ",".join(letter for letter, place in zip(letters, order, strict=False) if place < len(kept))
        options, columns = tuple(shown[place] for place in order), {**row.columns, "inverted": True}
        return replace(row, question=negated, answer=answer, options=options, columns=columns)


def with_inversion(parse: Callable[[Row], Iterable[VideoRow]], share: float) -> Callable[[Row], Iterable[VideoRow]]:
    """A layout that inverts this share of the questions that can be inverted; ValueError for a share outside 0 to 1."""
    invert = Inversion(share)
    return (lambda row: map(invert, parse(row))) if share else parse
