"""Do the turns of an episode, what was answered between them, and the tokens that train fit each other?"""

from collections.abc import Iterator, Sequence

import torch

from mmrl.core.types import Sample
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.trace import Inset
from mmrl.policies.text.write.observe import inset_of, observe


def observe_again(policy: TextHost, sample: Sample) -> Iterator[tuple[int, Encoded]]:
    """Where each observation that was shown begins among the sample's tokens, and what it is encoded afresh.

    Raises:
        ValueError: a turn that another one follows has no observation, or one that cannot be encoded.
    """
    tokens = sample.token_ids or ()
    for turn in sample.turns[:-1]:
        if turn.observation is None:
            raise ValueError(f"its turn {turn.text[:40]!r} was not answered, and another one follows")
        last = tokens[turn.span[1] - 1]
        stop = policy.tokenizer.convert_ids_to_tokens(last) if last in policy.eos_token_ids else None
        yield turn.span[1], observe(policy.encode, turn.observation, stop)


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
