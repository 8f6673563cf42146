"""Runs that are made by one process and by several."""

HERE = "tests/processes/mixed.py"
SGD = ["optimizer.kind=sgd", "optimizer.lr=0.05"]
REWARD = [f"reward=[{{use='{HERE}:Reward'}}]"]
DATA = f"data={{use='{HERE}:prompts', folder='OUT'}}"
SIZED = f"data={{use='{HERE}:sizes'}}"
MIXED = ["tiny/image", DATA, "policy.video.workers=0", "evaluation.num_prompts=0"]
UNSEEING = f"data={{use='{HERE}:prompts', folder='OUT', kinds=['both', 'text'], dead=2}}"
DAPO = ["algorithm.preset=dapo", "algorithm.minibatches=1"]
LORA = ["policy.lora.rank=2", "policy.lora.alpha=4"]
TEAM = [*MIXED, *REWARD, *SGD, "policy.gradient_checkpointing=true", "micro_batch=200"]
STOPS = f"policy.sampling.stop={[chr(code) for code in range(33, 127) if chr(code) not in chr(34) + chr(39) + chr(92)]}"
"""So many texts end a turn that a random model is rarely cut."""
WORLDS = [f"environment.use={HERE}:answer", "environment.limits.turns=3", "policy.rollout_rows=3", STOPS]
FLOW = ["tiny/flow", SIZED, *REWARD, *SGD, "steps=3", "evaluate_every=3", "policy.forward_rows=3"]
CASES: dict[str, list[str]] = {
    # five held-out prompts in batches of two: three calls on one process, two on the other
    "text": ["tiny/image", *REWARD, *SGD, "steps=3", "evaluate_every=3", "evaluation.num_prompts=5", "evaluation.batch_size=2"],
    "text_adamw": ["tiny/image", *REWARD, "steps=3", "evaluation.num_prompts=0"],
    "flow": FLOW,
    "sampled": [*FLOW, "cluster.samplers=1"],
    "sampled_twice": [*FLOW, "cluster.samplers=2"],
    "probes": [*MIXED, *REWARD, *SGD, "steps=4", "algorithm.preset=t_grpo", "policy.rollout_rows=3"],
    # each step one process looks at a clip and a picture, and the other at nothing
    "unseeing": [*MIXED, UNSEEING, *REWARD, *SGD, "steps=3", "prompts_per_step=2"],
    "episodes": ["tiny/image", *REWARD, *SGD, *WORLDS, "steps=3", "evaluation.num_prompts=0"],
    "dynamic": [*MIXED, *REWARD, *SGD, "steps=4", "prompts_per_step=2", *DAPO, "policy.rollout_rows=3"],
    # rows of clips and pictures are read by all processes together
    "team": [*TEAM, "steps=2", "policy.context=WORLD"],
    "lora": ["tiny/image", *REWARD, *SGD, *LORA, "steps=2", "evaluation.num_prompts=0"],
    "half": ["tiny/image", *REWARD, *LORA, "ratio_bound=0.1", "steps=2", "evaluation.num_prompts=0", "policy.dtype=bfloat16"],
    "short": ["tiny/image", *REWARD, "steps=2", "evaluation.num_prompts=0", "optimizer.lr=1e-3"],
    "long": ["tiny/image", *REWARD, "steps=4", "evaluation.num_prompts=0", "optimizer.lr=1e-3"],
}
SOURCES = "data=[{use='digits_grounding', name='sevens', size=8}, {use='digits_grounding', name='threes', size=6, asked=[3]}]"
LEARNS = ["tiny/image", SOURCES, *REWARD, *SGD, "evaluation.num_prompts=0", "save_every=1", "checkpoint.keep=0"]
BANDIT = [*LEARNS, "sampler.kind=Bandit", "sampler.temperature=0.2"]
SAMPLERS: dict[str, list[str]] = {"bandit": [*BANDIT, "steps=4"], "bandit_short": [*BANDIT, "steps=2"]}
"""A sampler that learns, over two sources."""
TEAMS: dict[str, list[str]] = {
    "pairs": [*TEAM, "steps=2", "policy.context=2"],
    "team_lora": [*TEAM, *LORA, "steps=4", "policy.context=WORLD"],
    "team_short": [*TEAM, *LORA, "steps=2", "policy.context=WORLD"],
}
"""More of rows that are read together."""
TOGETHER = [*TEAM, "steps=2", "policy.context=WORLD"]
BREADTH: dict[str, list[str]] = {
    "team_dynamic": [*TOGETHER, "prompts_per_step=2", *DAPO],
    "team_parts": [*TOGETHER, "algorithm.minibatches=2", "algorithm.epochs=2", "micro_batch=64", "optimizer.clip_norm=0.01"],
    "team_replayed": [*TOGETHER, "algorithm.preset=remix", "steps=3"],
    "team_groups": [*TOGETHER, "algorithm.preset=tw_grpo"],
    "team_views": [*TOGETHER, "algorithm.preset=t_grpo"],
    "team_skipped": [*TOGETHER, "max_skipped=8", "policy.max_prompt_tokens=120"],
    "team_episodes": ["tiny/image", *REWARD, *SGD, *WORLDS, "steps=2", "evaluation.num_prompts=0", "policy.context=WORLD"],
    "team_taught": ["tiny/cold_start", *SGD, "evaluation.num_prompts=0", "policy.context=WORLD"],
}
"""What rows that are read together were tried with."""
WRITES = ["tiny/writer", *SGD, "steps=2", "evaluation.num_prompts=0", "policy.sampling.max_new_tokens=4"]
EASEL = "environment={use='easel', form='plain', painter={model='tiny:sd3', num_steps=2, width=64, height=64}}"
SHOWN = [EASEL, "environment.limits.turns=2", "reward=[{use='shown', picture={use='jpeg_size'}}]"]
WRITERS: dict[str, list[str]] = {"writer": WRITES, "easel": [*WRITES, *SHOWN, "prompts_per_step=2"]}
"""What a generator draws for a model that writes."""
DRAWN = ["tiny/flow", *REWARD, "policy.forward_rows=3", "optimizer.lr=1e-3"]
ENGINES: dict[str, list[str]] = {
    "flow_lora": [*DRAWN, *LORA, "steps=2"],
    "flow_short": [*DRAWN, "steps=2"],
    "flow_long": [*DRAWN, "steps=4"],
}
"""More for DeepSpeed."""
STEP = ["steps=1", "evaluation.num_prompts=0", *REWARD]
ONE = [*STEP, *SGD]
DRAWS = [*ONE, "policy.guidance=2.0"]
CLIP = ["policy.height=32", "policy.width=32", "policy.frames=5"]
ON_CARD: dict[str, list[str]] = {
    "image": ["tiny/image", *STEP, "evaluation.num_prompts=2"],
    "gemma3_lora": ["tiny/image", *ONE, *LORA, "policy.model=tiny:gemma3", "policy.gradient_checkpointing=true"],
    "qwen2_5_vl_4_bits": ["tiny/image", *ONE, *LORA, "policy.model=tiny:qwen2_5_vl", "policy.weights=nf4"],
    "qwen3_5_dapo": ["tiny/image", *ONE, *DAPO, "policy.model=tiny:qwen3_5"],
    "turns": ["tiny/look_twice", *ONE, "policy.model=tiny:qwen3_vl", "prompts_per_step=2", "algorithm.group_size=4"],
    "clips": ["tiny/clips", *ONE, "policy.video.workers=0"],
    "sounds": ["tiny/beeps", *ONE, "policy.model=tiny:qwen2_5_omni_thinker", "prompts_per_step=2", "algorithm.group_size=4"],
    "codes": ["tiny/token_image", *ONE, "prompts_per_step=2"],
    "drawn": ["tiny/flow", *ONE, "evaluation.num_prompts=2"],
    "flux_guided": ["tiny/flow", *DRAWS, *LORA, "policy.model=tiny:flux", "policy.max_prompt_tokens=24"],
    "wan": ["tiny/flow", *DRAWS, *LORA, "policy.model=tiny:wan", "policy.max_prompt_tokens=24", *CLIP],
    "drawn_sounds": ["tiny/tones", *DRAWS, "policy.model=tiny:stable_audio3", "prompts_per_step=2", "algorithm.group_size=16"],
    "ahead": ["tiny/flow", *ONE, "steps=2", "ahead=1", "cluster.samplers=1"],
    "resumed": ["tiny/image", *STEP, "steps=2", "evaluation.num_prompts=2"],
}
"""A step of each kind of model, on a card and on the CPU."""
