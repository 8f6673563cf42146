"""Plain-language warnings: say early when a run goes wrong."""

import logging
from collections.abc import Mapping

log = logging.getLogger("mmrl")


class Health:
    """Plain-language warnings about a run, each said once until it is over."""

    def __init__(self, max_unparsed: float = 0.2) -> None:
        self.max_unparsed = max_unparsed
        self.active: set[str] = set()

    def look(self, step: int, metrics: Mapping[str, float]) -> list[str]:
        """The sentences that became true with this step."""
        found = dict(self._findings(metrics))
        new = [f"step {step}: {sentence}" for key, sentence in found.items() if key not in self.active]
        self.active = set(found)
        for sentence in new:
            log.warning(sentence)
        return new

    def _findings(self, metrics: Mapping[str, float]) -> list[tuple[str, str]]:
        findings: list[tuple[str, str]] = []
        if metrics.get("reward/no_spread", 0.0) >= 1.0:
            findings.append(
                (
                    "no_spread",
                    "every group's samples got the same reward, so there is nothing to learn from: raise the temperature "
                    "(of pictures, the schedule's level), choose prompts of middling difficulty, or check the reward "
                    "with its own ground truth",
                )
            )
        for name, value in metrics.items():
            if name.endswith("/unparsed") and value > self.max_unparsed:
                findings.append(
                    (
                        name,
                        f"{value:.0%} of the completions could not be parsed by {name.split('/')[1]!r} and scored 0: look at the "
                        "samples; the prompt's answer format and the reward's may differ",
                    )
                )
        if metrics.get("rollout/truncated", 0.0) > 0.5:
            findings.append(
                (
                    "truncated",
                    f"{metrics['rollout/truncated']:.0%} of the completions never stopped and were cut: raise "
                    "policy.sampling.max_new_tokens, or check that the chat template teaches the stop token",
                )
            )
        return findings
