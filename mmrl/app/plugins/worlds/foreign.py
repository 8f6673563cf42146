"""Which library an environment is written for: said in `use`, never guessed."""

from mmrl.app.plugins.worlds.gymnasium_style import Gymnasium
from mmrl.app.plugins.worlds.mcp_tools import McpTools
from mmrl.app.plugins.worlds.openenv import OpenEnv
from mmrl.app.plugins.worlds.trl_style import TrlStyle
from mmrl.app.plugins.worlds.verifiers_turns import VerifiersTurns

STYLES = {"gymnasium": Gymnasium, "trl": TrlStyle, "verifiers": VerifiersTurns, "openenv": OpenEnv, "mcp": McpTools}
Style = type[Gymnasium] | type[TrlStyle] | type[VerifiersTurns] | type[OpenEnv] | type[McpTools]


def split(use: str) -> tuple[Style | None, str]:
    """The class that opens worlds of another library, and what it opens; None and the whole for mmrl's own."""
    style, colon, place = use.partition(":")
    return (STYLES[style], place) if colon and style in STYLES else (None, use)
