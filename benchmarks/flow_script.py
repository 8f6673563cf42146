"""Flow-GRPO on the picture demo's model as a script has it, after the structure of the official one (arXiv:2505.05470).

Every image has a row of its own from beginning to end: its prompt is encoded again with it, it starts from noise of its own, is
sampled and trained in micro-batches of 8, one denoising step after the other, and the model without its adapter is read at every
one of them. Gradients are added up over half of the micro-batches and all their steps: two updates per epoch. What the official
script has and this has not: half precision, several processes, an average of the weights for evaluation, rewards beside sampling.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Recipe:
    """What both sides have in common."""

    num_steps: int = 6
    eta: float = 0.7
    clip: float = 1e-2
    kl: float = 0.004
    lr: float = 1e-3
    rank: int = 8
    alpha: int = 16
    prompts: int = 12
    group_size: int = 16
    micro_batch: int = 8


class Script:
    """Sample, score, train: one epoch after the other."""

    def __init__(self, model: str, targets: list[str], prompts: list[Any], reward: Any, recipe: Recipe, seed: int) -> None:
        from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import StableDiffusion3Pipeline
        from peft import LoraConfig

        self.recipe, self.prompts, self.reward = recipe, prompts, reward
        self.pipe: Any = StableDiffusion3Pipeline.from_pretrained(model, text_encoder_3=None, tokenizer_3=None)
        self.net = self.pipe.transformer
        for part in (self.pipe.vae, self.pipe.text_encoder, self.pipe.text_encoder_2, self.net):
            part.requires_grad_(False)
        torch.manual_seed(seed)
        adapter = LoraConfig(r=recipe.rank, lora_alpha=recipe.alpha, init_lora_weights="gaussian", target_modules=targets)
        self.net.add_adapter(adapter)
        self.weights = [weight for weight in self.net.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(self.weights, lr=recipe.lr, weight_decay=0.0)
        self.sigmas = [1 - i / recipe.num_steps for i in range(recipe.num_steps + 1)]
        self.order = torch.Generator().manual_seed(seed)
        self.side = 32 // self.pipe.vae_scale_factor

    def encode(self, texts: list[str]) -> tuple[Tensor, Tensor]:
        options: Any = {"do_classifier_free_guidance": False, "max_sequence_length": 0}
        embeds, _, pooled, _ = self.pipe.encode_prompt(texts, None, None, **options)
        return embeds, pooled

    def velocity(self, x: Tensor, sigma: float, text: tuple[Tensor, Tensor]) -> Tensor:
        times = torch.full((len(x),), sigma * 1000)
        fed = {"hidden_states": x, "timestep": times, "encoder_hidden_states": text[0], "pooled_projections": text[1]}
        return self.net(**fed, return_dict=False)[0]

    def transition(self, x: Tensor, v: Tensor, i: int) -> tuple[Tensor, float]:
        """Mean and deviation of step i of Flow-SDE."""
        sigma, after = self.sigmas[i : i + 2]
        s = self.recipe.eta * math.sqrt(sigma / (1 - (self.sigmas[1] if sigma == 1 else sigma)))
        dt = after - sigma
        return x * (1 + s * s * dt / (2 * sigma)) + v * (1 + s * s * (1 - sigma) / (2 * sigma)) * dt, s * math.sqrt(-dt)

    @torch.no_grad()
    def sample(self, texts: list[str]) -> dict[str, Any]:
        """Pictures of a micro-batch, and all that its training needs."""
        text = self.encode(texts)
        x = torch.randn(len(texts), self.net.config.in_channels, self.side, self.side)
        states, found = [x], []
        for i in range(self.recipe.num_steps):
            mean, std = self.transition(x, self.velocity(x, self.sigmas[i], text), i)
            # the last step is never trained, and adds no noise
            last = i == self.recipe.num_steps - 1
            x = mean if last else mean + std * torch.randn_like(x)
            found.append(logprob(x, mean, std))
            states.append(x)
        coder = self.pipe.vae
        pixels = coder.decode(x / coder.config.scaling_factor + coder.config.shift_factor, return_dict=False)[0]
        images = self.pipe.image_processor.postprocess(pixels, output_type="pil")
        return {"states": states, "logprobs": torch.stack(found, 1), "text": text, "images": images}

    def step(self) -> None:
        """One epoch: two updates."""
        recipe = self.recipe
        drawn = torch.randperm(len(self.prompts), generator=self.order)[: recipe.prompts].tolist()
        rows = [self.prompts[i] for i in drawn for _ in range(recipe.group_size)]
        starts = range(0, len(rows), recipe.micro_batch)
        batches = [self.sample([prompt.text for prompt in rows[i : i + recipe.micro_batch]]) for i in starts]
        rewards = self.reward(rows, [image for batch in batches for image in batch["images"]]).view(recipe.prompts, -1)
        spread = rewards.std(1, correction=0, keepdim=True) + 1e-4
        advantages = ((rewards - rewards.mean(1, keepdim=True)) / spread).clamp(-5, 5).flatten()
        half = max(1, len(batches) // 2)
        order = torch.randperm(len(batches), generator=self.order).tolist()
        for k, which in enumerate(order, start=1):
            own = advantages[which * recipe.micro_batch : (which + 1) * recipe.micro_batch]
            for i in range(recipe.num_steps - 1):
                self.train(batches[which], own, i, half * (recipe.num_steps - 1))
            if k % half == 0:
                torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()

    def train(self, batch: dict[str, Any], advantages: Tensor, i: int, accumulated: int) -> None:
        """Forward and backward of one step of a micro-batch."""
        recipe, x, x_next = self.recipe, batch["states"][i], batch["states"][i + 1]
        mean, std = self.transition(x, self.velocity(x, self.sigmas[i], batch["text"]), i)
        with torch.no_grad():
            self.net.disable_adapters()
            reference, _ = self.transition(x, self.velocity(x, self.sigmas[i], batch["text"]), i)
            self.net.enable_adapters()
        ratio = (logprob(x_next, mean, std) - batch["logprobs"][:, i]).exp()
        clipped = ratio.clamp(1 - recipe.clip, 1 + recipe.clip)
        policy = torch.maximum(-advantages * ratio, -advantages * clipped).mean()
        kl = ((mean - reference) ** 2).flatten(1).mean(1).mean() / (2 * std**2)
        ((policy + recipe.kl * kl) / accumulated).backward()


def logprob(x: Tensor, mean: Tensor, std: float) -> Tensor:
    return (-((x - mean) ** 2) / (2 * std**2) - math.log(std) - 0.5 * math.log(2 * math.pi)).flatten(1).mean(1)
