"""Runs that are made by one process and by several."""

HERE = "tests/processes"
SGD = ["optimizer.kind=sgd", "optimizer.lr=0.05"]
REWARD = [f"reward=[{{use='{HERE}/mixed_reward.py'}}]"]
DATA = f"data={{use='{HERE}/mixed_prompts.py', folder='OUT'}}"
SIZED = f"data={{use='{HERE}/mixed_sizes.py'}}"
MIXED = ["tiny/image", DATA, "policy.video.workers=0", "evaluation.num_prompts=0"]
DAPO = ["algorithm.preset=dapo", "algorithm.minibatches=1"]
LORA = ["policy.lora.rank=2", "policy.lora.alpha=4"]
CASES: dict[str, list[str]] = {
    # five held-out prompts in batches of two: three calls on one process, two on the other
    "text": ["tiny/image", *REWARD, *SGD, "steps=3", "evaluate_every=3", "evaluation.num_prompts=5", "evaluation.batch_size=2"],
    "text_adamw": ["tiny/image", *REWARD, "steps=3", "evaluation.num_prompts=0"],
    "flow": ["tiny/flow", SIZED, *REWARD, *SGD, "steps=3", "evaluate_every=3", "policy.forward_rows=3"],
    "probes": [*MIXED, *REWARD, *SGD, "steps=4", "algorithm.preset=t_grpo", "policy.rollout_rows=3"],
    "dynamic": [*MIXED, *REWARD, *SGD, "steps=4", "prompts_per_step=2", *DAPO, "policy.rollout_rows=3"],
    "lora": ["tiny/image", *REWARD, *SGD, *LORA, "steps=2", "evaluation.num_prompts=0"],
    "half": ["tiny/image", *REWARD, *LORA, "ratio_bound=0.1", "steps=2", "evaluation.num_prompts=0", "policy.dtype=bfloat16"],
    "short": ["tiny/image", *REWARD, "steps=2", "evaluation.num_prompts=0", "optimizer.lr=1e-3"],
    "long": ["tiny/image", *REWARD, "steps=4", "evaluation.num_prompts=0", "optimizer.lr=1e-3"],
}
SOURCES = "data=[{use='digits_grounding', name='sevens', size=8}, {use='digits_grounding', name='threes', size=6, asked=[3]}]"
LEARNS = ["tiny/image", SOURCES, *REWARD, *SGD, "evaluation.num_prompts=0", "save_every=1", "checkpoint.keep=0"]
BANDIT = [*LEARNS, "sampler.kind=Bandit", "sampler.temperature=0.2"]
SAMPLERS: dict[str, list[str]] = {
    "bandit": [*BANDIT, "steps=4"],
    "bandit_short": [*BANDIT, "steps=2"],
}
"""A sampler that learns, over two sources."""
DRAWN = ["tiny/flow", *REWARD, "policy.forward_rows=3", "optimizer.lr=1e-3"]
ENGINES: dict[str, list[str]] = {
    "flow_lora": [*DRAWN, *LORA, "steps=2"],
    "flow_short": [*DRAWN, "steps=2"],
    "flow_long": [*DRAWN, "steps=4"],
}
"""More for DeepSpeed, whose ZeRO-3 is for image generators only."""
