"""A run of a language model without eyes, from a table of questions to a folder that transformers loads."""

from dataclasses import replace
from pathlib import Path

import torch

import mmrl
from mmrl.app.export.export import export

QUESTIONS = '{{"prompt": "What is {0} + 2?", "answer": {1}}}\n'


def test_questions_train_a_language_model_which_transformers_loads(tmp_path: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = tmp_path / "sums.jsonl"
    file.write_text("".join(QUESTIONS.format(i, i + 2) for i in range(6)))
    seen: list[object] = []

    def early(group: mmrl.Group) -> list[float]:
        seen.append(group.prompt.answer)
        return [float(sum(letter < "a" for letter in sample.text or "")) for sample in group.samples]

    policy = {"model": "tiny:qwen3", "sampling": {"max_new_tokens": 8}, "lora": {"rank": 4}}
    algorithm = replace(mmrl.presets["dr_grpo"], group_size=8, minibatches=1)
    data = {"use": "prompts", "path": str(file)}
    run = mmrl.fit(
        policy,
        algorithm,
        rewards=[early],
        prompts=data,
        output=tmp_path / "run",
        steps=2,
        prompts_per_step=3,
        optimizer={"lr": 1e-2},
    )
    assert run.is_finished and set(seen) <= {2, 3, 4, 5, 6, 7}
    moved = [weight for name, weight in run.policy.net.named_parameters() if "lora_B" in name]  # type: ignore[attr-defined] - a text policy's
    assert moved and all(bool(weight.any()) for weight in moved)
    for merge in (False, True):
        export(run.folder, tmp_path / f"out-{merge}", merge=merge)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out-True")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out-True")
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False)
    ids = tokenizer(chat, add_special_tokens=False, return_tensors="pt")
    with torch.no_grad():
        theirs = merged(**ids).logits
        ours = run.policy.net.model(**ids).logits  # type: ignore[attr-defined] - a text policy's
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=1e-4)
    for merge in (False, True):
        card = (tmp_path / f"out-{merge}" / "README.md").read_text()
        assert "AutoModelForCausalLM" in card and "pipeline_tag: text-generation" in card
