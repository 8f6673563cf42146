"""Cases trained on the CPU and on the pretend card, by one process; keeps both, and how often the host waited for the card.

python -m tests.processes.run_on_card OUT CASE...
"""

import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from mmrl.app.commands import train as jobs
from mmrl.app.run import context
from mmrl.training.trainer import Trainer
from tests.processes.run_cases import trained
from tests.support.pretend_card import LIBRARY, NAME, RefusedError, traffic


def opened(device: str) -> Any:
    AcceleratorState._reset_state(reset_partial_state=True)
    if device == "cpu":
        return Accelerator(cpu=True)
    os.environ["ACCELERATE_TORCH_DEVICE"] = f"{NAME}:0"
    return Accelerator()


def counted_steps() -> list[dict[str, Counter[str]]]:
    """A list that gets, with every step of a trainer, how often it waited for the card and where."""
    steps: list[dict[str, Counter[str]]] = []
    step = Trainer.step

    def counted(self: Trainer) -> Any:
        traffic.clear()
        metrics = step(self)
        steps.append({"looks": Counter(traffic.looks), "sent": Counter(traffic.sent)})
        return metrics

    Trainer.step = counted  # type: ignore[method-assign] - this process counts its looks
    return steps


def check_card() -> None:
    """The card refuses what a GPU refuses, counts what a GPU waits for, and shares memory as a GPU does."""
    card, row = torch.device(NAME, 0), torch.arange(6.0)
    there = row.view(2, 3).to(card)
    at = (torch.tensor([0]),)
    for wrong in (lambda: there + row[:3], lambda: there.index_put(at, row[:3]), lambda: torch.rand(3, device=card)):
        try:
            wrong()
        except RefusedError:
            continue
        raise AssertionError("a GPU would have refused it")
    gradients = []
    for device in (torch.device("cpu"), card):
        x = row.clone().to(device).requires_grad_()
        y = (x * x).view(2, 3).t()
        y[1] = 3 * y[0]  # a view of a view, in place
        (y * torch.arange(6.0).view(3, 2).to(device)).sum().backward()
        assert x.grad is not None
        gradients.append(x.grad.cpu())
    assert torch.equal(*gradients), gradients
    traffic.clear()
    assert there.t().stride() == (1, 3) and there[there > 1].tolist() == [2, 3, 4, 5]
    assert sum(traffic.looks.values()) == 2, traffic


def written(found: dict[str, dict[str, Counter[str]]]) -> str:
    """The table of looks, as TOML."""
    lines = [
        "# How often a step makes the host wait for a card: `looks` at values, and what is `sent` while it waits. May only fall."
    ]
    for case, kinds in found.items():
        for kind, places in kinds.items():
            lines += ["", f"[{case}.{kind}]", *(f'"{place}" = {count}' for place, count in sorted(places.items()) if count)]
    return "\n".join(lines) + "\n"


def main(out: str, *cases: str) -> None:
    """A case that ends in `=RUN` goes on with that case's run."""
    assert LIBRARY is not None
    torch.set_num_threads(1)
    check_card()
    jobs.announce = lambda run: None
    steps, found = counted_steps(), {}
    for device in ("cpu", NAME):
        accelerator = opened(device)
        context.open_accelerator = lambda own=accelerator: own
        for words in cases:
            case, _, begun = words.partition("=")
            folder = Path(out) / device / case
            if begun:
                shutil.copytree(folder.with_name(begun), folder)
            steps.clear()
            torch.save(trained(case, folder, folder if begun else None), folder.with_suffix(".pt"))
            found[case] = {kind: sum((step[kind] for step in steps), Counter()) for kind in ("looks", "sent")}
    (Path(out) / "looks.toml").write_text(written(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
