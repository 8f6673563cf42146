"""Attacks by models: checkpoints that are broken, cut, poisoned or not what they say, and weights in 4 bits that changed."""

import json
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mmrl.policies.flow.dry_run import load_meta
from tests.attacks.attack import LOADING, Attack, Bomb, expect_done, expect_sentence, once, refused, run_mmrl
from tests.policies.flow.test_files import walk
from tests.support.rude_servers import OK, drips, hears_nothing, rude

Damage = Callable[[Path], object]
"""Does something to a model in a folder."""
Q, K = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk")
PART = "diffusion_pytorch_model.safetensors"
SMALL = ("policy.model=./model", "output=run", "evaluation={}")
TRAIN = {"text": ("train", "tiny/image", *SMALL), "flow": ("train", "tiny/flow", *SMALL)}


@once
def whole(kind: str) -> Path:
    from mmrl.lab.models import tiny_model

    return tiny_model("tiny:sd3", "flow") if kind == "flow" else tiny_model("tiny:qwen2_5_vl")


def tiny(kind: str, folder: Path) -> Path:
    """A copy of a whole tiny model, to be damaged."""
    return Path(shutil.copytree(whole(kind), folder / "model"))


@once
def whole_clip() -> tuple[bytes, bytes]:
    """The configuration of a tiny CLIP, and its weights."""
    import tempfile

    from transformers import CLIPConfig, CLIPModel

    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**small, "vocab_size": 99, "max_position_embeddings": 24}
    with tempfile.TemporaryDirectory() as folder:
        CLIPModel(CLIPConfig(text_config=text, vision_config={**small, "image_size": 28, "patch_size": 7})).save_pretrained(
            folder
        )
        return Path(folder, "config.json").read_bytes(), Path(folder, "model.safetensors").read_bytes()


