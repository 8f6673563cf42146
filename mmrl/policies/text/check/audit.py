"""Do media, positions, tokens, texts and turns of rollouts fit each other? Recomputed in other ways than they were made.

Positions are counted token by token: slow, and independent of how the model's code does it.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

import torch

from mmrl.core.episodes import Worlds
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.samples import Observation, Segment, turn_ids
from mmrl.core.types import Rollouts, Sample, Video
from mmrl.policies.shared.pictures import digest_of_picture
from mmrl.policies.text.families.qwen_vl import QwenVL
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.prompt.encode import Encoded, check_media, name_in_file, videos_of
from mmrl.policies.text.trace import Inset, TextTrace, append
from mmrl.policies.text.write.episodes import check_observation, inset_of, observe, pictures_of, stop_of, with_key
from mmrl.policies.text.write.rollout import split_turns
from mmrl.policies.video.decode import Frames, fetch
from mmrl.policies.video.input import without_changes
from mmrl.runtime.blame import UnavailableError, about, describe, is_from_outside

KEPT = 0.9
"""The share of a text's letters that tokens must give back, where a tokenizer does not give back all."""
SECONDS = re.compile(r"<([\d.]+) seconds><\|vision_start\|>")
GLM_CLIP = re.compile(r"<\|begin_of_video\|>(.*?)<\|end_of_video\|>", re.DOTALL)
GLM_SECONDS = re.compile(r"<\|end_of_image\|>(\d+(?:\.\d seconds)?)")
TIMED_BY_TEXT = ("qwen3_vl", "qwen3_5", "glm")
"""Kinds of models that read the time of a frame as text."""
ONE_DIGIT = 0.0501
"""Seconds that rounding to one digit takes or adds."""
CLOSE = 1e-6
Place = tuple[float, float, float]
ROUNDED = 1e-3
"""A log-probability above this is wrong: rounding alone does not lift one that far above 0."""


def audit(trace: TextTrace) -> None:
    """Check that placeholders fit vision features, patch rows their grids, and that no completion holds a media token.

    Raises ValueError, naming the prompt.
    """
    for prompt in trace.prompts:
        with about(name_of(prompt)):
            check_media(trace.family, prompt.token_ids, prompt.media)
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
        with about(name_of(prompt)):
            check_positions(policy, prompt)
            check_text(policy, prompt)
    mask = rollouts.action_mask
    for row, (group, sample) in enumerate(rollouts.samples()):
        prompt = trace.prompts[int(trace.prompt_index[row])]
        place = f"{name_of(prompt)}, sample {int(rollouts.sample_ids[row])} of group {group.id}"
        with about(place):
            if prompt.prompt_id != group.prompt.id:
                raise ValueError(f"the row answers prompt {group.prompt.id!r}, but its record shows the model another one")
            tokens = trace.tokens[row, : trace.lengths[row]].tolist()
            check_sample(policy, sample, tokens)
            own = [turn >= 0 for turn in turn_ids(sample.segments)]
            if mask[row].tolist() != own + [False] * (mask.shape[1] - len(own)):
                raise ValueError(
                    f"the action mask is True at {int(mask[row].sum())} places, not at the first {len(tokens)}"
                    f"{but_for(sample.segments)}, where the completion's tokens stand: masks must not be shifted or padded at "
                    "their start"
                )
            check_noted(rollouts, trace, row)
            if sample.turns:
                insets = trace.insets[row] if trace.insets else ()
                check_turns(policy, sample, insets)
                check_places(policy, prompt, tokens, insets)


def check_places(policy: TextHost, prompt: Encoded, tokens: Sequence[int], insets: Sequence[Inset]) -> None:
    """Raise ValueError unless every token of an episode stands where the model was taught to expect it."""
    if prompt.prompt is not None and videos_of(prompt.prompt):
        return
    whole = append(prompt, tokens, insets)
    grids = [one["image_grid_thw"] for one in (prompt.media, *whole.more) if "image_grid_thw" in one]
    check_positions(policy, replace(whole, media={"image_grid_thw": torch.cat(grids)} if grids else {}))


