"""Attacks by weights in 4 bits: codes that are not what they say, other weights than before, another's entry of the cache."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.attacks.attack import Attack, expect_done, expect_sentence, run_mmrl
from tests.attacks.models import M, change, fill, tiny

Weights = dict[str, Any]
Q = "model.layers.0.self_attn.q_proj.weight"
STATE = f"{Q}.quant_state.bitsandbytes__nf4"
NF4 = ["policy.weights=nf4", "policy.lora={rank = 2}"]
SHORT = ["steps=1", "output=run", "evaluation={}", "evaluate_every=0"]
RESUME = ("train", "--resume", "run", "steps=2")
EVAL = ("eval", "run", "evaluation={num_prompts = 1, data = {use = 'digits_grounding', size = 1}}")
KEEP = "from mmrl.policies.shared.quantized import kept\nkept.WORTH_KEEPING = 0\n"
"""Codes of tiny models are kept in the cache, too."""


def train(model: str, folder: Path, *words: str) -> Any:
    return run_mmrl(["train", "tiny/image", f"policy.model=./{model}", "policy.lora={rank = 2}", *SHORT, *words], folder)


def take_codes(words: tuple[str, ...], damage: Callable[[Path], object], double: bool, folder: Path) -> str:
    """Train beside damaged codes: refused, the tensor named, no checkpoint."""
    from tests.support.stored_codes import store_codes

    damage(store_codes(tiny("text", folder), folder / "codes", r"model\.layers\..*proj\.weight", double))
    ended = train("codes", folder)
    assert not list(folder.glob("run/checkpoints/*")), "it was trained on"
    return expect_sentence(ended, *words)


def describe(words: dict[str, object]) -> Callable[[Weights], object]:
    """Say other facts of a weight in 4 bits."""

    def damage(weights: Weights) -> None:
        import torch

        said = {**json.loads(bytes(weights[STATE].tolist())), **words}
        weights[STATE] = torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)

    return damage


def noise(weights: Weights) -> None:
    weights[STATE] = weights[STATE].flip(0).contiguous()


def empty_blocks(folder: Path) -> str:
    """A matrix of zeros, whose blocks have no largest number."""
    change(M, lambda weights: weights[Q].zero_(), tiny("text", folder))
    return expect_done(train("model", folder, *NF4))


def other_weights(again: tuple[str, ...], folder: Path) -> str:
    """Go on with a run beside a model whose weights changed meanwhile."""
    model = tiny("text", folder)
    expect_done(train("model", folder, *NF4, "save_every=1"))
    change(M, lambda weights: weights[Q].mul_(-1), model)
    return expect_sentence(run_mmrl([*again], folder), "other weights in 4 bits")


def kept(damage: Callable[[Path, Path], object], folder: Path) -> str:
    """Start again on an entry of the cache that was changed: its codes are made again, and the run trains the same."""
    (folder / "python").mkdir()
    (folder / "python/sitecustomize.py").write_text(KEEP)
    root = Path(__file__).parents[2]
    env = {"MMRL_CACHE": str(folder / "cache"), "PYTHONPATH": f"{folder / 'python'}:{root}"}
    shutil.copytree(tiny("text", folder), folder / "other")
    change(M, lambda weights: weights[Q].mul_(-1), folder / "other")

    def start(name: str, output: str) -> str:
        words = ["train", "tiny/image", f"policy.model=./{name}", *NF4, *SHORT, f"output={output}"]
        ended = run_mmrl(words, folder, env=env)
        expect_done(ended)
        return ended.out + ended.err

    entries = list[Path]()
    for name in ("model", "other"):
        start(name, name)
        entries += sorted(set(folder.glob("cache/codes-*")) - {*entries})
    assert len(entries) == 2, f"{len(entries)} entries are kept of two models"
    damage(*entries)
    said = start("model", "again")
    assert "codes are made again" in said or "are not kept" in said, f"it was taken: {said[-300:]!r}"
    first, again = ((folder / name / "metrics.jsonl").read_text() for name in ("model", "again"))
    assert rewards(first) == rewards(again), "the run drew other samples"
    return "made again"


def rewards(lines: str) -> list[object]:
    """What a run's samples got, and how likely they were."""
    return [[json.loads(line).get(key) for key in ("reward/mean", "ratio/mean", "loss")] for line in lines.splitlines()]


def exchange(entry: Path, other: Path) -> None:
    shutil.rmtree(entry)
    shutil.copytree(other, entry)


def flip(entry: Path, other: Path) -> None:
    file = next(entry.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def link(entry: Path, other: Path) -> None:
    shutil.rmtree(entry)
    entry.symlink_to(other)


NAN, CODE = "q_proj.weight has scales that are NaN or infinite", ("q_proj.weight",)


def rewritten(damage: Callable[[Weights], object]) -> Callable[[Path], object]:
    return partial(change, M, damage)


def described(**words: object) -> Callable[[Path], object]:
    return rewritten(describe(words))


CODES: dict[str, tuple[tuple[str, ...], Callable[[Path], object], bool]] = {
    "NaN in a unit of scales": ((NAN,), rewritten(fill(f"{Q}.nested_absmax", float("nan"))), True),
    "NaN in a scale": ((NAN,), rewritten(fill(f"{Q}.absmax", float("nan"))), False),
    "a scale of 3e38": (("q_proj.weight has scales from", "3e+38"), rewritten(fill(f"{Q}.absmax", 3e38)), False),
    "a negative unit of scales": (("q_proj.weight has scales from -0.5",), rewritten(fill(f"{Q}.nested_absmax", -0.5)), True),
    "a shape of as many weights": (("q_proj.weight is stored as 16 x 64",), described(shape=[16, 64]), True),
    "an offset without end": ((NAN,), described(nested_offset=float("inf")), True),
    "an offset that is text": (CODE, described(nested_offset="wide"), True),
    "scales are missing": (("q_proj.weight.absmax is missing",), rewritten(lambda weights: weights.pop(f"{Q}.absmax")), True),
    "a shape of 2^80 weights": (CODE, described(shape=[2**40, 2**40]), True),
    "a shape of negative size": (CODE, described(shape=[-32, -32]), True),
    "a shape of one number": (CODE, described(shape=[1024]), True),
    "a shape that is text": (CODE, described(shape="ab"), True),
    "a type that is a function": (CODE, described(dtype="save"), True),
    "blocks of no weights": (CODE, described(blocksize=0), True),
    "a description that is noise": (("does not describe a weight in 4 bits",), rewritten(noise), True),
    "cut short": (("cut short",), lambda folder: (folder / M).write_bytes((folder / M).read_bytes()[:-999]), True),
}
ENTRIES = {"that of another model": exchange, "one byte is another": flip, "a link to another": link}
ATTACKS = [
    *(Attack("4 bits", f"stored codes: {name}", partial(take_codes, *case)) for name, case in CODES.items()),
    *(Attack("4 bits", f"an entry of the cache: {name}", partial(kept, case)) for name, case in ENTRIES.items()),
    Attack("4 bits", "a matrix of zeros", empty_blocks),
    Attack("4 bits", "a run that is resumed beside other weights", partial(other_weights, RESUME)),
    Attack("4 bits", "a run that is evaluated beside other weights", partial(other_weights, EVAL)),
]
