"""Letters of a multiple choice as models write them, and how well they fit the right ones.

The rule: a letter that is stated ("the answer is B", `\\boxed{B}`, a line that holds nothing else) wins over those that are
mentioned ("option C is too low"); two different statements, or "A or B", are no answer. Repetitions in expressions are bounded or
possessive, so that no text, however strange, takes more than linear time.
"""

import re
from collections.abc import Iterator, Sequence

from mmrl.answers.block import answer_block, strip_fence

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MARKED = r"(?:[(\[{<]\s?[A-Za-z]\s?[)\]}>]|[A-Z](?![\w'\u2019])[)\]]?)[.:]?"
_AND = r"\s{0,3}+(?:[,;/&+]\s{0,3}+(?:and\s)?+|and\s)(?:also\s)?+\s{0,3}+"
_OR = rf"(?P<other>\s{{0,3}}+,?+\s{{0,3}}+or\s{{1,3}}+(?:option\s|maybe\s)?+{_MARKED})?"
_LISTED = rf"{_MARKED}(?:{_AND}{_MARKED}){{0,25}}"
_SEVERAL = rf"{_MARKED}(?:{_AND}{_MARKED}(?!\s+(?:is|are|was|has|does|think|believe|would|guess)\b)){{0,25}}"
_ANY = r"[(\[{]?[A-Z][)\]}]?[.:]?"
_LIST = re.compile(rf"{_ANY}(?:\s*+(?:[,;/&+]|and\b)?\s*+{_ANY})*+")
_TOGETHER = re.compile(r"[A-Z]{2,26}")
_LABELLED = re.compile(r"[(\[]?([A-Z])(?:[)\]][.:]?|[.:])(?=\s|\Z)")
_ADJECTIVE = r"(?:final|correct|right|best|single|only|chosen|accurate|appropriate|suitable|(?:most\s)?likely)"
_NOUN = (
    rf"(?:(?:{_ADJECTIVE}\s){{0,3}}answers?|(?:{_ADJECTIVE}\s){{1,3}}(?:option|choice|statement|letter)s?"
    r"|my\s(?:choice|pick)|correct|choice(?=\s?:))"
)
_ABOUT = r"(?:\s(?:to|for|of|in|among|based\son|given|here)\b[^\n.,:;?!]{0,60}?)?"
_IS = r"\s{0,3}(?:\b(?:is|are|was|(?:would|should|must|will)\sbe)\b|:|\uff1a|=|-+>?|\u2013|\u2014|\u2192)"
_ITSELF = (
    r"\s{0,9}+:?+\s{0,9}+(?:(?:most\s)?(?:likely|probably|clearly|therefore|thus|indeed|definitely)\s)?(?:the\s)?"
    r"(?:(?:option|choice|letter|answer|statement)\s{1,3})?"
)
_WORD = r"(?:antwort|respuesta|r\u00e9ponse|resposta|jawaban|\u043e\u0442\u0432\u0435\u0442|\ub2f5|\u7b54\u3048)\s{0,3}[:\uff1a]"
_CHINESE = r"(?:答案|選擇|选择|选项|選項|[选選])[是为為应该选選:\uff1a\s]{0,6}"
_CUE = re.compile(
    rf"(?:(?<!wrong )(?<!incorrect )\b{_NOUN}{_ABOUT}{_IS}{_ITSELF}|\\boxed|\b{_WORD}\s{{0,3}}|{_CHINESE})", re.IGNORECASE
)
_CHOSEN = re.compile(
    rf"(?i)\b(?:(?:it|this|that)(?:\s(?:is|must\sbe|should\sbe)|'s)|(?:choose|chose|pick|select|go\swith))\s{_ITSELF}"
)
_STATED = re.compile(rf"(?P<list>{_SEVERAL}|[b-hj-z](?=[.!]?(?:\s|\Z))){_OR}(?![\w'\u2019])")
_PRAISED = re.compile(
    rf"(?<![\w'])(?P<list>{_LISTED}){_OR}\s{{1,3}}(?:is|are|must\sbe)\s(?:the\s)?(?:most\s|only\s)?"
    r"(?:answers?|correct|right|best|true|accurate|appropriate)\b"
)
_LINE = re.compile(
    rf"(?i:(?:(?:the|my)\s)?(?:(?:{_ADJECTIVE}\s){{0,3}}(?:answer|option|choice|letter))?)[\s:\uff1a]{{0,3}}(?P<list>{_SEVERAL}){_OR}[.!\s]*+"
)
_FIRST = re.compile(
    rf"(?:(?i:option|choice|answer)\s)?(?P<list>{_MARKED})"
    rf"(?:{_OR[:-1]}|(?<=[.:)\]}}])(?=\s)|\s?[-\u2013\u2014]\s|,?\s(?:because|since)\b)"
)
_ARTICLE = re.compile(r"[AI]\s+(?!(?:because|since|and|or|as|is|with|which|but)\b)[a-z]")
_DENIED = re.compile(r"\b(?:not|neither|nor|if|whether|unless|never|cannot|suppose)\b|n't", re.IGNORECASE)
_MARKS = re.compile(r"[*_`$\"\u201c\u201d\u2018]|\\(?:text|textbf|mathrm|mathbf|textrm|left|right)\b\s?")
_BOX = re.compile(r"\\f?boxed\s?\{|<\|begin_of_box\|>")
_BEGINS = re.compile(r"\s{0,9}(?:\\\[\s?)?(?:\\boxed)?[\s{\[(]{0,9}(?:(?:option|choice|answer)\s)?", re.IGNORECASE)
_CLAUSE = re.compile(r"[.;!\n]|\s(?:because|since)\b")


