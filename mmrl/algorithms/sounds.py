"""Readings of samples that are a clip and its sound, drawn as one vector."""

from mmrl.core.types import Reading

SOUND_FROM = Reading("sound_from", "old")
"""The element of a latent at which the sound begins that is drawn beside a clip; 0 where there is none."""
SOUND_ADVANTAGE = Reading("sound_advantage", "scores")
"""The advantage of the sound, beside that of the clip, which is the batch's own."""
