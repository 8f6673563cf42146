"""Lets a torchvision built for CUDA be imported beside a torch for CPUs; put into vLLM's environment by `mmrl engine install`.

Its compiled part needs CUDA's libraries and is left out without a word, and then the import fails at two operators that this part
would have declared. Processors of pictures and clips use none of them, so to declare them is enough.
"""

import sys
from importlib.abc import MetaPathFinder

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold, float dets_scale, int dets_zp,"
    " float scores_scale, int scores_zp) -> Tensor",
)
libraries: list[object] = []
"""Operators go with their library, so it is kept."""


class OperatorDeclarer(MetaPathFinder):
    """Finds no module; the first time that torchvision is looked for, it declares the operators and leaves."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "torchvision" and self in sys.meta_path:
            sys.meta_path.remove(self)
            from torch.library import Library

            library = Library("torchvision", "FRAGMENT")
            for operator in OPERATORS:
                library.define(operator)
            libraries.append(library)


sys.meta_path.insert(0, OperatorDeclarer())
