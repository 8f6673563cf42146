"""Episodes of several turns, in waves: a turn is written for all rows that are ready, each is handed to its world, and what the
worlds answer is put behind it.

The row so far is a prompt: every turn is written by the same generator as a completion without turns, so nothing that the model
wrote is decoded and encoded again. What stands between turns is the difference of two renderings of the chat template: templates
change earlier turns (they trim them, or drop their thoughts), and text is not always tokenized as it was sampled. A row depends
on (seed, sample, turn) alone, whatever is written beside it.
"""

import hashlib
import logging
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image

from mmrl.core.episodes import Worlds
from mmrl.core.samples import IMAGE, Ended, MediaSize, Observation, Turn, kind_of
from mmrl.core.types import Given, Piece, Prompt
from mmrl.policies.shared.pictures import digest_of_picture, open_picture
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.kept import Past
from mmrl.policies.text.prompt.encode import Encoded, Encoder, Opened
from mmrl.policies.text.prompt.templates import QUESTION, message, messages
from mmrl.policies.text.settings import Sampling
from mmrl.policies.text.trace import Inset, append
from mmrl.policies.text.write.generate import Completions, Generator, Part
from mmrl.policies.text.write.rollout import CompletionRow, PromptCache, number_of
from mmrl.runtime.blame import UnavailableError, describe, is_from_outside, shown
from mmrl.runtime.calls import number

log = logging.getLogger("mmrl")
MOST_FACTS, LONGEST_KEY = 64, 256
Pending = dict[Future[Observation | None], "Episode"]


@dataclass
class Episode:
    """A row that is written turn by turn, and the world that answers it."""

    row: CompletionRow
    prompt: Encoded
    most: int
    """Turns that it may have."""
    world: int = -1
    """The number of its world."""
    short_ids: list[int] = field(default_factory=list[int])
    """The row's tokens with one placeholder per picture."""
    pictures: list[Any] = field(default_factory=list[Any])
    """All pictures of its observations."""
    past: Past | None = None
    """What it has read, where that is kept."""

    @property
    def shown(self) -> Encoded:
        """The row so far, as a prompt."""
        row, past = self.row, self.past and replace(self.past, final=self.is_last)
        if not row.tokens:
            return self.prompt if past is None else replace(self.prompt, past=past)
        behind = append(self.prompt, row.tokens, row.insets)
        return replace(behind, short_ids=tuple(self.short_ids), pictures=tuple(self.pictures), past=past)

    @property
    def is_last(self) -> bool:
        """Is its next turn the last that it may have?"""
        return len(self.row.turns) + 1 >= self.most

    @property
    def seed(self) -> tuple[int, int]:
        """The seed of the next turn; the first one's is that of a completion without turns."""
        seed, turn = self.row.request.seed, len(self.row.turns)
        return number_of(f"{seed}/turn {turn}") if turn else seed, self.row.index

    @property
    def branch(self) -> Given | None:
        """The turns of an earlier episode that it begins with, where it has not come to their end."""
        given = self.row.request.given
        return given if given is not None and len(self.row.tokens) < len(given.tokens) else None

    def say(self, completions: Completions, i: int, room: int, host: TextHost) -> None:
        """Take over a turn of at most `room` tokens."""
        start = len(self.row.tokens)
        self.row.say(completions, i, room)
        self.past = completions.pasts[i] if completions.pasts else self.past and Past(self.past.keeper)
        self.end_turn(start, host)
        if not self.row.stopped:
            self.row.ended = "length"

    def put(self, piece: Piece, host: TextHost) -> None:
        """Put the tokens of a piece behind the row, as its next turn."""
        start = len(self.row.tokens)
        self.row.put(piece.tokens, piece.logprobs, piece.who)
        self.end_turn(start, host)

    def end_turn(self, start: int, host: TextHost) -> None:
        """Note the row's tokens from `start` on as its next turn."""
        row, own = self.row, self.row.tokens[start:]
        self.short_ids += own
        said = own[:-1] if own[-1] in host.eos_token_ids else own
        shown = (*self.prompt.sizes, *(size for turn in row.turns for size in turn.media_sizes))
        row.turns = (*row.turns, Turn(host.decode([said])[0], (start, start + len(own)), shown=shown))

    def say_again(self, host: TextHost) -> bool:
        """Take over the next turn of the episode that it branches from; False where it has come to its own."""
        branch = self.branch
        if branch is None:
            return False
        piece = [one for one in branch.pieces if one.who == "policy"][len(self.row.turns)]
        self.put(piece, host)
        if any(map(math.isnan, piece.logprobs)):
            self.row.noted_from = len(self.row.tokens)
        return True

    def compare(self, branch: Given) -> None:
        """Raise ValueError unless the world answered the latest turn as in the episode that this one branches from."""
        row, number = self.row, len(self.row.turns)
        before, now = (
            one and replace(one, media=()) for one in (branch.turns[number - 1].observation, row.turns[-1].observation)
        )
        if now == before and row.ended is None and tuple(row.tokens) == branch.tokens[: len(row.tokens)]:
            return
        raise ValueError(
            f"prompt {row.request.prompt.id!r}: a world that was opened with the seed of another, and given the same turns, "
            f"answers turn {number} otherwise, so no episode can branch behind it: draw from the seed alone and let worlds share "
            "nothing, or take an algorithm that does not branch"
        )

    def hear(self, observation: Observation, sizes: Sequence[MediaSize] = (), ended: Ended | None = None) -> None:
        """Note the answer to the latest turn."""
        last = replace(self.row.turns[-1], observation=observation, media_sizes=tuple(sizes))
        self.row.turns = (*self.row.turns[:-1], last)
        self.row.ended = ended

    def show(self, observation: Observation, observed: Encoded) -> None:
        """Put an observation and its tokens behind the latest turn."""
        self.hear(observation, observed.sizes)
        row = self.row
        inset = inset_of(observed, len(row.tokens))
        row.insets = row.insets if inset is None else (*row.insets, inset)
        row.put(observed.token_ids.tolist(), who="environment")
        self.short_ids += observed.short_ids or ()
        self.pictures += observed.pictures