def check_noted(rollouts: Rollouts, trace: TextTrace, row: int) -> None:
    """Raise ValueError unless the sampler noted a log-probability of every token that it drew."""
    noted = rollouts.recorded.get(ROLLOUT_LOGPROBS)
    if noted is None:
        return
    drawn = rollouts.action_mask[row] & (torch.arange(noted.shape[1]) >= trace.noted_from[row])
    wrong = (drawn & ~(noted[row].isfinite() & (noted[row] <= ROUNDED))).nonzero()[:, 0]
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(
            f"the noted log-probability of token {at} is {float(noted[row, at]):g}, which is none, although it was "
            "drawn: look for weights that are infinite or NaN, and for code that changes the record"
        )


def name_of(prompt: Encoded) -> str:
    """The prompt by its id, and its place where that is known."""
    return f"prompt {prompt.prompt_id!r}" if prompt.prompt is None else name_in_file(prompt.prompt)


def but_for(segments: Sequence[Segment]) -> str:
    """Which tokens do not train, in words; empty where all do."""
    words = {"forced": "given ones", "environment": "of the environment"}
    others = [f"the {len(one)} {words[one.who]} from place {one.start} on" for one in segments if one.who != "policy"]
    return f" but for {' and '.join(others)}" if others else ""


def check_sample(policy: TextHost, sample: Sample, tokens: Sequence[int]) -> None:
    """Raise ValueError unless the tokens that train are those of the text that rewards saw."""
    if tuple(tokens) != sample.token_ids:
        raise ValueError("the tokens that train are not those of the sample that was scored: look for mixed-up rows")
    own = [token for one in sample.segments if one.who != "environment" for token in tokens[one.start : one.stop]]
    never = sorted(set(own) & policy.banned)
    if never:
        raise ValueError(f"the completion holds the tokens {never}, which no completion may hold")
    if sample.role == "injected":
        return
    halves = policy.decode(list(split_turns(tokens, sample.segments, policy.eos_token_ids)))
    for text, seen in zip(halves, (sample.earlier, sample.text or ""), strict=True):
        if text != seen:
            raise ValueError(f"its tokens read {text[:60]!r}, but rewards saw {seen[:60]!r}")


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
    spelled = essence(spelling(policy, encoded.token_ids[~torch.isin(encoded.token_ids, media)].tolist()))
    pieces = [piece for piece in whole.split("\0") if essence(piece)]
    at = 0
    for i, piece in enumerate(pieces):
        wanted = [essence(piece), round_trip(policy, piece)]
        last = i == len(pieces) - 1
        found = [(spelled.rfind(text) if last else spelled.find(text, at), text) for text in wanted if text]
        start, text = max(found, key=lambda pair: pair[0])
        if start < at or (last and start + len(text) != len(spelled)):
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


def check_positions(policy: TextHost, encoded: Encoded) -> None:
    """Raise ValueError unless every token stands where the model was taught to expect it."""
    positions = encoded.positions
    if positions.shape[1] != len(encoded.token_ids):
        raise ValueError(f"it has {len(encoded.token_ids)} tokens and positions for {positions.shape[1]}")
    if encoded.type_ids is not None and len(encoded.type_ids) != len(encoded.token_ids):
        raise ValueError(f"it has {len(encoded.token_ids)} tokens and token types for {len(encoded.type_ids)}")
    family = policy.family
    if isinstance(family, QwenVL):
        clips = [frames_of(policy, video) for video in videos_of(encoded.prompt)] if encoded.prompt is not None else []
        check_qwen(policy, family, encoded, clips)
        return
    rising = torch.arange(len(encoded.token_ids))
    if len(positions) == 1 and not torch.equal(positions[0], rising):
        at = int((positions[0] != rising).nonzero()[0, 0])
        raise ValueError(f"token {at} stands at position {int(positions[0, at])} instead of {at}")
    text = rising if encoded.type_ids is None else rising[encoded.type_ids == 0]
    if bool((positions[:, text].diff(dim=1) < 0).any()):
        raise ValueError("positions of its text run backwards")


