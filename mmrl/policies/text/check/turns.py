"""Do the turns of an episode, what was answered between them, and the tokens that train fit each other?"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

import torch

from mmrl.core.episodes import Worlds
from mmrl.core.samples import Observation
from mmrl.core.types import Rollouts, Sample
from mmrl.policies.shared.pictures import digest_of_picture
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.trace import Inset, TextTrace
from mmrl.policies.text.write.episodes import check_observation, stop_of, with_key
from mmrl.policies.text.write.observe import inset_of, observe, pictures_of
from mmrl.runtime.blame import UnavailableError, describe, is_from_outside


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

    Broken worlds are left out, and so are all where the environment does not repeat.
    """
    trace = rollouts.trace
    assert isinstance(trace, TextTrace)
    if not worlds.repeats or not trace.world_seeds:
        return
    rows = [(seed, group.prompt, sample) for seed, (group, sample) in zip(trace.world_seeds, rollouts.samples(), strict=True)]
    asked = [
        (worlds.open(prompt, seed), prompt, sample) for seed, prompt, sample in rows if seed is not None and is_asked(sample)
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


def is_asked(sample: Sample) -> bool:
    """Was it sampled now, with a world that did not break?"""
    return bool(sample.turns) and sample.role == "policy" and sample.ended != "error"


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