Chunk = Sequence[Episode]


@dataclass(frozen=True)
class Player:
    """Writes episodes with a generator, and asks worlds."""

    host: TextHost
    generator: Generator
    worlds: Worlds
    sampling: Sampling

    def __post_init__(self) -> None:
        if self.worlds.limits.tokens < 2 * self.sampling.max_new_tokens:
            raise ValueError(
                f"environment.limits.tokens is {self.worlds.limits.tokens}, which two turns of policy.sampling.max_new_tokens = "
                f"{self.sampling.max_new_tokens} exceed: raise the one or lower the other"
            )

    def play(self, rows: Sequence[CompletionRow], prompts: PromptCache) -> list[int]:
        """Write the episodes of these rows; returns the versions of the weights that wrote."""
        past = None if self.host.keeper is None else Past(self.host.keeper)
        limit = self.worlds.limits.turns
        episodes = [Episode(row, prompts[row.shown], row.request.turns or limit, past=past) for row in rows]
        ready, pending, versions = episodes, Pending(), list[int]()
        try:
            for episode in episodes:
                request = episode.row.request
                world = None if request.given is None else request.given.world
                seed, index = world or (request.seed, episode.row.index)
                episode.row.world_seed = seed = number_of(f"{seed}/{index}")
                episode.world = self.worlds.open(request.prompt, seed)
            while ready or pending:
                known = [one for one in ready if one.branch is not None]
                unknown = [one for one in ready if one.branch is None]
                for chunk, version in self.write(known, chunks_of(unknown, self.host.config.rollout_rows)):
                    versions += version
                    pending |= {self.worlds.step(one.world, one.row.turns[-1]): one for one in chunk if one.row.ended is None}
                ready = self.wait_for(pending)
                for one in episodes:
                    one.past = one.past if one.row.ended is None else None
        finally:
            for episode in episodes:
                # whoever holds the error that ended it holds this frame
                episode.past = None
                if episode.world >= 0:
                    self.worlds.close(episode.world)
        return versions

    def write(self, known: Chunk, chunks: Sequence[Chunk]) -> Iterator[tuple[Chunk, list[int]]]:
        """Take over the next turn of those that are known, and write that of others, each chunk when it is asked for.

        With every chunk come the versions of the weights that wrote it.
        """
        for one in known:
            one.say_again(self.host)
        yield known, []
        for chunk, completions in zip(chunks, self.generator.write_all(map(self.part, chunks)), strict=True):
            for i, one in enumerate(chunk):
                one.say(completions, i, self.worlds.limits.tokens - len(one.row.tokens), self.host)
            yield chunk, [completions.weights_version]

    def part(self, episodes: Chunk) -> Part:
        """The question to the generator for the next turn of each; those that are alike so far are one prompt."""
        near, unique, index = dict[tuple[object, ...], list[int]](), list[Episode](), list[int]()
        for one in episodes:
            others = near.setdefault((id(one.prompt), one.is_last, tuple(one.row.tokens)), [])
            if (place := next((i for i in others if shows_as(one, unique[i])), None)) is None:
                others.append(place := len(unique))
                unique.append(one)
            index.append(place)
        return [one.shown for one in unique], index, [one.seed for one in episodes], self.sampling

    def wait_for(self, pending: Pending) -> list[Episode]:
        """The episodes whose next turn can be written, once the share `worlds.wave` of those that wait is answered."""
        wanted, done = math.ceil(self.worlds.wave * len(pending)), set[Future[Observation | None]]()
        while len(done) < wanted:
            done |= wait(pending.keys() - done, return_when=FIRST_COMPLETED).done
        # in the order of rows: who answers first must not decide what is written together
        order = [future for future in pending if future in done]
        episodes = [(pending.pop(future), future) for future in order]
        for episode, future in episodes:
            branch = episode.branch
            self.take(episode, future)
            if branch is not None and episode.row.ended != "error":
                episode.compare(branch)
        return [episode for episode, _ in episodes if episode.row.ended is None]

    def take(self, episode: Episode, future: Future[Observation | None]) -> None:
        """Put a world's answer behind the latest turn, or end the episode."""
        row = episode.row
        try:
            observation = future.result()
            if observation is None:
                row.ended = "stop"
                return
            observation = with_key(check_observation(observation))
            if observation.done:
                episode.hear(observation, ended="done")
            elif len(row.turns) >= episode.most:
                episode.hear(observation, ended="turns")
            else:
                self.show(episode, observation)
        except BaseException as error:
            if is_from_outside(error) or isinstance(error, UnavailableError):
                raise
            log.warning("prompt %r: its world broke after turn %d: %s", row.request.prompt.id, len(row.turns), describe(error))
            episode.hear(Observation(describe(error), facts={"broken": 1.0}), ended="error")

    def show(self, episode: Episode, observation: Observation) -> None:
        """Put an observation behind the latest turn, with its pictures, or leave out both where it exceeds a limit."""
        row, limits = episode.row, self.worlds.limits
        seen = sum(len(turn.media_sizes) for turn in row.turns) + len(observation.media)
        fits = seen <= limits.pictures and len(observation.text) <= limits.text
        if fits and largest_area(observation) <= limits.pixels:
            observed = observe(self.host.encode, observation, stop_of(row.tokens[-1], self.host))
            if len(row.tokens) + len(observed) + 1 <= limits.tokens:
                # as they were shown: a world may write over its file, or draw on its picture
                episode.show(replace(observation, media=observed.pictures), observed)
                return
        episode.hear(replace(observation, media=()), ended="room")


