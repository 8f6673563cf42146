"""The model of the fake vLLM server: real weights, real processor, and memories that new weights do not clear."""

import base64
import copy
import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from mmrl.policies.text.loading import load
from mmrl.policies.text.net import TextNet
from mmrl.policies.text.prompt.encode import Encoded, collate_prompts
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.policies.video.decode import Frames

Json = dict[str, Any]


class RefusedError(Exception):
    """What is answered with a number below 500."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Model:
    """The model, its weights by name, and what it remembers."""

    def __init__(self, folder: str, dtype: str, clip_fps: float) -> None:
        self.folder, self.clip_fps = folder, clip_fps
        loaded = load(TextPolicyConfig(folder))
        self.processor, self.family, self.tokenizer = loaded.processor, loaded.family, loaded.processor.tokenizer
        model = loaded.model.to(getattr(torch, dtype))
        self.net = TextNet(model, loaded.family, (), self.tokenizer.pad_token_id or 0)
        self.config, self.eos = model.config, loaded.eos_token_ids
        self.adapters: dict[str, dict[str, torch.Tensor]] = {}
        self.prefixes: dict[object, Any] = {}
        self.features: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}
        for kind in ("image", "video"):
            if hasattr(self.net.core, f"get_{kind}_features"):
                look = getattr(self.net.core, f"get_{kind}_features")
                setattr(self.net.core, f"get_{kind}_features", self.remember(look))

    def remember(self, look: Any) -> Any:
        """The vision part, which sees a picture once."""

        def features(*shown: Any, **named: Any) -> Any:
            pixels = next(x for x in (*shown, *named.values()) if torch.is_tensor(x) and x.is_floating_point())
            key = hashlib.sha256(pixels.float().numpy().tobytes()).hexdigest()
            if key not in self.features:
                self.features[key] = look(*shown, **named)
            return copy.deepcopy(self.features[key])

        return features

    def problem_of(self, path: str) -> str:
        """The fault of a file of weights: other names or shapes than the file has that the server was started with."""
        if not Path(path).is_file():
            return f"no weights at {path}: is this folder shared with the engine?"
        return self.problem_of_shapes({name: tuple(weight.shape) for name, weight in load_file(path).items()})

    def problem_of_shapes(self, given: dict[str, tuple[int, ...]]) -> str:
        """The same of tensors that are to come."""
        own = {name: tuple(weight.shape) for name, weight in load_file(f"{self.folder}/model.safetensors").items()}
        wrong = [name for name in given.keys() & own.keys() if own[name] != given[name]]
        odd = sorted((own.keys() ^ given.keys()) | set(wrong))
        return f"{odd[:3]} do not fit" if odd else ""

    def load_weights(self, path: str) -> None:
        """Through transformers, which knows the names of older checkpoints."""
        other = load(TextPolicyConfig(str(Path(path).parent))).model
        self.net.model.load_state_dict(other.state_dict())

    def load_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        """Through a file, as all names are."""
        with tempfile.TemporaryDirectory() as place:
            folder = Path(shutil.copytree(self.folder, f"{place}/model", ignore=shutil.ignore_patterns("*.safetensors")))
            save_file(tensors, folder / "model.safetensors", {"format": "pt"})
            self.load_weights(str(folder / "model.safetensors"))

    def load_adapter(self, name: str, path: str) -> None:
        """The adapter's products B A, by the weight that they are added to."""
        told = json.loads((Path(path) / "adapter_config.json").read_text())
        values = load_file(Path(path) / "adapter_model.safetensors")
        found: dict[str, torch.Tensor] = {}
        for key, inner in values.items():
            if key.endswith(".lora_A.weight"):
                outer = values[key.replace(".lora_A.", ".lora_B.")]
                found[key.removeprefix("base_model.model.").replace(".lora_A", "")] = (
                    outer @ inner * told["lora_alpha"] / told["r"]
                )
        self.adapters[name] = found

    @contextmanager
    def adapted(self, name: str) -> Iterator[None]:
        """A block in which the weights have an adapter added."""
        named = dict(self.net.model.named_parameters())
        kept = {key: named[key].data for key in self.adapters.get(name, {})}
        for key, change in self.adapters.get(name, {}).items():
            named[key].data = kept[key] + change
        try:
            yield
        finally:
            for key, value in kept.items():
                named[key].data = value

    def expand(self, ids: list[int], parts: list[Json]) -> tuple[list[int], Encoded]:
        """Every picture takes the place of the next placeholder, whatever follows it: the ids, and what the model is fed."""
        media: dict[str, list[torch.Tensor]] = {}
        clips: list[Frames] = []
        holders = (self.config.image_token_id, self.config.video_token_id)
        out, fed, place = list[int](), list[int](), 0
        for part in parts:
            tensors, count, token, clip = self.look_at(part)
            clips += [clip] if clip is not None else []
            for name, value in tensors.items():
                media.setdefault(name, []).append(value)
            if token not in ids[place:]:
                raise RefusedError(400, "more media than placeholders in the prompt")
            where = ids.index(token, place)
            out += ids[place:where] + [token] * count
            fed += [0 if id in holders else id for id in ids[place:where]] + [token] * count
            place = where + 1
        out += ids[place:]
        # a placeholder that no picture took stays in the prompt, and has no features
        token_ids = torch.tensor(fed + [0 if id in holders else id for id in ids[place:]])
        types = (token_ids == self.config.image_token_id).long() + 2 * (token_ids == self.config.video_token_id).long()
        joined = {name: torch.cat(values) for name, values in media.items()}
        if not joined:
            types = torch.zeros_like(types)
        positions = self.family.positions(self.net.core, token_ids, types, joined, clips)
        return out, Encoded("asked", token_ids, positions, types, joined)

    def look_at(self, part: Json) -> tuple[Json, int, int, Frames | None]:
        """A part's tensors, its number of placeholders, the placeholder, and its clip."""
        kind, content = part["url"].split(",", 1)
        key = hashlib.sha256(part["url"].encode()).hexdigest()
        pictures = [Image.open(io.BytesIO(base64.b64decode(one))).convert("RGB") for one in content.split(",")]
        if key not in self.tensors:
            if kind == "data:image/png;base64":
                self.tensors[key] = dict(self.processor.image_processor(images=pictures, return_tensors="pt"))
            elif kind == "data:video/jpeg;base64":
                frames = [np.stack([np.asarray(picture) for picture in pictures])]
                made = dict(self.processor.video_processor(videos=frames, do_sample_frames=False, return_tensors="pt"))
                self.tensors[key] = {name: made[name] for name in ("pixel_values_videos", "video_grid_thw")}
            else:
                raise RefusedError(400, f"no media of the type {kind}")
        tensors = self.tensors[key]
        is_clip = "video_grid_thw" in tensors
        grid = tensors["video_grid_thw" if is_clip else "image_grid_thw"]
        count = int(grid.prod()) // self.config.vision_config.spatial_merge_size**2
        if not is_clip:
            return tensors, count, self.config.image_token_id, None
        times = tuple(k / self.clip_fps for k in range(len(pictures)))
        clip = Frames(np.zeros((0, 1, 1, 3), np.uint8), times, 1 / self.clip_fps, times[-1], self.clip_fps)
        return tensors, count, self.config.video_token_id, clip

    @torch.no_grad()
    def tell(self, ids: list[int], parts: list[Json], likely: int | None) -> list[Any] | None:
        """What the tokens of a prompt are worth behind those before them, and so many likely ones; None: it is not asked."""
        if likely is None:
            return None
        read, prompt = self.expand(ids, parts)
        batch = collate_prompts([prompt], 0, torch.device("cpu"))
        shown = {**self.net.types(batch.type_ids), **self.net.vision(batch.media, range(len(batch.media)))}
        out = self.net.through(batch.token_ids, None, batch.attention, batch.positions, use_cache=False, **shown)
        hidden = out.last_hidden_state
        logprobs = self.net.model.get_output_embeddings()(hidden[0, :-1]).float().log_softmax(-1)
        told: list[Any] = [None]
        for token, row in zip(read[1:], logprobs, strict=True):
            tokens = dict.fromkeys([token, *row.topk(likely).indices.tolist()])
            told.append({str(one): {"logprob": float(row[one]), "rank": int((row > row[one]).sum()) + 1} for one in tokens})
        return told

    @torch.no_grad()
    def generate(self, name: str, ids: list[int], parts: list[Json], params: Json) -> tuple[list[int], list[Json]]:
        """The prompt as it was read, and a choice per completion."""
        read, prompt = self.expand(ids, parts)
        key = name if name in self.adapters else "", tuple(read), tuple(part["url"] for part in parts)
        with self.adapted(name):
            batch = collate_prompts([prompt], 0, torch.device("cpu"))
            if key not in self.prefixes:
                self.prefixes[key] = self.net.prefill(batch)
            hidden, cache = copy.deepcopy(self.prefixes[key])
            return read, self.decode(hidden, cache, prompt, params)

    def decode(self, hidden: torch.Tensor, cache: Any, prompt: Encoded, params: Json) -> list[Json]:
        """Completions side by side, each from its own generator."""
        n, greedy = params["n"], params["temperature"] == 0
        cache.reorder_cache(torch.zeros(n, dtype=torch.long))
        draws = [torch.Generator().manual_seed(params["seed"] + i) for i in range(n)]
        bias = torch.zeros(self.net.banned.shape)
        for token, value in params["logit_bias"].items():
            bias[int(token)] = value
        hidden = hidden.expand(n, -1)
        rows: list[Json] = [
            {"index": i, "token_ids": [], "finish_reason": None, "stop_reason": None, "noted": []} for i in range(n)
        ]
        for t in range(params["max_tokens"]):
            logits = self.net.model.get_output_embeddings()(hidden).float() + bias
            logprobs = cut(logits / (params["temperature"] or 1.0), params).log_softmax(-1)
            chosen = torch.tensor(
                [
                    int(row.argmax()) if greedy else int(torch.multinomial(row.exp(), 1, generator=draw))
                    for row, draw in zip(logprobs, draws, strict=True)
                ]
            )
            for row, token, given in zip(rows, chosen.tolist(), logprobs, strict=True):
                if row["finish_reason"] is None:
                    row["token_ids"].append(token)
                    row["noted"].append(float(given[token]))
                    self.end(row, params, t)
            if all(row["finish_reason"] for row in rows):
                break
            positions = (prompt.positions[:, -1:] + 1 + t)[:, None].expand(-1, n, -1)
            attention = torch.ones(n, len(prompt) + t + 1, dtype=torch.long)
            hidden = self.net.extend(cache, chosen[:, None], positions, attention)[:, -1]
        return rows

    def end(self, row: Json, params: Json, t: int) -> None:
        """Note how a completion ended, if it did."""
        text = self.tokenizer.decode(row["token_ids"], skip_special_tokens=True)
        found = [stop for stop in params["stop"] if stop in text]
        if row["token_ids"][-1] in params["stop_token_ids"]:
            row["finish_reason"] = "stop"
        elif found:
            row["finish_reason"], row["stop_reason"] = "stop", found[0]
        elif t + 1 == params["max_tokens"]:
            row["finish_reason"] = "length"


def cut(logits: torch.Tensor, params: Json) -> torch.Tensor:
    """The logits that top_k and top_p leave."""
    ranked, order = logits.sort(dim=-1, descending=True)
    if params["top_k"] > 0:
        ranked[:, params["top_k"] :] = -torch.inf
    share = ranked.softmax(-1)
    ranked[share.cumsum(-1) - share >= params["top_p"]] = -torch.inf
    return torch.full_like(logits, -torch.inf).scatter(-1, order, ranked)
