"""Completions that are given, or whose beginning is: texts, dialogues, rows of an earlier step, and where an earlier completion
is cut."""

import math

from mmrl.core.samples import Observation
from mmrl.core.types import Given, Piece, Prompt
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.prompt.encode import Encoded, name_in_file
from mmrl.policies.text.prompt.templates import QUESTION, message, messages
from mmrl.policies.text.read.looks import reaching
from mmrl.policies.text.write.episodes import NAME, Episode, between, observe, stop_of
from mmrl.policies.text.write.rollout import CompletionRow, tokens_of


def write_given(row: CompletionRow, given: Given, prompt: Encoded, host: TextHost) -> None:
    """Write down what a row's request gives; raises ValueError for what no completion, or no dialogue, may hold.

    The turns that an episode goes on from are left to it.
    """
    if given.world is not None:
        return
    if given.turns:
        (recall if given.is_row else recite)(row, given, prompt, host)
        return
    for piece in given.pieces:
        if given.whole:
            tokens = piece.tokens if piece.text is None else host.tokens_given(piece.text, row.request.prompt)
        else:
            tokens = tokens_to_keep(piece, host) if piece.text is None else tokens_to_force(piece.text, row, host)
        row.put(tokens, piece.logprobs, piece.who)
    row.stopped, row.noted_from = not given.truncated, sum(map(math.isnan, row.logprobs)) if given.whole else len(row.tokens)


def recite(row: CompletionRow, given: Given, prompt: Encoded, host: TextHost) -> None:
    """Write down a dialogue that a row's request gives; its tokens are those of the chat template.

    Raises:
        ValueError: a turn or an answer that no dialogue may hold, or that the template writes otherwise once others follow.
    """
    episode, ends = Episode(row, prompt, len(given.turns)), between(host.encode, Observation("?"), None).lstrip()
    marks = {token: str(host.tokenizer.convert_ids_to_tokens(token)) for token in host.eos_token_ids}
    # the one that the chat template ends a turn with; the first of them where it has none
    stop = next((token for token, mark in marks.items() if ends.startswith(mark)), host.eos_token_ids[0])
    mark = marks[stop]
    try:
        refuse_other_rendering(given, mark, host)
        for piece, turn in zip(given.pieces, given.turns, strict=True):
            tokens = tokens_of(turn.text, row.request.prompt.id, host.tokenizer, stop, host.banned)
            episode.put(Piece(tuple(tokens), who=piece.who), host)
            if turn.observation is not None:
                episode.show(turn.observation, observe(host.encode, turn.observation, mark))
    except (ValueError, OSError) as error:
        raise ValueError(f"{name_in_file(row.request.prompt)}: {error}") from error


def recall(row: CompletionRow, given: Given, prompt: Encoded, host: TextHost) -> None:
    """Write down an episode of an earlier step: its tokens as they stand, and its pictures as the model is shown them.

    Raises:
        ValueError: what a world showed is made into other tokens now.
    """
    episode = Episode(row, prompt, len(given.turns))
    own, heard = ([one for one in given.pieces if (one.who == "policy") == is_own] for is_own in (True, False))
    for number, (turn, said, shown) in enumerate(zip(given.turns, own, [*heard, None], strict=True), start=1):
        episode.put(said, host)
        if turn.observation is None:
            continue
        if shown is None:
            episode.hear(turn.observation, turn.media_sizes)
            continue
        observed = observe(host.encode, turn.observation, stop_of(row.tokens[-1], host))
        if tuple(observed.token_ids.tolist()) != shown.tokens:
            raise ValueError(
                f"prompt {row.request.prompt.id!r}: what its world showed after turn {number} of an episode of an earlier step "
                f"was {len(shown.tokens)} tokens then and is {len(observed)} others now: resume with the saved run's tokenizer, "
                "chat template and policy.max_pixels, or start a new run from the checkpoint's weights"
            )
        episode.show(turn.observation, observed)
    row.ended, row.stopped = given.ended, not given.truncated


def refuse_other_rendering(given: Given, mark: str, host: TextHost) -> None:
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


def tokens_to_keep(piece: Piece, host: TextHost) -> list[int]:
    """The tokens of an earlier completion that are kept, without the one that ended it."""
    tokens = list(piece.tokens)
    if tokens and tokens[-1] in host.eos_token_ids:
        tokens.pop()
    if piece.before:
        at = host.decode([tokens])[0].find(piece.before)
        if at >= 0:
            # the first token that reaches beyond the letters in front of the mark holds its beginning
            tokens = tokens[: max(0, reaching(tokens, lambda some: host.decode([list(some)])[0], at + 1) - 1)]
    return tokens[: int(piece.share * len(tokens))]


def tokens_to_force(text: str, row: CompletionRow, host: TextHost) -> list[int]:
    """The tokens of a text that was not sampled; raises ValueError where it holds one that no completion may hold."""
    tokens: list[int] = host.tokenizer(text, add_special_tokens=False)["input_ids"]
    found = sorted(host.banned & set(tokens))
    if found:
        raise ValueError(
            f"the text {text!r} that is forced for prompt {row.request.prompt.id!r} holds the tokens {found}, which no answer "
            "may hold: write it without the model's special tokens"
        )
    return tokens
