"""All suites by name."""

from mmrl.data.suites.charades_sta import CHARADES_STA
from mmrl.data.suites.geneval import GENEVAL
from mmrl.data.suites.refcoco import REFCOCO, REFCOCO_PLUS, REFCOCOG
from mmrl.data.suites.screenspot_v2 import SCREENSPOT_V2
from mmrl.data.suites.suite import Suite

ALL = (REFCOCO, REFCOCO_PLUS, REFCOCOG, SCREENSPOT_V2, CHARADES_STA, GENEVAL)
SUITES: dict[str, Suite] = {suite.name: suite for suite in ALL}
