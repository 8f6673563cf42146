"""All suites by name."""

from mmrl.data.suites.charades_sta import CHARADES_STA
from mmrl.data.suites.dpg_bench import DPG_BENCH
from mmrl.data.suites.geneval import GENEVAL
from mmrl.data.suites.imgedit import IMGEDIT
from mmrl.data.suites.mathvista import MATHVISTA
from mmrl.data.suites.mmmu import MMMU
from mmrl.data.suites.mvbench import MVBENCH
from mmrl.data.suites.refcoco import REFCOCO, REFCOCO_PLUS, REFCOCOG
from mmrl.data.suites.screenspot_v2 import SCREENSPOT_V2
from mmrl.data.suites.suite import Suite
from mmrl.data.suites.unigenbench import UNIGENBENCH
from mmrl.data.suites.vsibench import VSIBENCH

ALL = (
    *(REFCOCO, REFCOCO_PLUS, REFCOCOG, SCREENSPOT_V2, CHARADES_STA, GENEVAL, MVBENCH, VSIBENCH, MMMU, MATHVISTA),
    *(DPG_BENCH, UNIGENBENCH, IMGEDIT),
)
SUITES: dict[str, Suite] = {suite.name: suite for suite in ALL}
