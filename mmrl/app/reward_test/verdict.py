"""`mmrl reward test`: does a reward tell right from wrong, on data whose truth is known? Which common fault does it look like?"""

import logging
import math
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mmrl.app.config.reward_needs import need_of
from mmrl.app.plugins.resolve import PlugIn
from mmrl.app.reward_test import probes
from mmrl.core.types import Group, Status
from mmrl.policies.shared.holding import holding
from mmrl.serving.reward_client import RemoteReward
from mmrl.serving.reward_server import Served, serving
from mmrl.training.rewards.runner import NamedReward, RewardError, RewardRunner

CLEAR = 0.15
"""Share of a reward's range by which one probe must beat another to mean something."""
FORM = "judges form only"


@dataclass
class Findings:
    """The findings of the probes about one reward."""

    name: str
    probes: Sequence[str]
    values: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    """(prompts, probes), NaN where it did not answer."""
    status: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    seconds: list[float] = field(default_factory=list)
    """Per group."""
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    counted: Callable[[float], float] = float
    """What a score counts in the run's total: transformed, times its weight."""
    needs_answer: bool = True
    """True, too, where the reward does not say what it needs."""
    picklable: bool = True

    def of(self, probe: str) -> Tensor:
        return self.values[:, list(self.probes).index(probe)]

    def mean(self, probe: str) -> float:
        return float(self.of(probe).nanmean()) if probe in self.probes else math.nan

    @property
    def spread(self) -> float:
        """From the lowest to the highest score of all probes."""
        finite = self.values[self.values.isfinite()]
        return float(finite.max() - finite.min()) if len(finite) else 0.0

    def beats(self, first: str, second: str) -> bool:
        """Does one probe score above another by more than chance?"""
        gap = (self.of(first) - self.of(second))[(self.of(first) - self.of(second)).isfinite()]
        if not len(gap):
            return False
        error = float(gap.std(correction=1)) / math.sqrt(len(gap)) if len(gap) > 1 else 0.0
        return float(gap.mean()) > max(2 * error, 1e-6)

    def doubt(self, probe: str) -> str:
        """The words to add where the truth is ahead, but not by more than chance."""
        ahead = self.mean(probes.TRUTH) - self.mean(probe) > CLEAR * self.spread
        return f": not surely more, on {len(self.values)} prompts; try more of them" if ahead else ""


def examine(tried: NamedReward, names: Sequence[str], groups: Sequence[Group]) -> Findings:
    """Score all probes several times and look for what is wrong with the answers."""
    need = need_of(tried.function)
    found = Findings(tried.name, names, counted=tried.counted, needs_answer=need is None or "answer" in need.prompts)
    try:
        pickle.dumps(tried.function)
    except (pickle.PicklingError, TypeError, AttributeError):
        found.picklable = False
    try:
        found.values, found.status, _ = probe_scores(tried, groups)
        # the first time includes loading
        again, _, found.seconds = probe_scores(tried, groups)
        backwards = [replace(group, samples=group.samples[::-1]) for group in reversed(groups)]
        mirrored, _, _ = probe_scores(tried, backwards)
    except RewardError as error:
        found.faults.append(f"it breaks the contract: {error}")
        return found
    if not same(again, found.values):
        found.faults.append("it answers the same samples differently the second time: it is random, or keeps state")
    elif not same(mirrored.flip(0, 1), found.values):
        found.faults.append("its answers depend on the order of prompts or samples: it looks at the first one, or keeps state")
    if bool((found.status == Status.FAILED).all()):
        found.faults.append(always_fails(tried, names, groups[0]))
        return found
    found.faults += silent(found)
    found.faults += look_at_pictures(found) if probes.BLANK in names else look_at_texts(found)
    low, high = extremes(found)
    if low < -1 or high > 1:
        found.warnings.append(
            f"its range is {low:.3g} to {high:.3g}: next to rewards in 0..1 it drowns them out or is drowned out"
        )
    if not found.picklable:
        found.warnings.append("it cannot be pickled, so it cannot run in a separate process")
    return found


def called(tried: NamedReward, max_failed: float) -> RewardRunner:
    """A reward alone, called as in a run, but for remembered answers: two of the same question are compared."""
    return RewardRunner([NamedReward(tried.name, tried.function, 1.0, tried.timeout_s, max_failed, replace(tried.call, cache=0))])


