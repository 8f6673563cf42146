"""Dialogues that are given: token by token what an episode of the same turns and answers would be."""

import math
from dataclasses import replace

from mmrl.core.samples import Observation, last_turn
from mmrl.core.types import Dialogue, Prompt
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.prompt.encode import Encoded, name_in_file
from mmrl.policies.text.prompt.templates import QUESTION, Message, messages
from mmrl.policies.text.write.episodes import Episode
from mmrl.policies.text.write.observe import NAME, between, observe
from mmrl.policies.text.write.prefix import fill_given
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