def shows_as(one: Episode, other: Episode) -> bool:
    """Do two episodes of the same tokens show the same pictures? Those of worlds of other seeds may have as many tokens."""
    pairs = zip(one.row.insets, other.row.insets, strict=True)
    return one is other or all(torch.equal(x, b.media[name]) for a, b in pairs for name, x in a.media.items())


def stop_of(last: int, host: TextHost) -> str | None:
    """The token that ended a turn whose last one this is; None where it was ended otherwise."""
    return host.tokenizer.convert_ids_to_tokens(last) if last in host.eos_token_ids else None


def chunks_of(episodes: Sequence[Episode], size: int) -> list[Sequence[Episode]]:
    """Episodes, `size` at a time; of several chunks those with the longest rows first."""
    if len(episodes) > size:
        episodes = sorted(episodes, key=lambda one: -(len(one.prompt) + len(one.row.tokens)))
    return [episodes[start : start + size] for start in range(0, len(episodes), size)]


def check_observation(observation: object) -> Observation:
    """The observation; TypeError or ValueError where a world answers something else."""
    if not isinstance(observation, Observation):
        raise TypeError(f"a world answers mmrl.Observation or None, not {type(observation).__name__}")
    if observation.role not in ("user", "tool") or len(observation.facts) > MOST_FACTS:
        said = f"role {shown(observation.role)} and {len(observation.facts)} facts"
        raise ValueError(f"an observation says {said}: its role is user or tool, and it states {MOST_FACTS} facts at most")
    reward = 0.0 if observation.reward is None else observation.reward
    odd = {name: value for name, value in (("reward", reward), *observation.facts.items()) if not is_finite(value)}
    if odd:
        raise ValueError(f"rewards and facts of an observation are finite numbers, and it says {shown(odd)}")
    facts = {name: float(value) for name, value in observation.facts.items()}
    return replace(observation, reward=None if observation.reward is None else float(observation.reward), facts=facts)


