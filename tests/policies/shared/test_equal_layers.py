"""Layers that stand for equal ones: the counted bytes are those of networks that are gone through whole."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmrl.app.config import run as configs
from mmrl.app.fit.plan import prompts_of
from mmrl.app.planning.count_calls import CountedRun
from mmrl.app.run.build import with_local_model
from mmrl.lab.tiny.flow.pipelines import PIPELINES
from mmrl.lab.tiny.text.vlms import FAMILIES
from mmrl.policies.flow import dry_run as flow
from mmrl.policies.shared import equal_layers
from mmrl.policies.shared.call_log import make_gradients
from mmrl.policies.shared.equal_layers import equal_layers as found_in
from mmrl.policies.shared.equal_layers import share_layers
from mmrl.policies.shared.meta_models import LiveBytes, fake_weights
from mmrl.policies.text import dry_run as text


class Layer(nn.Module):
    def __init__(self, width: int, layer_idx: int, slope: float = 1.0) -> None:
        super().__init__()
        self.layer_idx, self.slope = layer_idx, slope
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, seen: list[Tensor] | None = None) -> Tensor:
        inner = self.slope * self.up(self.norm(x))
        for _ in range(4):
            inner = nn.functional.gelu(inner)
        # room that the way back has no use for
        largest = inner.detach().repeat(1, 6).max()
        return x + self.down(inner) + 0 * largest


class Network(nn.Module):
    def __init__(self, checkpointed: bool, width: int = 128) -> None:
        super().__init__()
        self.checkpointed, self.begin, self.end = checkpointed, nn.Linear(width, width), nn.Linear(width, 9 * width)
        self.layers = nn.ModuleList(Layer(width, i) for i in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.begin(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return self.end(x)


def network(checkpointed: bool = False) -> Network:
    with torch.device("meta"):
        made = Network(checkpointed)
    fake_weights(made)
    make_gradients(made)
    return made


@pytest.fixture
def gone_through(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The layers that were measured."""
    measured: list[object] = []
    own = equal_layers.measure

    def measure(*args: Any) -> Any:
        measured.append(args[0])
        return own(*args)

    monkeypatch.setattr(equal_layers, "measure", measure)
    return measured


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("taught", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_bytes_are_those_of_the_whole_network(checkpointed: bool, taught: bool, half: bool, gone_through: list[object]):
    def peak(shared: bool) -> int:
        made, x = network(checkpointed), torch.zeros(64, 128)
        with share_layers(made) if shared else nullcontext(), LiveBytes() as live, torch.set_grad_enabled(taught):
            with torch.autocast("cpu", torch.bfloat16, half):
                end = made(x).sum()
            if taught:
                end.backward()
        return live.peak

    assert peak(shared=True) == pytest.approx(peak(shared=False), rel=0.005)
    assert len(gone_through) == 1


def test_layers_are_as_before_afterwards():
    made = network()
    own = made.layers[1].forward = partial(nn.Identity.forward, made.layers[1])  # type: ignore[arg-type] - any callable
    with share_layers(made):
        assert "forward" in vars(made.layers[0]) and made.layers[1].forward is not own
    assert "forward" not in vars(made.layers[0]) and made.layers[1].forward is own


def test_layers_of_other_settings_widths_and_training_are_other_kinds(monkeypatch: pytest.MonkeyPatch):
    stack = nn.ModuleList([*(Layer(8, i) for i in range(3)), Layer(8, 3, slope=0.5), Layer(16, 4), Layer(8, 5)])
    for weight in stack[5].parameters():
        weight.requires_grad_(False)
    assert found_in(stack) == [list(stack[:3])]
    monkeypatch.setattr(equal_layers, "LEAST", 4)
    assert found_in(stack) == []


def test_a_layer_that_gives_what_it_was_given_and_one_with_a_cache_are_gone_through(monkeypatch: pytest.MonkeyPatch):
    made, x = network(), network().begin(torch.zeros(4, 128))

    class Cache:
        filled = 0

        def update(self) -> None:
            self.filled += 1

    def fill(self: nn.Module, x: Tensor, cache: Cache | None = None) -> Tensor:
        if cache is not None:
            cache.update()
        return x

    monkeypatch.setattr(Layer, "forward", fill)
    with share_layers(made):
        assert all(layer(x) is x for layer in made.layers)
        cache = Cache()
        for layer in made.layers:
            layer(x, cache)
    assert cache.filled == 6


@dataclass
class Layout:
    """Counts the layers that look at it."""

    obeyed: int = 0


def test_layers_that_count_themselves_are_counted(monkeypatch: pytest.MonkeyPatch, gone_through: list[object]):
    def look(self: Layer, x: Tensor, layout: Layout) -> Tensor:
        layout.obeyed += 1
        return x + 1

    monkeypatch.setattr(Layer, "forward", look)
    made, layout = network(), Layout()
    x = made.begin(torch.zeros(4, 128))
    with share_layers(made):
        for layer in made.layers:
            x = layer(x, layout)
    assert layout.obeyed == 6 and len(gone_through) == 1


def counted(name: str, *words: str) -> CountedRun:
    resolved = configs.load(name, [*words, "prompts_per_step=2"])
    config = with_local_model(resolved.config)
    made = CountedRun(config, config.algorithm.algorithm, prompts_of(resolved))
    made.calls()
    return made


@contextmanager
def sharing(shared: bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equal_layers, "LEAST", 2)
        for module in () if shared else (text, flow):
            patch.setattr(module, "share_layers", lambda *_: nullcontext())
        yield


def both(made: CountedRun) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of all phases: gone through whole, and with shared layers."""
    found = []
    for shared in (False, True):
        with sharing(shared):
            found.append(dict(made.dry_run.activations()))
    return found[0], found[1]


QUICK = ("qwen2_5_vl", "qwen3_5", "sd3")
"""In make test; all others in make evidence."""
TEXT_WORDS = ["policy.dtype=bfloat16", "policy.gradient_checkpointing=true", "algorithm.old=reread"]
GENERATORS = [name for name in PIPELINES if "edit" not in name and "i2v" not in name and name not in ("kontext", "sd15", "sdxl")]
"""Those that draw with the data and schedule of the small config."""


def known(names: Iterable[str]) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.evidence) for name in names]


@pytest.mark.parametrize("name", known(name for name in FAMILIES if name not in ("qwen3", "llama")))
def test_plans_of_language_models_share_layers(name: str, gone_through: list[object]):
    whole, shared = both(counted("tiny/image", f"policy.model=tiny:{name}", *TEXT_WORDS))
    assert shared == pytest.approx(whole, rel=0.03) and gone_through


@pytest.mark.parametrize("name", known(GENERATORS))
def test_plans_of_image_generators_share_layers(name: str, gone_through: list[object]):
    made = counted("tiny/t2i", f"policy.model=tiny:{name}")
    whole, shared = both(made)
    assert shared == pytest.approx(whole, rel=0.03)
    # of some there is one layer of a kind
    with sharing(True):
        assert bool(gone_through) == bool(found_in(made.dry_run.network))