def parse_choices(text: str, options: Sequence[str] = ()) -> frozenset[str]:
    """The letters an answer states: `<answer>A, C</answer>` -> {A, C}; none when there are none. Never raises.

    Reads the last complete `<answer>` block if there is one, else the text without its thought. Understands "A", "(A)", "A.",
    "A, C", "A and C", "ACD" in ascending order, "B. a dog", one such line per letter, "the answer is B", "B is correct", "B
    because ..", LaTeX boxes, and the wording of an option. Of statements all must name the same letters. What is only mentioned
    ("option A is wrong") and a lone capital inside other words are no answer. Small letters are none, except behind words such as
    "the answer is" and in the wording of `options`, whose number bounds the letters.
    """
    text = _MARKS.sub("", _BOX.sub(r"\\boxed ", strip_fence(answer_block(text)))).strip(" \t\n'#")
    known = LETTERS[: len(options)] if options else LETTERS
    found = _letters(text)
    if found is None:
        found = _by_wording(text, options)
    return frozenset(found) if set(found) <= set(known) else frozenset()


def choice_score(predicted: frozenset[str], truth: frozenset[str], soft: bool) -> float:
    """1 if the letters are the right ones, else 0; soft: |predicted| / |truth| while no letter is wrong (TW-GRPO)."""
    if not predicted or not predicted <= truth:
        return 0.0
    return len(predicted) / len(truth) if soft else float(predicted == truth)


def _letters(text: str) -> Sequence[str] | None:
    """The letters; empty where statements contradict each other, None where nothing is stated."""
    if _TOGETHER.fullmatch(text) and list(text) == sorted(set(text)):
        return list(text)
    if _LIST.fullmatch(text) and not _TOGETHER.search(text):
        return re.findall("[A-Z]", text)
    pieces = [piece.strip() for piece in re.split(r"[\n;]", text) if piece.strip()]
    labelled = [match for piece in pieces if (match := _LABELLED.match(piece))]
    if len(labelled) == len(pieces) > 1:
        return [match[1] for match in labelled]
    first = _FIRST.match(text) if len(labelled) < 2 else None
    begun = [_named(first)] if first else [frozenset(match[1]) for match in labelled if len(labelled) == 1]
    for found in (set(_stated(text, pieces)), set(_preferred(text)), set(begun)):
        if found:
            return tuple(found.pop()) if len(found) == 1 else ()
    return None


def _stated(text: str, pieces: Sequence[str]) -> Iterator[frozenset[str]]:
    """Behind "the answer is" and the like, in a box, or alone on a line."""
    yield from _behind(text, _CUE)
    yield from (_named(match) for piece in pieces if (match := _LINE.fullmatch(piece)))


def _preferred(text: str) -> Iterator[frozenset[str]]:
    """Said to be right, or chosen."""
    yield from _behind(text, _CHOSEN)
    yield from (_named(match) for match in _PRAISED.finditer(text) if not _is_denied(text, match.start()))


def _behind(text: str, cues: re.Pattern[str]) -> Iterator[frozenset[str]]:
    for cue in cues.finditer(text):
        begins = _BEGINS.match(text, cue.end())
        match = _STATED.match(text, cue.end()) or (begins and _STATED.match(text, begins.end()))
        if match and not _ARTICLE.match(text, match.start()) and not _is_denied(text, cue.start()):
            yield _named(match)


def _named(match: re.Match[str]) -> frozenset[str]:
    """The letters of a list; none at all where it leaves the choice open ("A or B")."""
    if "other" in match.re.groupindex and match["other"]:
        return frozenset()
    return frozenset(letter.upper() for letter in re.findall(r"(?<!\w)[A-Za-z](?!\w)", match["list"]))


def _is_denied(text: str, at: int) -> bool:
    """Is the part of the sentence in front of this place a denial or a condition?"""
    return _DENIED.search(re.split(r"[.,;!?\n]", text[max(0, at - 120) : at])[-1]) is not None


def _by_wording(text: str, options: Sequence[str]) -> list[str]:
    """The option whose wording the text is, states, or begins with; "Yes, .." begins with its first word."""
    stated = [text[cue.end() :].lstrip(" \n{(") for cue in _CUE.finditer(text)][-1:] if options else []
    lone = re.match(r"(?:yes|no|true|false)(?=[,:\u2014])", text, re.IGNORECASE)
    for said in (text, *(_CLAUSE.split(part, maxsplit=1)[0] for part in (*stated, lone[0] if lone else text))):
        plain = _plain(said)
        if named := [letter for letter, option in zip(LETTERS, options, strict=False) if plain and _plain(option) == plain]:
            return named[:1]
    return []


def _plain(text: str) -> str:
    return " ".join(text.lower().rstrip(".!}").split())
