"""Completions that are given, or whose beginning is: texts, dialogues, rows of an earlier step, and where an earlier completion
is cut."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mmrl.core.samples import Observation, last_turn, segments_of
from mmrl.core.types import Dialogue, Prefix, Prompt, StoredRow
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.prompt.encode import Encoded, name_in_file
from mmrl.policies.text.prompt.templates import QUESTION, Message, messages
from mmrl.policies.text.read.answer_tokens import reaching
from mmrl.policies.text.write.episodes import Episode
from mmrl.policies.text.write.observe import NAME, between, observe
from mmrl.policies.text.write.rollout import Row, tokens_of


def write_given(row: Row, prompt: Encoded, host: TextHost) -> None:
    """Write down what a row's request gives; raises ValueError for what no completion, or no dialogue, may hold."""
    if isinstance(row.request.written, Dialogue):
        recite(row, row.request.written, prompt, host)
    else:
        fill_given(row, host)


def recite(row: Row, given: Dialogue, prompt: Encoded, host: TextHost) -> None:
    """Write down a dialogue that a row's request gives; its tokens are those of the chat template.

    Raises:
        ValueError: a turn or an answer that no dialogue may hold, or that the template writes otherwise once others follow.
    """
    episode, stop = Episode(row, prompt, len(given.turns)), stop_between(host)
    mark = str(host.tokenizer.convert_ids_to_tokens(stop))
    try:
        refuse_other_rendering(given, mark, host)
        for turn in given.turns:
            own = tokens_of(turn.text, row.request.prompt.id, host.tokenizer, stop, host.banned)
            episode.put(own, [math.nan] * len(own), host)
            if turn.observation is not None:
                observed = observe(host.encode, turn.observation, mark)
                episode.hear(turn.observation, observed.sizes)
                episode.show(observed)
    except (ValueError, OSError) as error:
        raise ValueError(f"{name_in_file(row.request.prompt)}: {error}") from error
    if given.last_only:
        last = last_turn(row.segments)
        row.segments = tuple(
            replace(one, who="forced") if one.stop <= last and one.who == "policy" else one for one in row.segments
        )


def stop_between(host: TextHost) -> int:
    """The token that the chat template ends a turn with, of those that end a completion; the first of them where it has none."""
    text = between(host.encode, Observation("?"), None).lstrip()
    marks = {token: str(host.tokenizer.convert_ids_to_tokens(token)) for token in host.eos_token_ids}
    return next((token for token, mark in marks.items() if text.startswith(mark)), host.eos_token_ids[0])


def refuse_other_rendering(given: Dialogue, mark: str, host: TextHost) -> None:
    """Raise ValueError unless the template of the whole dialogue begins with that of every part of it, as templates that trim
    turns or drop earlier thoughts do not."""
    chat = messages(Prompt(NAME, "?"), QUESTION, host.config.system_prompt)
    fed = host.encode.write(chat)
    parts = list[str]()
    for turn in given.turns:
        chat.append(message("assistant", turn.text))
        fed += turn.text + mark
        parts.append(fed)
        if turn.observation is not None:
            shown = messages(Prompt(NAME, turn.observation.text, turn.observation.media), QUESTION)[-1]
            chat.append(shown | {"role": turn.observation.role})
            fed += between(host.encode, turn.observation, mark)
    whole = host.encode.write(chat)
    wrong = next((number for number, part in enumerate(parts, 1) if not whole.startswith(part)), None)
    if wrong is not None:
        raise ValueError(
            f"the model's chat template writes turn {wrong} of {len(parts)} otherwise once the whole dialogue is there (it trims "
            "turns, or drops earlier thoughts), so that no chat would show what is taught: write the turns as the template does, "
            "or make each question a row with `mmrl data convert FILE OUT --turns each`"
        )


def message(role: str, text: str) -> Message:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def tokens_to_keep(prefix: Prefix, decode: Callable[[list[list[int]]], list[str]], stops: Sequence[int]) -> list[int]:
    """The tokens of the earlier completion that are kept."""
    tokens = list(prefix.token_ids)
    if tokens and tokens[-1] in stops:
        tokens.pop()
    if prefix.before:
        at = decode([tokens])[0].find(prefix.before)
        if at >= 0:
            # the first token that reaches beyond the letters in front of the mark holds its beginning
            tokens = tokens[: max(0, reaching(tokens, lambda some: decode([list(some)])[0], at + 1) - 1)]
    return tokens[: int(prefix.share * len(tokens))]


def tokens_to_force(prefix: Prefix, tokenizer: Any, banned: frozenset[int], prompt_id: str) -> list[int]:
    """The tokens of the text that was not sampled; raises ValueError where it holds one that no completion may hold."""
    if not prefix.forced:
        return []
    tokens: list[int] = tokenizer(prefix.forced, add_special_tokens=False)["input_ids"]
    found = sorted(banned & set(tokens))
    if found:
        raise ValueError(
            f"the text {prefix.forced!r} that is forced for prompt {prompt_id!r} holds the tokens {found}, which no answer may "
            "hold: write it without the model's special tokens"
        )
    return tokens


def fill_given(row: Row, host: TextHost) -> None:
    """Write down the tokens of a row that its request gives; raises ValueError for one that no completion may hold."""
    written, prompt_id = row.request.written, row.request.prompt.id
    if isinstance(written, StoredRow):
        row.restore(written)
    elif isinstance(written, str):
        row.tokens = host.tokens_given(row.request)
        row.segments = segments_of([("policy", len(row.tokens))])
    elif isinstance(written, Prefix):
        kept = tokens_to_keep(written, host.decode, host.eos_token_ids)
        forced = tokens_to_force(written, host.tokenizer, host.banned, prompt_id)
        row.begun = (*kept, *forced)
        row.segments = segments_of([("policy" if written.trained else "forced", len(kept)), ("forced", len(forced))])
