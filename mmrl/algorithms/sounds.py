"""Readings of samples that are a clip and its sound, drawn as one vector, by the names of their quantities."""

from mmrl.core.readings import REWARD, SIGMA

SOUND_FROM = SIGMA._replace(quantity="sound_from")
"""The element of a latent at which the sound begins that is drawn beside a clip; 0 where there is none."""
SOUND_ADVANTAGE = REWARD._replace(quantity="sound_advantage")
"""The advantage of the sound, beside that of the clip, which is the batch's own."""
