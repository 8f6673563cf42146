"""Tools for shaping: a column is added to scores, or takes the place of a reward."""

from mmrl.core.hooks import PartHooks
from mmrl.core.types import Reading


class PlainShaping(PartHooks):
    """The declarations of a shaping that reads nothing."""

    reads: tuple[Reading, ...] = ()