def probe_scores(tried: NamedReward, groups: Sequence[Group]) -> tuple[Tensor, Tensor, list[float]]:
    """Values and status of every probe of every prompt, and seconds per group."""
    tables, seconds = [], []
    with silence(), closing(called(tried, 1.0)) as runner:
        for group in groups:
            start = time.perf_counter()
            tables.append(runner.score([group])[0])
            seconds.append(time.perf_counter() - start)
    return torch.stack([t.values[:, 0] for t in tables]), torch.stack([t.status[:, 0] for t in tables]), seconds


def silence() -> AbstractContextManager[None]:
    """No warning for each group that fails: the findings count them."""
    return holding([logging.getLogger("mmrl.rewards")], "disabled", True)


def always_fails(tried: NamedReward, names: Sequence[str], group: Group) -> str:
    """Which probes make a reward fail that answers for no group, and what it says."""
    culprits, said = [], ""
    with silence(), closing(called(tried, 0.0)) as runner:
        for probe, sample in zip(names, group.samples, strict=True):
            try:
                runner.score([replace(group, samples=(sample,))])
            except RewardError as error:
                culprits.append(probe)
                said = said or str(error).partition("first error: ")[2]
    if not culprits:
        return "it fails on every group, but on none of its samples alone"
    if len(culprits) == len(names):
        return f"it fails on every sample; the first error: {said}"
    kinds = " and ".join(map(repr, culprits))
    return f"it fails on samples of the kind {kinds}, and the rest of their group with them; the first error: {said}"


def silent(found: Findings) -> list[str]:
    """Failures and None, by probe."""
    faults = []
    for i, probe in enumerate(found.probes):
        failed = int((found.status[:, i] == Status.FAILED).sum())
        missing = int((found.status[:, i] == Status.NA).sum())
        if failed:
            why = "it raises, or answers NaN, or too late, or None for some of a prompt's samples, and None is for whole groups"
            faults.append(f"it fails on {failed} of {len(found.status)} samples of the kind {probe!r}: {why}")
        if missing and probe == probes.TRUTH:
            faults.append(f"it answers None for {missing} of {len(found.status)} prompts: it does not apply to this data")
    return faults


def look_at_texts(found: Findings) -> list[str]:
    """The common faults of rewards that read text."""
    if found.spread < 1e-6:
        return ["it gives everything the same score: nothing can be learned from it"]
    truth, clear = found.mean(probes.TRUTH), CLEAR * found.spread
    if all(same(found.of(p), found.of(probes.TRUTH)) for p in (probes.OTHER, probes.RANDOM)):
        form = f"it {FORM}: truth, another prompt's truth and nonsense of the same form score alike"
        if found.needs_answer:
            return spelling_faults(found, truth, clear) or [form]
        found.warnings.append(form)
        return []
    if not found.needs_answer:
        found.warnings += rivals(found, truth)
        return []
    faults = [*rivals(found, truth), *spelling_faults(found, truth, clear)]
    for probe in (probes.EMPTY, probes.MALFORMED):
        if found.mean(probe) > truth - clear:
            faults.append(f"{probe} text scores {found.mean(probe):.3f}, as much as the truth: it rewards saying nothing")
    for probe in (probes.REPEATED, probes.PADDED):
        if found.beats(probe, probes.TRUTH) and found.mean(probe) > truth + 0.02 * found.spread:
            faults.append(f"{probe} scores above the truth ({found.mean(probe):.3f} > {truth:.3f}): it rewards length")
    return faults


def rivals(found: Findings, truth: float) -> list[str]:
    """Wrong answers that the truth does not beat."""
    faults = []
    for probe in (probes.RANDOM, probes.OTHER):
        if found.beats(probe, probes.TRUTH):
            faults.append(f"{probe} scores above the truth ({found.mean(probe):.3f} > {truth:.3f}): is its sign flipped?")
        elif not found.beats(probes.TRUTH, probe):
            faults.append(f"the truth does not beat {probe} ({truth:.3f} against {found.mean(probe):.3f}{found.doubt(probe)})")
    return faults