def change(file: str, damage: Callable[[dict[str, Any]], object], folder: Path, notes: dict[str, str] | None = None) -> None:
    """Rewrite a file of weights."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / file)
    damage(weights)
    save_file(weights, folder / file, notes or {"format": "pt"})


def config(file: str, path: str, value: object, folder: Path) -> None:
    """Set a key of a JSON file."""
    settings = json.loads((folder / file).read_text())
    *above, last = path.split(".")
    holder = settings
    for key in above:
        holder = holder[key]
    holder[last] = value
    (folder / file).write_text(json.dumps(settings))


def write(file: str, data: bytes, folder: Path) -> None:
    (folder / file).write_bytes(data)


def cut(file: str, left: float, folder: Path) -> None:
    """Keep a share of the file that has this name, or one like it."""
    [found] = folder.glob(file)
    found.write_bytes(found.read_bytes()[: int(left * found.stat().st_size)])


def fill(name: str, value: float) -> Callable[[dict[str, Any]], object]:
    return lambda weights: weights[name].flatten()[:1].fill_(value)


def extra(weights: dict[str, Any], name: str = "payload.weight") -> None:
    weights[name] = next(iter(weights.values())).clone()


def rename(weights: dict[str, Any]) -> None:
    for name in list(weights):
        weights[name.replace(".layers.", ".blocks.")] = weights.pop(name)


def train(kind: str, words: tuple[str, ...], damage: Damage, folder: Path) -> str:
    """Train on a damaged model: refused, named, and no run folder is left with a checkpoint."""
    damage(tiny(kind, folder))
    told = refused([*TRAIN[kind], "evaluate_every=0"], words, folder)
    assert not list(folder.glob("run/checkpoints/*")), "it was trained on"
    return told


def every_part(first: int, folder: Path) -> str:
    """Each 23rd damage of every key of every config of a pipeline, in this process: a sentence or a model."""
    bad = walk(Path(shutil.move(tiny("flow", folder), folder / "sd3")), 23, first, load_meta)
    assert not bad, f"{len(bad)} raise otherwise: {bad[0]}"
    return "sentences"


def adapter(kind: str, words: tuple[str, ...], damage: Damage, folder: Path) -> str:
    """Train from a damaged adapter."""
    tiny(kind, folder)
    with LOADING:
        save_adapter(kind, folder / "model", folder / "adapter")
    damage(folder / "adapter")
    return refused([*TRAIN[kind], 'policy.lora={adapter = "./adapter"}'], words, folder)


def save_adapter(kind: str, model: Path, folder: Path) -> None:
    from mmrl.policies.flow import adapters
    from mmrl.policies.flow import loading as flow
    from mmrl.policies.flow.settings import FlowPolicyConfig
    from mmrl.policies.shared.lora import LoraSettings
    from mmrl.policies.text import loading as text
    from mmrl.policies.text.settings import TextPolicyConfig

    lora = LoraSettings(rank=2, alpha=4)
    if kind == "text":
        text.load(TextPolicyConfig(str(model), lora=lora)).adapter.save_pretrained(folder)
        return
    folder.mkdir()
    family = flow.load(FlowPolicyConfig(str(model), lora=lora, height=16, width=16))
    adapters.save_adapter(family.pipeline, family.trained, folder, True)


def without_first(weights: dict[str, Any]) -> None:
    weights.pop(min(weights))


def without_layer(weights: dict[str, Any]) -> None:
    layer = min(weights).partition(".lora_")[0]
    for key in [key for key in weights if key.startswith(f"{layer}.lora_")]:
        weights.pop(key)


def of_adapter(damage: Callable[[dict[str, Any]], object], folder: Path) -> None:
    """Rewrite the weights of an adapter; its notes stay."""
    from safetensors import safe_open

    [file] = folder.glob("*.safetensors")
    with safe_open(file, "pt") as opened:
        notes = opened.metadata()
    change(file.name, damage, folder, notes)


def clip(words: tuple[str, ...], damage: Damage, folder: Path) -> str:
    """Score a picture with a damaged CLIP."""
    settings, weights = whole_clip()
    (folder / "model").mkdir()
    (folder / "model/config.json").write_bytes(settings)
    (folder / "model/model.safetensors").write_bytes(weights)
    damage(folder / "model")
    return refused(["reward", "score", "clip_score", "rows.jsonl", "model=./model"], words, folder, lay_row)


def huge_architecture(folder: Path) -> str:
    """A checkpoint of two numbers for a reward whose default architecture has a billion weights."""
    import torch

    torch.save({"visual.proj": torch.zeros(2)}, folder / "HPS_v2.1_compressed.pt")
    words = ("loading open_clip ViT-H-14", "does not hold the weights of the class CLIP")
    return refused(["reward", "score", "hps_v2", "rows.jsonl", "checkpoint=."], words, folder, lay_row, limit_s=45)


def lay_row(folder: Path) -> None:
    """A row to score, and its picture."""
    from PIL import Image

    Image.new("RGB", (32, 32), "red").save(folder / "a.png")
    (folder / "rows.jsonl").write_text(json.dumps({"prompt": "a fox", "image": "a.png"}) + "\n")


def silent_hub(drip: bool, folder: Path) -> str:
    """A hub that takes connections and says nothing, or one header after another."""
    with rude(drips(OK, b"x-a: b\r\n") if drip else hears_nothing) as server:
        hub = {"HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(folder)}
        run, words = (
            ["train", "tiny/image", "policy.model=some/model", "output=run"],
            ["did not answer within", "HF_HUB_OFFLINE=1"],
        )
        return refused(run, words, folder, limit_s=40, env=hub)


def code(folder: Path) -> None:
    """A repository with Python of its own, which leaves a file if it runs."""
    mark = folder.parent / "ran"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')\n")
    config("config.json", "auto_map", {"AutoConfig": "evil.Evil", "AutoModelForImageTextToText": "evil.Evil"}, folder)
    config("config.json", "model_type", "evil", folder)


def not_run(word: str, damage: Damage, folder: Path) -> str:
    """Train on a model with code in it, which would leave a file."""
    told = train("text", (word,), damage, folder)
    assert not (folder / "ran").exists(), "the code ran"
    return told


def pickled(folder: Path) -> None:
    """Weights as a pickle that does something when it is read."""
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Bomb(folder.parent / "ran")}))


M, C = "model.safetensors", "config.json"
TEXT: dict[str, tuple[tuple[str, ...], Damage]] = {
    "a tensor is missing": (("1 missing", "q_proj"), partial(change, M, lambda weights: weights.pop(Q))),
    "a tensor too many": (("1 unexpected", "payload.weight"), partial(change, M, extra)),
    "a tensor of another shape": (
        ("of another shape", "k_proj"),
        partial(change, M, lambda weights: weights.update({K: weights[K].T.contiguous()})),
    ),
    "all layers renamed": (("missing",), partial(change, M, rename)),
    "NaN in one weight": (("NaN or infinity", "q_proj"), partial(change, M, fill(Q, float("nan")))),
    "infinity in one weight": (("NaN or infinity",), partial(change, M, fill(Q, float("inf")))),
    "weights cut short": ((M, "cut short"), partial(cut, M, 0.95)),
    "weights of no bytes": ((M, "cut short"), partial(write, M, b"")),
    "a header of 2^64 bytes": ((M, "cut short"), partial(write, M, b"\xff" * 64)),
    "weights that are a web page": ((M, "cut short"), partial(write, M, b"<!DOCTYPE html><html>404</html>")),
    "weights that are a git-lfs pointer": (
        (M, "cut short"),
        partial(write, M, b"version https://git-lfs.github.com/spec/v1\noid 1\n"),
    ),
    "no weights at all": (("model",), lambda folder: (folder / M).unlink()),
    "one more layer than weights": (("missing",), partial(config, C, "vision_config.depth", 3)),
    "a negative number of layers": (("unexpected",), partial(config, C, "vision_config.depth", -1)),
    "a negative number of text layers": (("policy.model", "cannot be"), partial(config, C, "text_config.num_hidden_layers", -1)),
    "no heads": (("policy.model",), partial(config, C, "text_config.num_attention_heads", 0)),
    "config.json with a billion brackets": (("policy.model",), partial(write, C, b"[" * 100_000)),
    "a tokenizer cut short": (("policy.model", "cannot be loaded"), partial(cut, "tokenizer.json", 0.5)),
    "no chat template": (("chat template",), lambda folder: (folder / "chat_template.jinja").unlink()),
}
FLOW: dict[str, tuple[tuple[str, ...], Damage]] = {
    "a transformer without a tensor": (("(transformer)", "1 missing"), partial(change, f"transformer/{PART}", without_first)),
    "a transformer with a tensor too many": (("1 unexpected",), partial(change, f"transformer/{PART}", extra)),
    "an autoencoder without a tensor": (("(vae)", "1 missing"), partial(change, f"vae/{PART}", without_first)),
    "a text encoder without a tensor": (("(text_encoder)", "1 missing"), partial(change, f"text_encoder/{M}", without_first)),
    "an autoencoder with NaN": (
        ("(vae)", "NaN"),
        partial(change, f"vae/{PART}", lambda weights: fill(min(weights), float("nan"))(weights)),
    ),
    "a transformer cut short": (("cut short",), partial(cut, f"transformer/{PART}", 0.9)),
    "a class that does not exist": (("NoSuchVae",), partial(config, "model_index.json", "vae", ["diffusers", "NoSuchVae"])),
}
ADAPTERS: dict[str, tuple[tuple[str, ...], Damage]] = {
    "half of a layer is missing": (("policy.lora.adapter", "1 missing"), partial(of_adapter, without_first)),
    "a layer is missing": (("policy.lora.adapter", "missing"), partial(of_adapter, without_layer)),
    "NaN": (("policy.lora.adapter", "NaN"), partial(of_adapter, lambda weights: fill(min(weights), float("nan"))(weights))),
    "cut short": (("policy.lora.adapter", "cut short"), partial(cut, "*.safetensors", 0.9)),
}
HEAD = (
    ("policy.lora.adapter", "weights of the model itself"),
    partial(of_adapter, partial(extra, name="base_model.model.lm_head.weight")),
)
CLIPS: dict[str, tuple[tuple[str, ...], Damage]] = {
    "a tensor is missing": (
        ("1 missing", "visual_projection"),
        partial(change, M, lambda weights: weights.pop("visual_projection.weight")),
    ),
    "a tensor too many": (("payload.weight",), partial(change, M, extra)),
    "NaN": (("NaN or infinity",), partial(change, M, fill("visual_projection.weight", float("nan")))),
    "cut short": (("cut short",), partial(cut, M, 0.9)),
}


STATE = f"{Q}.quant_state.bitsandbytes__nf4"
NF4 = ["policy.weights=nf4", "policy.lora={rank = 2}"]
FOUR_BITS = ["steps=1", "output=run", "evaluation={}", "evaluate_every=0"]
RESUME = ("train", "--resume", "run", "steps=2")
EVAL = ("eval", "run", "evaluation={num_prompts = 1, data = {use = 'digits_grounding', size = 1}}")
KEEP = "from mmrl.policies.shared.quantized import kept\nkept.WORTH_KEEPING = 0\n"
"""Codes of tiny models are kept in the cache, too."""


def train_codes(model: str, folder: Path, *words: str) -> Any:
    return run_mmrl(["train", "tiny/image", f"policy.model=./{model}", "policy.lora={rank = 2}", *FOUR_BITS, *words], folder)


def take_codes(words: tuple[str, ...], damage: Callable[[Path], object], double: bool, folder: Path) -> str:
    """Train beside damaged codes: refused, the tensor named, no checkpoint."""
    from tests.support.stored_codes import store_codes

    damage(store_codes(tiny("text", folder), folder / "codes", r"model\.layers\..*proj\.weight", double))
    ended = train_codes("codes", folder)
    assert not list(folder.glob("run/checkpoints/*")), "it was trained on"
    return expect_sentence(ended, *words)


def describe(words: dict[str, object]) -> Callable[[dict[str, Any]], object]:
    """Say other facts of a weight in 4 bits."""

    def damage(weights: dict[str, Any]) -> None:
        import torch

        said = {**json.loads(bytes(weights[STATE].tolist())), **words}
        weights[STATE] = torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)

    return damage


def noise(weights: dict[str, Any]) -> None:
    weights[STATE] = weights[STATE].flip(0).contiguous()


def empty_blocks(folder: Path) -> str:
    """A matrix of zeros, whose blocks have no largest number."""
    change(M, lambda weights: weights[Q].zero_(), tiny("text", folder))
    return expect_done(train_codes("model", folder, *NF4))


def other_weights(again: tuple[str, ...], folder: Path) -> str:
    """Go on with a run beside a model whose weights changed meanwhile."""
    model = tiny("text", folder)
    expect_done(train_codes("model", folder, *NF4, "save_every=1"))
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
        words = ["train", "tiny/image", f"policy.model=./{name}", *NF4, *FOUR_BITS, f"output={output}"]
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


def link_to(entry: Path, other: Path) -> None:
    shutil.rmtree(entry)
    entry.symlink_to(other)


NAN, CODE = "q_proj.weight has scales that are NaN or infinite", ("q_proj.weight",)


def rewritten(damage: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
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
ENTRIES = {"that of another model": exchange, "one byte is another": flip, "a link to another": link_to}
ATTACKS = [
    *(Attack("models", f"vision-language model: {name}", partial(train, "text", *case)) for name, case in TEXT.items()),
    *(Attack("models", f"pipeline: {name}", partial(train, "flow", *case)) for name, case in FLOW.items()),
    *(Attack("pipelines", f"every part damaged, part {first + 1} of 3", partial(every_part, 7 * first)) for first in range(3)),
    *(Attack("models", f"adapter of text: {name}", partial(adapter, "text", *case)) for name, case in ADAPTERS.items()),
    Attack("models", "adapter of text: a head of its own", partial(adapter, "text", *HEAD)),
    *(Attack("models", f"adapter of pictures: {name}", partial(adapter, "flow", *case)) for name, case in ADAPTERS.items()),
    *(Attack("models", f"reward model: {name}", partial(clip, *case)) for name, case in CLIPS.items()),
    Attack("models", "a repository with Python of its own", partial(not_run, "trust_remote_code", code)),
    Attack("models", "weights as a pickle that runs a command", partial(not_run, "policy.model", pickled)),
    Attack("models", "a tiny checkpoint for a reward of a billion weights", huge_architecture),
    Attack("models", "a hub that never answers", partial(silent_hub, False)),
    Attack("models", "a hub that drips headers", partial(silent_hub, True)),
    *(Attack("4 bits", f"stored codes: {name}", partial(take_codes, *case)) for name, case in CODES.items()),
    *(Attack("4 bits", f"an entry of the cache: {name}", partial(kept, case)) for name, case in ENTRIES.items()),
    Attack("4 bits", "a matrix of zeros", empty_blocks),
    Attack("4 bits", "a run that is resumed beside other weights", partial(other_weights, RESUME)),
    Attack("4 bits", "a run that is evaluated beside other weights", partial(other_weights, EVAL)),
]
