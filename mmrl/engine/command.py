"""The command line that serves a policy's model: what mmrl runs itself, and what others run on other machines."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrl.engine.facts import serving_rank
from mmrl.engine.venv import WORKER, find_venv
from mmrl.policies.text.engine_settings import EngineConfig
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.runtime.net.secrets import read_secret
from mmrl.runtime.workers import LAUNCHER

SERVED = "policy"
"""The name under which a server that mmrl starts serves the model."""
EXTENSION = "vllm_extension.WeightExtension"
"""The class that joins vLLM's workers; its file lies in a folder of its own, since nothing else of mmrl can be imported there."""
CPU_CACHE_MB = 512
CPU_BATCH = 8192
LAUNCHERS = re.compile(rf"{LAUNCHER.pattern}|PYTHON(PATH|HOME)")
"""Environment variables of a trainer's process that would make a server believe it belongs to that job."""


@dataclass(frozen=True)
class ServeCommand:
    """A command line and what it needs of the environment."""

    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]

    def full_environment(self, own: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The variables of this process without those of its launcher, and the command's own."""
        return {name: value for name, value in own.items() if not LAUNCHERS.fullmatch(name)} | dict(self.environment)


def resolve_sync(policy: TextPolicyConfig, engine: EngineConfig) -> str:
    """How new weights reach the servers: lora, file or broadcast."""
    if engine.sync != "auto":
        return engine.sync
    return "file" if policy.lora is None else "lora"


def engine_dtype(policy: TextPolicyConfig, engine: EngineConfig) -> str:
    """The type that the server computes in."""
    return policy.dtype if engine.dtype == "auto" else engine.dtype


def serve_command(
    policy: TextPolicyConfig, engine: EngineConfig, port: int, lora_rank: int = 0, host: str = "127.0.0.1"
) -> ServeCommand:
    """The command that serves this policy's model, as a run with these settings needs it.

    Raises ValueError where there is no environment of vLLM, or its version is not one that mmrl was tested with.
    """
    venv = find_venv(Path(engine.environment).expanduser() if engine.environment else None)
    on_cpu = "cpu" in venv.version
    words = [str(venv.program), "serve", policy.model, "--host", host, "--port", str(port)]
    words += ["--served-model-name", SERVED, "--dtype", engine_dtype(policy, engine)]
    words += ["--max-num-seqs", str(engine.max_rows), "--logprobs-mode", "processed_logprobs", "--enable-scale-out"]
    words += ["--no-mm-device-do-normalize", "--generation-config", "vllm"]
    words += ["--media-io-kwargs", json.dumps({"video": {"num_frames": -1, "fps": policy.video.fps}})]
    words += ["--trust-remote-code"] if policy.trust_remote_code else []
    words += ["--max-model-len", str(engine.max_length)] if engine.max_length else []
    pixels = {name: value for name in ("min_pixels", "max_pixels") if (value := getattr(policy, name)) is not None}
    words += ["--mm-processor-kwargs", json.dumps(pixels)] if pixels else []
    words += [
        *sync_words(resolve_sync(policy, engine), lora_rank, bool(engine.local)),
        *memory_words(engine, on_cpu),
        *engine.options,
    ]
    return ServeCommand(tuple(words), tuple(variables(engine, on_cpu).items()))


def judge_command(model: str, port: int, cards: int, options: Sequence[str], environment: str = "") -> ServeCommand:
    """The command that serves a model as it is, to rewards on this machine, on the cards that it is shown.

    Raises ValueError where there is no environment of vLLM, or its version is not one that mmrl was tested with.
    """
    venv = find_venv(Path(environment).expanduser() if environment else None)
    on_cpu = "cpu" in venv.version
    words = [str(venv.program), "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    words += ["--tensor-parallel-size", str(cards)] if cards > 1 else []
    own = {"VLLM_NO_USAGE_STATS": "1"} | ({"VLLM_CPU_OMP_THREADS_BIND": "nobind"} if on_cpu else {})
    return ServeCommand((*words, *memory_words(EngineConfig(), on_cpu), *options), tuple(own.items()))


def sync_words(sync: str, lora_rank: int, copies: bool = False) -> list[str]:
    """The options for new weights, which workers copy to their machine first or not."""
    extension = ["--worker-extension-cls", EXTENSION]
    if sync == "lora":
        # two: the one that is loaded next, and the one before it until that is dropped
        adapters = ["--enable-lora", "--max-lora-rank", str(serving_rank(lora_rank)), "--max-loras", "1", "--max-cpu-loras", "2"]
        return adapters + (extension if copies else [])
    return [*extension, "--weight-transfer-config", json.dumps({"backend": sync})]


def memory_words(engine: EngineConfig, on_cpu: bool) -> list[str]:
    """The options for memory, and those that a CPU needs to serve."""
    cache_mb = engine.cache_mb or (CPU_CACHE_MB if on_cpu else 0)
    words = (
        ["--kv-cache-memory-bytes", str(cache_mb << 20)] if cache_mb else ["--gpu-memory-utilization", str(engine.memory_share)]
    )
    if on_cpu:
        # a prompt with a seed that is read in pieces ends the engine there
        longest = max(CPU_BATCH, engine.max_length)
        words += ["--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", str(longest)]
    return words + (["--enable-sleep-mode"] if engine.sleep and not on_cpu else [])


def variables(engine: EngineConfig, on_cpu: bool) -> dict[str, str]:
    """Environment variables of the server."""
    found = {
        "PYTHONPATH": str(WORKER),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    found |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"} if on_cpu else {}
    found |= {"CUDA_VISIBLE_DEVICES": engine.devices} if engine.devices else {}
    token = read_secret(engine.token_env)
    return found | ({"VLLM_API_KEY": token} if token else {})