def spelling_faults(found: Findings, truth: float, clear: float) -> list[str]:
    """Faults that show when the same truth is written in another way."""
    faults = []
    for probe in found.probes:
        if probe.startswith(probes.IN_SPACE) and found.mean(probe) > truth + clear:
            space = probe.removeprefix(probes.IN_SPACE)
            faults.append(
                f"boxes {probe} score {found.mean(probe):.3f}, as the policy writes them {truth:.3f}: it reads the wrong "
                f"coordinate space ({space})"
            )
    if found.mean(probes.SWAPPED) > truth + clear:
        faults.append(
            f"boxes with x and y swapped score {found.mean(probes.SWAPPED):.3f}, the truth {truth:.3f}: it swaps x and y"
        )
    if found.mean(probes.TAGGED) > truth + clear:
        faults.append(
            f"the truth scores {truth:.3f} as it is and {found.mean(probes.TAGGED):.3f} inside <answer> tags: it wants tags that "
            "this policy does not write (answer tag missing)"
        )
    if found.mean(probes.DECIMALS) < truth - clear:
        faults.append(
            f"with decimals it scores {found.mean(probes.DECIMALS):.3f}, without {truth:.3f}: its parser reads integers only"
        )
    return faults


def look_at_pictures(found: Findings) -> list[str]:
    """The common faults of rewards that look at pictures."""
    if found.spread < 1e-6:
        return ["it gives every picture the same score: nothing can be learned from it"]
    if probes.DRAWN in found.probes:
        found.warnings.append(spread_sentence(found, (probes.DRAWN, probes.REDRAWN), (probes.NOISE, probes.MORE_NOISE)))
        return []
    truth, faults = found.mean(probes.TRUTH), []
    for probe in (probes.BLANK, probes.NOISE):
        if not found.beats(probes.TRUTH, probe):
            numbers = f"{truth:.3f} against {found.mean(probe):.3f}{found.doubt(probe)}"
            faults.append(f"the data's own pictures do not beat {probe} ({numbers})")
    swapped = found.mean(probes.PROMPT)
    differs = not math.isclose(float(found.of(probes.PROMPT).sum()), float(found.of(probes.TRUTH).sum()), rel_tol=1e-6)
    if not differs:
        found.warnings.append("it does not look at the prompt: another prompt's picture scores the same")
    elif not found.beats(probes.TRUTH, probes.PROMPT):
        numbers = f"{swapped:.3f} against {truth:.3f}{found.doubt(probes.PROMPT)}"
        faults.append(f"pictures of another prompt score as much ({numbers})")
    if len(found.values) > 1:
        found.warnings.append(spread_sentence(found, (probes.TRUTH,), (probes.NOISE,)))
    return faults


def spread_sentence(found: Findings, pictures: Sequence[str], noise: Sequence[str]) -> str:
    """How far scores of pictures lie apart, next to those of noise."""
    ours, theirs = (
        float(torch.cat([found.of(probe) for probe in probes]).nan_to_num(0.0).std(correction=0)) for probes in (pictures, noise)
    )
    said = f"scores of {'drawn pictures' if len(pictures) > 1 else 'pictures'} spread by {ours:.3g}, of noise by {theirs:.3g}"
    return f"{said}: it tells noise apart better than pictures" if theirs > ours else said


def compare_ranges(all_found: Sequence[Findings]) -> None:
    """Warn of rewards whose scale hides the others'."""
    for found in all_found:
        low, high = extremes(found)
        others = [other for other in all_found if other is not found and reach(other)]
        if others and reach(found) > 2 and all(reach(other) <= 1.01 for other in others):
            found.faults.append(
                f"its range is {low:.3g} to {high:.3g}, weighted, while the other rewards stay within 1: lower its weight, or it "
                "drowns them"
            )


def reach(found: Findings) -> float:
    """From the lowest to the highest that a reward counts in the total."""
    low, high = extremes(found)
    return high - low


def difference_when_served(tried: NamedReward, groups: Sequence[Group]) -> str | None:
    """The difference that calling the reward through a server makes; None if it makes none."""
    here, _, _ = probe_scores(tried, groups)
    function: PlugIn = tried.function
    with serving({tried.name: Served(tried.name, function, "")}) as base:
        there, _, _ = probe_scores(replace(tried, function=RemoteReward(f"{base}/{tried.name}")), groups)
    return None if same(here, there) else f"served scores differ from local ones by up to {float((here - there).abs().max()):.3g}"


def extremes(found: Findings) -> tuple[float, float]:
    """The lowest and the highest that a reward counts in the total."""
    finite = found.values[found.values.isfinite()]
    ends = [found.counted(float(end)) for end in (finite.min(), finite.max())] if len(finite) else [0.0]
    return min(ends), max(ends)


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
