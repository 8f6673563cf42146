"""Do media, positions, tokens and texts of rollouts fit each other? Recomputed by other ways than those that made them."""

import unicodedata
from collections.abc import Sequence

import torch

from mmrl.core.samples import Segment, turn_ids
from mmrl.core.types import Rollouts, Sample
from mmrl.policies.text.check.audit_positions import check_positions, frames_of
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.prompt.encode import Encoded, check_media, name_in_file
from mmrl.policies.text.trace import TextTrace
from mmrl.policies.text.write.rollout import split_turns
from mmrl.policies.video.input import videos_of

KEPT = 0.9
"""The share of a text's letters that tokens must give back, where a tokenizer does not give back all."""


def audit(trace: TextTrace) -> None:
    """Check that placeholders fit vision features, patch rows their grids, and that no completion holds a media token.

    Raises ValueError, naming the prompt.
    """
    for prompt in trace.prompts:
        try:
            check_media(trace.family, prompt.token_ids, prompt.media)
        except ValueError as error:
            raise ValueError(f"{name_of(prompt)}: {error}") from None
    forbidden = {trace.family.image_token_id, *trace.media_token_ids}
    insets = trace.insets or [()] * len(trace)
    rows = zip(trace.prompt_index.tolist(), trace.tokens, trace.lengths.tolist(), insets, strict=True)
    for place, tokens, length, shown in rows:
        is_text = torch.arange(len(tokens)) < length
        for one in shown:
            is_text[one.start : one.stop] = False
            try:
                check_media(trace.family, tokens[one.start : one.stop], one.media)
            except ValueError as error:
                raise ValueError(f"{name_of(trace.prompts[place])}: from token {one.start} of a completion on, {error}") from None
        found = sorted(forbidden & set(tokens[is_text].tolist()))
        if found:
            raise ValueError(
                f"{name_of(trace.prompts[place])}: a completion holds the media tokens {found}, "
                "which the model would take for a picture: do not train on it"
            )


def audit_rollouts(policy: TextHost, rollouts: Rollouts) -> None:
    """Check all of `audit`, positions, the whole text of every prompt, and that tokens, mask and text of a sample agree.

    Raises ValueError, naming prompt and sample.
    """
    trace = rollouts.trace
    assert isinstance(trace, TextTrace)
    trace = trace.compact()
    audit(trace)
    for prompt in trace.prompts:
        try:
            check_positions(policy, prompt)
            check_text(policy, prompt)
        except ValueError as error:
            raise ValueError(f"{name_of(prompt)}: {error}") from None
    mask = rollouts.action_mask
    for row, (group, sample) in enumerate(rollouts.samples()):
        prompt = trace.prompts[int(trace.prompt_index[row])]
        place = f"{name_of(prompt)}, sample {int(rollouts.sample_ids[row])} of group {group.id}"
        if prompt.prompt_id != group.prompt.id:
            raise ValueError(f"{place}: the row answers prompt {group.prompt.id!r}, but its record shows the model another one")
        tokens = trace.tokens[row, : trace.lengths[row]].tolist()
        check_sample(policy, place, sample, tokens)
        own = [turn >= 0 for turn in turn_ids(sample.segments)]
        if mask[row].tolist() != own + [False] * (mask.shape[1] - len(own)):
            raise ValueError(
                f"{place}: the action mask is True at {int(mask[row].sum())} places, not at the first {len(tokens)}"
                f"{but_for(sample.segments)}, where the completion's tokens stand: masks must not be shifted or padded at their "
                "start"
            )


def name_of(prompt: Encoded) -> str:
    """The prompt by its id, and its place where that is known."""
    return f"prompt {prompt.prompt_id!r}" if prompt.prompt is None else name_in_file(prompt.prompt)


def but_for(segments: Sequence[Segment]) -> str:
    """Which tokens do not train, in words; empty where all do."""
    words = {"forced": "given ones", "environment": "of the environment"}
    others = [f"the {len(one)} {words[one.who]} from place {one.start} on" for one in segments if one.who != "policy"]
    return f" but for {' and '.join(others)}" if others else ""


def check_sample(policy: TextHost, place: str, sample: Sample, tokens: Sequence[int]) -> None:
    """Raise ValueError unless the tokens that train are those of the text that rewards saw."""
    if tuple(tokens) != sample.token_ids:
        raise ValueError(f"{place}: the tokens that train are not those of the sample that was scored: look for mixed-up rows")
    own = [token for one in sample.segments if one.who != "environment" for token in tokens[one.start : one.stop]]
    never = sorted(set(own) & policy.banned)
    if never:
        raise ValueError(f"{place}: the completion holds the tokens {never}, which no completion may hold")
    if sample.role == "injected":
        return
    halves = policy.decode(list(split_turns(tokens, sample.segments, policy.eos_token_ids)))
    for text, seen in zip(halves, (sample.earlier, sample.text or ""), strict=True):
        if text != seen:
            raise ValueError(f"{place}: its tokens read {text[:60]!r}, but rewards saw {seen[:60]!r}")


def check_text(policy: TextHost, encoded: Encoded) -> None:
    """Raise ValueError unless the tokens of the prompt spell its whole chat, in order and to its end."""
    most = policy.config.max_prompt_tokens
    if most is not None and len(encoded) > most:
        raise ValueError(f"it has {len(encoded)} tokens and policy.max_prompt_tokens is {most}")
    if encoded.prompt is None:
        return
    chat = policy.encode.chat(encoded.prompt, [frames_of(policy, video) for video in videos_of(encoded.prompt)])
    whole: str = policy.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    marks = [policy.tokenizer.convert_ids_to_tokens(token) for token in sorted(policy.media_token_ids)]
    for mark in sorted(marks, key=len, reverse=True):
        whole = whole.replace(mark, "\0")
    media = torch.tensor(sorted(policy.media_token_ids))
    told = essence(spelling(policy, encoded.token_ids[~torch.isin(encoded.token_ids, media)].tolist()))
    pieces = [piece for piece in whole.split("\0") if essence(piece)]
    at = 0
    for i, piece in enumerate(pieces):
        wanted = [essence(piece), round_trip(policy, piece)]
        last = i == len(pieces) - 1
        found = [(told.rfind(text) if last else told.find(text, at), text) for text in wanted if text]
        start, text = max(found, key=lambda pair: pair[0])
        if start < at or (last and start + len(text) != len(told)):
            raise ValueError(
                f"its {len(encoded)} tokens do not hold the text {piece.strip()[-40:]!r} where the chat has it: the prompt was "
                "cut or changed; look for truncation in the tokenizer's and the processor's config"
            )
        at = start + len(text)


def spelling(policy: TextHost, tokens: list[int]) -> str:
    """The text of tokens, special ones included."""
    return policy.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def round_trip(policy: TextHost, piece: str) -> str:
    """The piece as this tokenizer gives it back, if that is nearly all of it; else nothing."""
    back = essence(spelling(policy, policy.tokenizer(piece, add_special_tokens=False)["input_ids"]))
    return back if len(back) >= KEPT * len(essence(piece)) else ""


def essence(text: str) -> str:
    """The text without white space, which some tokenizers add or drop, and in one Unicode form."""
    return "".join(unicodedata.normalize("NFKC", text).split())