def is_finite(value: object) -> bool:
    """Is it a finite number, of Python, numpy or torch?"""
    if isinstance(value, str | bytes):
        return False
    try:
        return math.isfinite(number(value))
    except (TypeError, OverflowError):
        return False


def with_key(observation: Observation) -> Observation:
    """The observation with a name for its state: its own, or a digest of a long one, or of text and pictures."""
    if 0 < len(observation.key) <= LONGEST_KEY:
        return observation
    parts = [observation.key] if observation.key else [observation.text, *map(digest_of_picture, observation.media)]
    return replace(observation, key=hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest())


NAME = "observation"
MARK = "@@turn@@"
"""Stands for the turn before the observation; no template changes it."""


@torch.no_grad()
def observe(encoder: Encoder, observation: Observation, stop: str | None) -> Encoded:
    """The tokens from the end of a turn to the beginning of the next one, as if they were a prompt; positions count from 0.

    Args:
        stop: the token that the model ended its turn with; None: the turn was ended otherwise, and the template's mark is added.

    Raises:
        ValueError: text and pictures do not fit each other or the model, or the template cannot show the observation.
    """
    pictures = pictures_of(observation)
    text = between(encoder, observation, stop)
    opened: Opened = {IMAGE.name: pictures} if pictures else {}
    fed = encoder.feed(text, opened, [picture.size for picture in pictures])
    short = encoder.processor.tokenizer(text, add_special_tokens=False)["input_ids"]
    return replace(fed, prompt_id=NAME, short_ids=tuple(short), pictures=tuple(pictures))


def pictures_of(observation: Observation) -> list[Any]:
    """The pictures of an observation, upright and in RGB; ValueError for anything else, or an empty one."""
    others = sorted({kind_of(media).nouns for media in observation.media} - {IMAGE.nouns})
    if others:
        raise ValueError(f"an observation shows pictures, and this one holds {', '.join(others)}: show their frames as pictures")
    pictures = [open_picture(media, NAME) for media in observation.media]
    empty = [picture.size for picture in pictures if 0 in picture.size]
    if empty:
        raise ValueError(f"an observation holds a picture of {empty[0][0]} x {empty[0][1]} pixels")
    return pictures


def largest_area(observation: Observation) -> int:
    """The pixels of the largest picture, which need not be decoded; what is no picture has none here."""
    areas = [0]
    for media in observation.media:
        try:
            with nullcontext(media) if isinstance(media, Image.Image) else Image.open(str(media)) as picture:
                areas.append(picture.width * picture.height)
        except OSError:
            """`pictures_of` says what is wrong."""
    return max(areas)


def between(encoder: Encoder, observation: Observation, stop: str | None) -> str:
    """The text of an observation with all that the template writes around it; ValueError for one that it cannot write."""
    spelled = (token.content for token in encoder.processor.tokenizer.added_tokens_decoder.values() if token.special)
    if (found := next((token for token in spelled if token in observation.text.replace(IMAGE.marker, "")), None)) is not None:
        # it would pass for the end of a turn, or for a picture
        raise ValueError(f"an observation's text spells the special token {found!r}: leave it out, or write it in other letters")
    if observation.role == "tool" and "tool" not in str(encoder.processor.chat_template):
        raise ValueError(
            "an observation's role is 'tool', which the model's chat template does not know: leave it out, for 'user'"
        )
    shown = messages(Prompt(NAME, observation.text, observation.media), QUESTION)[-1]
    chat = [message("user", "?"), message("assistant", MARK), shown | {"role": observation.role}]
    _, mark, text = encoder.write(chat).rpartition(MARK)
    if not mark:
        raise ValueError("the chat template leaves out what the model said before the latest message: no turn can follow another")
    if stop is None:
        return text
    head, end, rest = text.partition(stop)
    if not end:
        # the model stopped with a token that the template never writes: its own mark is added
        return text
    if head.strip():
        raise ValueError(f"the chat template writes {head!r} between a turn and {stop!r}, which no sampled turn has")
    return rest


def inset_of(observed: Encoded, start: int) -> Inset | None:
    """The observation as a part of a completion, from its token `start` on; None where it shows no picture."""
    return Inset(start, observed.media, observed.positions, observed.type_ids) if observed.media else None
