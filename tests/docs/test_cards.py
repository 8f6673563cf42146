"""docs/how_to/cards.md: the commands under "A 7B model on a card of 12 or 16 GB", with a tiny model of the same class."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from mmrl.lab.tiny.text.vlms import build
from mmrl.policies.shared.quantized.table import tensors_in
from tests.docs.test_blocks import parsed, ran
from tests.support.blocks import blocks, commands

PAGE = "docs/how_to/cards.md"
[LINES] = [list(commands(block.text)) for block in blocks() if block.doc == PAGE]
SMALL = [
    *("steps=1", "prompts_per_step=2", "algorithm.group_size=2", "policy.lora.rank=2", "policy.max_pixels=12544"),
    *("policy.sampling.max_new_tokens=4", "evaluate_every=0", "evaluation.num_prompts=2", "max_unparsed=1.0"),
    *("ratio_bound=1.0", "mean_ratio_bound=1.0"),
]
"""In bfloat16 a tiny model is too rough for the usual bounds."""


@pytest.mark.slow
def test_the_page_is_run_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    model = str(build("qwen2_5_vl", tmp_path / "tiny"))
    (tmp_path / "data").mkdir()
    row = {"image": "a.png", "question": "which?", "box": [10, 20, 60, 50]}
    Image.new("RGB", (96, 64)).save("data/a.png")
    rows = [json.dumps({**row, "id": str(i), "split": split}) for i in range(4) for split in ("train", "val")]
    Path("data/refcoco.jsonl").write_text("\n".join(rows))
    said = dict[str, str]()
    for words in LINES:
        found = [model if word.startswith("Qwen/") else word for word in words[1:]]
        name, context = parsed([*found, *([f"policy.model={model}", *SMALL] if found[0] == "train" else [])])
        code, said[name] = ran(context)
        assert code == 0, words
    assert list(said) == ["plan", "cp", "train", "export"] and re.search(r"at most\s+[\d.]+", said["plan"])
    last = json.loads(Path("runs/mine/metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 1 and 'weights = "nf4"' in Path("runs/mine/config.toml").read_text()
    assert not any(name.endswith("absmax") for name in tensors_in(Path("mine").glob("*.safetensors")))