def frames_of(policy: TextHost, video: Video) -> Frames:
    """The frames of a clip, from the cache or decoded again here, which takes nothing away from the workers."""
    videos, own = policy.encode.videos, without_changes(video)
    return videos.cached(own) or fetch(own, videos.rule, False)


def check_qwen(policy: TextHost, family: QwenVL, encoded: Encoded, clips: Sequence[Frames]) -> None:
    config = family.config
    types = torch.tensor(kinds_of(family, encoded.token_ids.tolist()))
    given = types if encoded.type_ids is None and "audio" in family.sees else encoded.type_ids
    if given is None or not torch.equal(given.long(), types):
        raise ValueError("its token types do not mark exactly the placeholders of pictures (1) and clips (2)")
    if config.model_type.startswith(TIMED_BY_TEXT):
        check_times_in_text(policy, family, encoded, clips)
    expected = torch.tensor(list(walk(family, encoded, clips)), dtype=torch.float64).T
    if expected.shape != encoded.positions.shape:
        raise ValueError(f"its positions are {tuple(encoded.positions.shape)} numbers instead of {tuple(expected.shape)}")
    wrong = (~encoded.positions.double().isclose(expected, rtol=CLOSE, atol=CLOSE)).any(0).nonzero()[:, 0]
    if len(wrong):
        at = int(wrong[0])
        what = {0: "text", 1: "a picture", 2: "a clip"}[int(types[at])]
        here, place = (tuple(one[:, at].tolist()) for one in (encoded.positions, expected.to(encoded.positions)))
        raise ValueError(
            f"{len(wrong)} of its {len(encoded)} tokens stand at wrong positions; the first, token {at} of {what}, at (time, "
            f"height, width) = {here} instead of {place}"
        )


def kinds_of(family: QwenVL, tokens: Sequence[int]) -> list[int]:
    """0 text, 1 picture, 2 clip, token by token."""
    config, found, inside = family.config, list[int](), False
    for token in tokens:
        # GLM writes frames with the placeholder of pictures, between marks of its own.
        inside = (
            token == config.video_start_token_id or (inside and token != config.video_end_token_id) if is_glm(family) else False
        )
        found.append({config.image_token_id: 2 if inside else 1, config.video_token_id: 2}.get(token, 0))
    return found


def is_glm(family: QwenVL) -> bool:
    return family.config.model_type.startswith("glm")


def check_times_in_text(policy: TextHost, family: QwenVL, encoded: Encoded, clips: Sequence[Frames]) -> None:
    """Qwen3-VL reads the time in the middle of every pair of frames, GLM that of the first: 4.6V to a digit, 4.1V whole."""
    text = policy.tokenizer.decode(encoded.token_ids.tolist())
    if is_glm(family):
        shown = [time for clip in GLM_CLIP.findall(text) for time in GLM_SECONDS.findall(clip)]
        said, whole = [float(time.removesuffix(" seconds")) for time in shown], not any("." in time for time in shown)
        pairs = [float(int(time)) if whole else time for clip in clips for time in clip.times[::2]]
    else:
        said = [float(x) for x in SECONDS.findall(text)]
        pairs = [(a + b) / 2 for clip in clips for a, b in zip(clip.times[::2], clip.times[1::2], strict=True)]
    if len(said) != len(pairs) or any(abs(a - b) > ONE_DIGIT for a, b in zip(said, pairs, strict=True)):
        raise ValueError(f"its clips should show frames at {said} seconds, but they were taken at {[round(x, 2) for x in pairs]}")


