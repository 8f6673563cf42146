"""docs/how_to/models.md lists the models whose settings come with mmrl, and the kinds of files that train."""

import json
import re

from mmrl.app.planning.known import files_by_name
from tests.support.blocks import ROOT

PAGE = (ROOT / "docs" / "how_to" / "models.md").read_text(encoding="utf-8")


def test_the_page_lists_the_models_that_come_with_mmrl():
    shown = {
        name: int(count.replace(",", "")) for name, count in re.findall(r"^\| `(\S+/\S+)` \| ([\d,]+) \|$", PAGE, re.MULTILINE)
    }
    known = [json.loads(file.read_text()) for file in files_by_name().values()]
    assert shown == {one["repository"]: one["weights"] for one in known}
