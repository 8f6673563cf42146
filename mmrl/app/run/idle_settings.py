"""Settings that differ from their defaults and cannot act in this run, said before it starts."""

import logging
from collections.abc import Iterator
from dataclasses import fields

from mmrl.app.config.run import EvaluationConfig, RunConfig, TrackerConfig
from mmrl.app.modality.registry import modality_of

log = logging.getLogger("mmrl")


def warn_of_idle_settings(config: RunConfig) -> None:
    """Log one warning for every setting that somebody gave and nothing of this run reads."""
    for sentence in idle_settings(config):
        log.warning(sentence)


def idle_settings(config: RunConfig) -> Iterator[str]:
    """The sentences of `warn_of_idle_settings`."""
    if config.evaluation.data is None:
        usual = EvaluationConfig(**modality_of(config.policy).evaluation_defaults(config.policy))
        unread = [f"evaluation.{name}" for name in changed(config.evaluation, usual) if name != "num_prompts"]
        unread += ["evaluate_every"] if config.evaluate_every else []
        unread += ["checkpoint.keep_best"] if config.checkpoint.keep_best.startswith("eval/") else []
        if unread:
            yield f"{', '.join(unread)}: nothing is evaluated, so this cannot act: set [evaluation.data], or remove it"
    if not config.trackers.names and (unread := changed(config.trackers, TrackerConfig())):
        yield f"{', '.join(f'trackers.{name}' for name in unread)}: no tracker is on, so this cannot act: set trackers.names"


def changed(settings: EvaluationConfig | TrackerConfig, usual: EvaluationConfig | TrackerConfig) -> list[str]:
    """The names of the fields that differ."""
    return [f.name for f in fields(settings) if getattr(settings, f.name) != getattr(usual, f.name)]
