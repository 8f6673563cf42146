"""Completions that are given, whole or as a beginning: texts, dialogues, rows and turns as one kind of thing."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mmrl.core.samples import Ended, Seen, Segment, Turn, Who, complete, segments_of


@dataclass(frozen=True)
class Piece:
    """A part of a completion that is given: `Piece((5, 9), logprobs=(-0.1, -2.3))`, `Piece(text="So:", who="forced")`."""

    tokens: tuple[int, ...] = ()
    text: str | None = None
    """In place of tokens, which the policy makes of it."""
    who: Who = "policy"
    """Its writer; what the policy wrote trains."""
    logprobs: tuple[float, ...] = ()
    """As noted when it was sampled; empty: not known."""
    share: float = 1.0
    """Share of its tokens that is kept, rounded down."""
    before: str = ""
    """Only tokens in front of this text count, where it occurs."""


@dataclass(frozen=True)
class Given:
    """A completion that is given, or its beginning, piece by piece: `Given((Piece(text="yes"),))`. `Prefix`, `Branch`, `Dialogue`
    and `StoredRow` make others."""

    pieces: tuple[Piece, ...]
    turns: tuple[Turn, ...] = ()
    """Of an episode: its turns, with what was answered to each; a piece of the policy for every turn."""
    world: tuple[int, int] | None = None
    """Of an episode that goes on: Request.seed and number of the sample for which its world was opened first."""
    whole: bool = True
    """False: what follows is sampled."""
    truncated: bool = False
    """True: it was cut before it ended."""
    ended: Ended | None = None
    """Of an episode of an earlier step: why it ended."""
    seen: Seen | None = None
    """Of a row of an earlier step: what its group was like."""

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for piece in self.pieces for token in piece.tokens)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Those noted when it was sampled; empty: not known."""
        return tuple(noted for piece in self.pieces for noted in piece.logprobs)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Who wrote which of its tokens."""
        return segments_of((piece.who, len(piece.tokens)) for piece in self.pieces)

    @property
    def text(self) -> str:
        """The whole completion, where it is one text; else empty."""
        return self.pieces[0].text or "" if self.whole and self.pieces and not self.turns else ""

    @property
    def is_row(self) -> bool:
        """Is it a row of an earlier step, token by token?"""
        return self.whole and all(piece.text is None for piece in self.pieces)


def Prefix(  # noqa: N802 - the name of a thing that is given
    token_ids: tuple[int, ...], share: float = 1.0, before: str = "", forced: str = "", trained: bool = False
) -> Given:
    """The beginning of an earlier completion, which a new one goes on from. `Prefix(sample.token_ids, 0.5, forced="So:")`.

    Args:
        token_ids: of the earlier completion; a stop token at its end is left out.
        share: of these tokens that is kept, rounded down.
        before: only tokens in front of this text count, where it occurs: `</think>` keeps a cut inside of the thought.
        forced: a text after them that was not sampled.
        trained: the kept tokens train as if they had been sampled again; the forced text never does.
    """
    kept = Piece(token_ids, who="policy" if trained else "forced", share=share, before=before)
    return Given((kept, Piece(text=forced, who="forced")) if forced else (kept,), whole=False)


def Branch(  # noqa: N802 - the name of a thing that is given
    turns: tuple[Turn, ...], token_ids: tuple[int, ...], logprobs: tuple[float, ...], world: tuple[int, int]
) -> Given:
    """The first turns of an episode of this step, which another one goes on from. Its world is opened as the earlier one was and
    given the same turns, so it must repeat.

    Args:
        turns: with what was answered to each.
        token_ids: of these turns and answers: the last are what the world said before the turn that is written anew.
        logprobs: as noted when they were sampled, 0 where they were not: the turns train again.
        world: Request.seed and number of the sample for which the world was opened first.
    """
    places = [0, *(place for turn in turns for place in turn.span), len(token_ids)]
    segments = [Segment("policy" if i % 2 else "environment", *span) for i, span in enumerate(pairwise(places))]
    return Given(cut(token_ids, logprobs, segments), turns, world, whole=False)


def Dialogue(turns: tuple[Turn, ...], last_only: bool = False) -> Given:  # noqa: N802 - the name of a thing that is given
    """A whole completion of several turns: `Dialogue((Turn("?", (0, 0), Observation("7")), Turn("B", (0, 0))))`.

    Args:
        turns: texts of the policy, each but the last with the answer to it; their spans are found when they are written down.
        last_only: the last turn trains alone.
    """
    answered = max((i for i, turn in enumerate(turns) if turn.observation is not None), default=-1)
    pieces = (Piece(text=turn.text, who="forced" if last_only and i <= answered else "policy") for i, turn in enumerate(turns))
    return Given(tuple(pieces), turns)


def StoredRow(  # noqa: N802 - the name of a thing that is given
    tokens: tuple[int, ...],
    logprobs: tuple[float, ...] = (),
    *,
    truncated: bool = False,
    seen: Seen | None = None,
    segments: tuple[Segment, ...] = (),
) -> Given:
    """A row of an earlier step, to be trained again: `StoredRow((5, 9, 2), (-0.1, -2.3, -0.7))`.

    Args:
        tokens: the completion's, the stop token included.
        logprobs: as noted when it was sampled; empty: to be evaluated before the first update, as if the row were new.
        truncated: it was cut before it ended.
        seen: what its group was like.
        segments: who wrote which of its tokens, as `Sample.segments`; ValueError where they do not cover the tokens.
    """
    return Given(cut(tokens, logprobs, complete(segments, tokens)), truncated=truncated, seen=seen)


def cut(tokens: tuple[int, ...], logprobs: tuple[float, ...], segments: Sequence[Segment]) -> tuple[Piece, ...]:
    """Tokens as one piece per segment that is not empty."""
    spans = [(one, slice(one.start, one.stop)) for one in segments if len(one)]
    return tuple(Piece(tokens[span], None, one.who, logprobs[span]) for one, span in spans)
