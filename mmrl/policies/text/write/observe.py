"""A world's answer as the tokens between two turns: the difference of two renderings of the chat template.

Nothing that the model wrote is rendered again. Templates change earlier turns (they trim them, or drop their thoughts), and text
is not always tokenized as it was sampled.
"""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from PIL import Image

from mmrl.core.samples import IMAGE, Observation, kind_of
from mmrl.core.types import Prompt
from mmrl.policies.shared.pictures import open_picture
from mmrl.policies.text.prompt.encode import Encoded, Encoder, Opened
from mmrl.policies.text.prompt.templates import QUESTION, message, messages
from mmrl.policies.text.trace import Inset

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