def walk(family: QwenVL, encoded: Encoded, clips: Sequence[Frames]) -> Iterator[Place]:
    """Positions (time, height, width) of the tokens, one after the other (M-RoPE, arXiv:2409.12191).

    Text counts on. A picture or clip spreads over time, height and width from there; what follows begins after the largest.
    """
    config = family.config
    merge, kinds = config.vision_config.spatial_merge_size, kinds_of(family, encoded.token_ids.tolist())
    grids = {1: pictures(encoded), 2: clips_of(family, encoded, clips)}
    here: float = 0
    i = 0
    while i < len(kinds):
        if kinds[i] not in grids:
            yield here, here, here
            here, i = here + 1, i + 1
            continue
        ticks, height, width = next(grids[kinds[i]])
        height, width = height // merge, width // merge
        for tick in ticks:
            for row in range(height):
                for column in range(width):
                    yield here + tick, here + row, here + column
        here, i = here + 1 + max(ticks[-1], height - 1, width - 1), i + len(ticks) * height * width


def pictures(encoded: Encoded) -> Iterator[tuple[list[float], int, int]]:
    grids = encoded.media.get("image_grid_thw")
    for t, h, w in [] if grids is None else grids.tolist():
        yield list(range(t)), h, w


def clips_of(family: QwenVL, encoded: Encoded, clips: Sequence[Frames]) -> Iterator[tuple[list[float], int, int]]:
    """The moment of each pair of frames, in positions from the first one, and its patches."""
    if is_glm(family):
        yield from pictures(encoded)
        return
    grids, kind = encoded.media.get("video_grid_thw"), family.config.model_type
    for (t, h, w), clip in zip([] if grids is None else grids.tolist(), clips, strict=True):
        if kind.startswith(TIMED_BY_TEXT):
            for _ in range(t):
                yield [0], h, w
        elif kind in ("qwen2_5_vl", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"):
            rate = getattr(family.config, "position_id_per_seconds", None) or family.config.vision_config.tokens_per_second
            pairs = range(0, len(clip.times), family.frame_multiple)
            even = all(abs(x - clip.times[0] - k * clip.step) <= 1 / clip.fps + CLOSE for k, x in enumerate(clip.times))
            moments = [k * clip.step * (1 + CLOSE) if even else clip.times[k] - clip.times[0] + CLOSE / rate for k in pairs]
            yield [rate * moment if kind.startswith("qwen3") else int(rate * moment) for moment in moments], h, w
        else:
            yield list(range(t)), h, w


def observe_again(policy: TextHost, sample: Sample) -> Iterator[tuple[int, Encoded]]:
    """Where each observation that was shown begins among the sample's tokens, and what it is encoded afresh.

    Raises:
        ValueError: a turn that another one follows has no observation, or one that cannot be encoded.
    """
    tokens = sample.token_ids or ()
    for turn in sample.turns[:-1]:
        if turn.observation is None:
            raise ValueError(f"its turn {turn.text[:40]!r} was not answered, and another one follows")
        yield turn.span[1], observe(policy.encode, turn.observation, stop_of(tokens[turn.span[1] - 1], policy))


def check_worlds(worlds: Worlds, rollouts: Rollouts) -> None:
    """Raise ValueError unless worlds, opened again with the same seeds, answer the same turns as they did.

    Broken worlds and earlier samples are left out, and so are all where the environment does not repeat.
    """
    trace = rollouts.trace
    assert isinstance(trace, TextTrace)
    if not worlds.repeats or not trace.world_seeds:
        return
    asked = [
        (worlds.open(group.prompt, seed), group.prompt, sample)
        for seed, (group, sample) in zip(trace.world_seeds, rollouts.samples(), strict=True)
        if seed is not None and sample.turns and sample.role == "policy" and sample.ended != "error"
    ]
    try:
        for turn in range(max((len(sample.turns) for _, _, sample in asked), default=0)):
            live = [one for one in asked if turn < len(one[2].turns) - (one[2].ended == "length")]
            answers = [worlds.step(number, replace(sample.turns[turn], observation=None)) for number, _, sample in live]
            for (_, prompt, sample), answer in zip(live, answers, strict=True):
                compare(f"prompt {prompt.id!r}, turn {turn + 1}", sample, turn, answer)
    finally:
        for number, _, _ in asked:
            worlds.close(number)


def compare(place: str, sample: Sample, turn: int, answer: Future[Observation | None]) -> None:
    """Raise ValueError unless a world answers a turn as it was answered before."""
    before = sample.turns[turn].observation
    try:
        again = answer.result()
        again = None if again is None else with_key(check_observation(again))
    except UnavailableError:
        raise
    except BaseException as error:
        if is_from_outside(error):
            raise
        raise ValueError(f"{place}: its world, opened again with the same seed, broke: {describe(error)}") from error
    if content_of(before, sample, turn) != content_of(again, sample, turn):
        raise ValueError(
            f"{place}: its world, opened again with the same seed, answers {words_of(again)}, and the episode was shown "
            f"{words_of(before)}: draw from the seed alone and let worlds share nothing, or give the environment the attribute "
            "repeats = False"
        )


def content_of(observation: Observation | None, sample: Sample, turn: int) -> object:
    """All that an observation says, to be compared; what had no room in the episode is left out."""
    if observation is None:
        return None
    was_shown, dropped = turn < len(sample.turns) - 1, sample.ended == "room"
    media = pictures_of(observation) if was_shown else () if dropped else observation.media
    pictures = tuple(map(digest_of_picture, media))
    facts = dict(observation.facts)
    return observation.text, observation.role, observation.reward, observation.done, observation.key, facts, pictures


def words_of(observation: Observation | None) -> str:
    """An observation in a few words."""
    return "nothing" if observation is None else f"{observation.text[:60]!r} with {len(observation.media)} pictures"


def check_turns(policy: TextHost, sample: Sample, insets: Sequence[Inset]) -> None:
    """Raise ValueError unless the turns are the tokens that the policy wrote, and observations what stands between them."""
    tokens = sample.token_ids or ()
    spans = [turn.span for turn in sample.turns]
    own = [(one.start, one.stop) for one in sample.segments if one.who == "policy"]
    if spans != own:
        raise ValueError(f"its turns are the tokens {spans}, and the policy wrote {own}")
    ends = [stop - (tokens[stop - 1] in policy.eos_token_ids) for _, stop in spans]
    texts = policy.decode([list(tokens[start:end]) for (start, _), end in zip(spans, ends, strict=True)])
    for turn, text in zip(sample.turns, texts, strict=True):
        if turn.text != text:
            raise ValueError(f"the tokens of a turn read {text[:60]!r}, but rewards saw {turn.text[:60]!r}")
    fresh = list(observe_again(policy, sample))
    starts = [start for start, _ in spans[1:]]
    for number, ((start, observed), stop) in enumerate(zip(fresh, starts, strict=True), start=1):
        if observed.token_ids.tolist() != list(tokens[start:stop]):
            raise ValueError(
                f"the {stop - start} tokens between its turns {number} and {number + 1} are not the {len(observed)} of the "
                "observation encoded afresh: look for code that changes observations or their pictures"
            )
    proper = [inset for start, observed in fresh if (inset := inset_of(observed, start)) is not None]
    if len(proper) != len(insets) or not all(map(same, proper, insets)):
        raise ValueError("the pictures of its observations, or their positions, are not those that are encoded afresh")


def same(a: Inset, b: Inset) -> bool:
    """Do two insets show the same pixels at the same places?"""
    if a.start != b.start or a.media.keys() != b.media.keys() or not torch.equal(a.positions, b.positions):
        return False
    types = (one.type_ids if one.type_ids is not None else torch.zeros(1) for one in (a, b))
    return torch.equal(*types) and all(torch.equal(x, b.media[name]) for name, x in a.media.items())
