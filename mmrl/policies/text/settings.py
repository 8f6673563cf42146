"""Settings of the text policy: plain frozen dataclasses, validated at the file boundary."""

from dataclasses import dataclass, field
from typing import Annotated, Literal
from urllib.parse import urlsplit

from mmrl.policies.shared.compiled import refuse_computed_twice
from mmrl.policies.shared.lora import LoraSettings, check_teachers
from mmrl.policies.shared.quantized.load import Quantized, refuse_idle
from mmrl.policies.video.sampling import VideoSettings
from mmrl.runtime.blame import refuse_where
from mmrl.runtime.net.fetch import check_address, is_local
from mmrl.runtime.net.secrets import read_secret
from mmrl.runtime.ranges import Count, CountOrNone, Large, NonNegative, Positive, PositiveShare, Range, Share, check_ranges


@dataclass(frozen=True)
class EngineConfig:
    """vLLM servers that write completions: one that mmrl starts and watches, or those that `url` names."""

    kind: Literal["vllm"] = "vllm"
    """The engine; vLLM is the only one."""
    url: tuple[str, ...] = ()
    """Servers that others run, such as ["http://node7:8000"]; they share the rows of a step. Empty: mmrl starts one itself."""
    environment: str = ""
    """The folder of vLLM's own environment, for a server that mmrl starts; empty: where `mmrl engine install` puts it."""
    port: Annotated[int, Range(0, 65535)] = 0
    """Where the server that mmrl starts listens, on this machine only; 0 = any that is free."""
    devices: str = ""
    """The cards of the server that mmrl starts, as in CUDA_VISIBLE_DEVICES = "7"; empty: those of the run."""
    memory_share: PositiveShare = 0.9
    """The share of a card's memory that the server takes; below what the trainer leaves where they share one."""
    cache_mb: CountOrNone = 0
    """Memory of the server's cache of keys and values; 0 = what memory_share leaves, and 512 on a CPU."""
    max_length: CountOrNone = 0
    """Most tokens of a prompt and its completion together; 0 = the model's own."""
    max_rows: Count = 256
    """Completions that one server writes side by side."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """The type that the server computes in; auto = policy.dtype."""
    sync: Literal["auto", "lora", "file", "broadcast"] = "auto"
    """How new weights reach the servers. lora: the adapter, as a new one each time. file: all of them, adapters merged.
    broadcast: all of them over the network, with no folder that both see. auto = lora where adapters train, else file."""
    folder: str = ""
    """Where adapters and weights are put, on a file system that the servers see too; empty: a temporary one of this machine."""
    local: str = ""
    """A folder of each server's own machine, of one run at a time, such as "/dev/shm/run": one worker of the machine copies new
    weights there for all. Empty: each worker reads policy.engine.folder."""
    timeout_s: Positive = 600.0
    """Seconds that a request may take, and that a server which is restarting is waited for."""
    retries: CountOrNone = 3
    """How often a request that was aborted or failed is sent again, and a server that died is started again."""
    sleep: bool = False
    """True: the servers give their card's memory back while the policy reads and updates, for one card that both share."""
    token_env: str = "MMRL_ENGINE_TOKEN"
    """The environment variable that holds the servers' --api-key, if they want one."""
    options: tuple[str, ...] = ()
    """Further words of `vllm serve` for a server that mmrl starts, such as ["--tensor-parallel-size", "2"]."""

    def __post_init__(self) -> None:
        check_ranges(self)
        read_secret(self.token_env)
        for url in self.url:
            check_url(url)
        idle = next((name for name in ("environment", "port", "devices", "options") if self.url and getattr(self, name)), None)
        far = next((url for url in self.url if not is_local(urlsplit(url).hostname or "")), None)
        in_files = self.folder and self.sync != "broadcast"
        why = 'policy.engine.sync = "broadcast" writes none' if self.folder else "policy.engine.folder is empty"
        reasons = {
            f"url names a server twice ({', '.join(self.url)}): name each once": len({url.rstrip("/") for url in self.url})
            < len(self.url),
            f"{idle} is for a server that mmrl starts, and policy.engine.url names servers that others run: remove one of them": (
                idle is not None
            ),
            f"url names {far}, which is another machine, and policy.engine.folder is empty, so new weights cannot reach it: set "
            "policy.engine.folder to a folder that this machine and the servers share, or policy.engine.sync = "
            '"broadcast"': far is not None and not self.folder and self.sync != "broadcast",
            f"local is {self.local!r}, and servers have folders of their own: write it from / on": (
                self.local != "" and not self.local.startswith("/")
            ),
            f"local is where machines copy files of weights, and {why}: set policy.engine.folder to a folder that all machines "
            "share and sync to another way, or leave local empty": self.local != "" and not in_files,
        }
        refuse_where("policy.engine.", reasons)

    @property
    def is_own(self) -> bool:
        """Does mmrl start the server?"""
        return not self.url

    @property
    def shares_card(self) -> bool:
        """Does the server lie on the trainer's card?"""
        return self.is_own and not self.devices


def check_url(url: str, key: str = "policy.engine.url") -> None:
    """Raise ValueError unless this is the address of a server, without a path, a query or a password."""
    check_address(url, key, "http://host:port")
    if urlsplit(url).path not in ("", "/"):
        raise ValueError(f"{key} is {url!r}, which has a path: write http://host:port")


BoxSpaceSetting = Literal["auto", "pixel", "resized", "norm1000", "norm1", "norm1000_yx"]


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn: temperature first, then the filters top_k, top_p and min_p in this order."""

    temperature: NonNegative = 1.0
    """0 = greedy."""
    top_p: PositiveShare = 1.0
    """Keep the most likely tokens up to this probability in all; 1 = all."""
    top_k: CountOrNone = 0
    """Keep the n most likely tokens; 0 = all."""
    min_p: Share = 0.0
    """Keep tokens at least this likely, relative to the most likely one."""
    max_new_tokens: Count = 256
    """Most tokens of a completion; one that is cut there counts as truncated."""
    stop: tuple[str, ...] = ()
    """A completion ends when its text holds one of these; the text of the stop stays in the completion."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if "" in self.stop:
            raise ValueError(f"sampling.stop is {self.stop!r}: it must be without empty strings")


@dataclass(frozen=True)
class QuantizedSettings(Quantized):
    """Which weights rest in 4 bits with `policy.weights = "nf4"`: linear layers of these parts, never the head or embeddings."""

    parts: tuple[Literal["language", "vision", "projector"], ...] = ("language",)
    """Parts of the model."""
    embeddings: Literal["device", "host"] = "device"
    """Where input embeddings rest. host: in the host's memory, and rows are looked up there; for one GPU, and for models whose
    head has weights of its own."""


@dataclass(frozen=True)
class TextTeacher:
    """Who reads what the policy writes: an adapter of the same model, or another model with the same tokens."""

    name: str
    """As in the column `teacher` of prompts, where there are several; one alone reads all."""
    adapter: str | None = None
    """Folder of a saved adapter of policy.model: the model's own weights are there once."""
    model: str | None = None
    """A folder, or a name on the Hugging Face hub."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of another model."""
    weights: Literal["float", "nf4"] = "float"
    """Of another model; nf4: linear layers rest in 4 bits."""
    trust_remote_code: bool = False
    """Of another model: as policy.trust_remote_code, which is of the policy's own alone."""
    url: tuple[str, ...] = ()
    """vLLM servers of `model`, such as ["http://node7:8000"], which share the rows; only its tokenizer and processor are loaded
    here. They tell of single tokens: form = "sampled", or top. MMRL_ENGINE_TOKEN holds their --api-key, if they want one."""
    timeout_s: Positive = 600.0
    """Of servers: seconds that a request may take, and that one which is restarting is waited for."""

    def __post_init__(self) -> None:
        check_ranges(self)
        for url in self.url:
            check_url(url, f"policy.teachers {self.name!r}: url")
        if (self.adapter is None) == (self.model is None):
            raise ValueError(f"policy.teachers {self.name!r} needs either adapter or model: give one of them")
        loaded = (self.dtype, self.weights) != ("bfloat16", "float")
        if self.adapter is not None and (loaded or self.trust_remote_code or self.url):
            raise ValueError(
                f"policy.teachers {self.name!r} is an adapter, and dtype, weights, url and trust_remote_code are of another model"
                ": leave them out"
            )
        if loaded if self.url else self.timeout_s != 600:
            idle, other = ("dtype and weights are", "loaded here") if self.url else ("timeout_s is", "on a server (url)")
            raise ValueError(f"policy.teachers {self.name!r}: {idle} of a model that is {other}: leave it out")


@dataclass(frozen=True)
class TextPolicyConfig:
    """A vision-language model, how it is trained and how it samples."""

    model: str
    """A folder, or a name on the Hugging Face hub."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: full fine-tuning keeps float32 master weights and computes in bfloat16; with LoRA only adapters are float32."""
    lora: LoraSettings | None = None
    """None: all weights train."""
    weights: Literal["float", "nf4"] = "float"
    """nf4: the model's own linear layers rest in 4 bits (arXiv:2305.14314), .52 bytes a weight in place of 2, and adapters
    train beside them; needs policy.lora."""
    quantized: QuantizedSettings = QuantizedSettings()
    """What rests in 4 bits with weights = "nf4"."""
    freeze: tuple[str, ...] = ()
    """Parts that do not train: vision, projector, language, or layers:0-3 of the language model (both ends included)."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them."""
    compile: bool = False
    """Compile the language model's layers for readings and updates, and what writes a token (see decode): the first steps take
    minutes more, later ones less time."""
    scores: tuple[str, ...] = ()
    """What a head on the last token scores, such as overall: the policy is a reward model then, trained by stages of the kinds
    scores and ratings. "value": what it expects of a row before every token, for the advantage ValueGae. Empty: there is none."""
    prefix: Literal["auto", "packed", "repeated"] = "auto"
    """How completions are read: packed behind their prompt in one row, or each with its prompt repeated; auto packs where the
    model can and it saves a tenth of the tokens."""
    context: Count = 1
    """Processes that read a packed row together, each a piece of it, so that long clips fit; they divide the heads of attention
    and the run's processes. Every process samples rows of its own, as without it."""
    sampling: Sampling = Sampling()
    """How completions are drawn while training."""
    system_prompt: str = ""
    """The system message of every prompt; empty = none."""
    answer_format: str = "none"
    """What is put around every question: none, direct, think, box, think_box, or a text with {question} in it. box and think_box
    ask for boxes as the model writes them."""
    box_space: BoxSpaceSetting = "auto"
    """How the model writes boxes; auto = as its makers say."""
    min_pixels: Large | None = None
    """Qwen-VL: least area of a picture, in pixels; None: as its processor says."""
    max_pixels: Large | None = None
    """Qwen-VL: largest area of a picture, in pixels; frames of clips: see video."""
    video: VideoSettings = field(default_factory=VideoSettings)
    """How clips become frames."""
    max_prompt_tokens: Count | None = None
    """A longer prompt is an error; nothing is ever cut."""
    rollout_rows: Count = 128
    """Completions decoded side by side; more of them need more memory, fewer more time. Samples do not depend on it."""
    logit_chunk: Large = 2**26
    """Logits that exist at the same time: 256 MiB in float32, some 440 positions of a vocabulary of 152,000."""
    vision_cache_mib: CountOrNone = 1024
    """MiB of features of pictures and clips that are kept while their prompts are in use, so that a vision part that does not
    train looks at each once; up to a quarter lies on the card, the rest in the memory of the host. 0 = none."""
    decode: Literal["auto", "plain", "shared", "captured"] = "auto"
    """How tokens are written. plain: every completion has its prompt's keys and values. shared: completions of a prompt share
    them, in storage that stays, and with policy.compile a token is one compiled graph; for models without windows. captured: that
    graph replayed by a GPU, which none has run yet. auto: shared with policy.compile and such a model, else plain."""
    episode_cache_mib: CountOrNone = 4096
    """With [environment]: MiB of keys and values that unfinished episodes keep on the card, so that each turn reads what came
    since the last one alone. Turns beyond it are read again, as are all with 0 and with models that keep other states."""
    pictures_ahead_mib: CountOrNone = 1024
    """MiB of pictures that are opened before they are needed, as the next step's are while weights are updated. 0 = none."""
    trust_remote_code: bool = False
    """True: Python files of the model's repository run, with your rights; a warning says so."""
    attn_implementation: str | None = None
    """Kernel of attention by transformers' name (sdpa, eager, flash_attention_2); None: its own choice."""
    copies_on: Literal["device", "cpu"] = "device"
    """Where reference and averaged weights are kept while not in use. cpu: they leave a GPU's memory to the run, and are copied
    there and back for every reading."""

    teachers: tuple[TextTeacher, ...] = ()
    """Who reads the completions besides the policy, for terms and advantages that follow the model `teacher`."""
    engine: EngineConfig | None = None
    """Who writes completions; None: the policy's own network."""
    variant: str | None = None
    """Weights with this word in their files' names (transformers' `variant`), such as fp16; None: the plain ones."""

    def __post_init__(self) -> None:
        check_ranges(self)
        check_teachers([one.name for one in self.teachers], any(one.adapter for one in self.teachers), self.lora)
        refuse_computed_twice(self.compile, self.gradient_checkpointing)
        refuse_idle(self.weights, self.quantized, QuantizedSettings(), self.lora)
        refuse_context(self)
        sync, urls = ("auto", set[str]()) if self.engine is None else (self.engine.sync, {*self.engine.url})
        served = next((one.name for one in self.teachers if urls & {*one.url}), None)
        odd = next((axis for axis in self.scores if not axis or "," in axis or self.scores.count(axis) > 1), None)
        reasons = {
            'policy.engine.sync is "lora", and all weights train, for there is no [policy.lora]: set it to "auto" or "file"': (
                sync == "lora" and self.lora is None
            ),
            f"policy.variant is {self.variant!r}, and [policy.engine] reads the plain weights of a model: save those of the "
            "variant to a folder of their own, and name that": self.engine is not None and self.variant is not None,
            "policy.decode is 'captured', and no GPU has run it yet, so that nobody knows if a replayed graph writes the same: "
            "set policy.decode = 'shared' and policy.compile = true, whose step is the graph that would be captured": (
                self.decode == "captured"
            ),
            f"policy.decode is 'shared', and {unshared(self)}: change that, or set policy.decode = 'plain'": (
                self.decode == "shared" and unshared(self) is not None
            ),
            f"policy.teachers {served!r} is at a server of policy.engine, which gets the policy's weights: start another": (
                served is not None
            ),
            f'policy.engine.sync is "{sync}", which sends all weights, and policy.weights is "nf4", whose codes a server cannot '
            'read: set policy.engine.sync = "lora", so that adapters are sent': (
                self.weights != "float" and sync not in ("auto", "lora")
            ),
            f"policy.scores holds {odd!r}: name every axis once, without commas": odd is not None,
            "policy.scores puts a head on the model that servers do not have: leave [policy.engine] out": (
                bool(self.scores) and self.engine is not None
            ),
            f"policy.prefix is 'packed', and policy.attn_implementation {self.attn_implementation!r} cannot read them: set "
            "policy.prefix = 'repeated', or leave policy.attn_implementation out": (
                self.prefix == "packed" and self.attn_implementation not in (None, "sdpa")
            ),
        }
        refuse_where("", reasons)


def unshared(policy: TextPolicyConfig) -> str | None:
    """Why completions cannot share their prompts while they are written, by the settings; None: they can."""
    reasons = {
        "the servers of [policy.engine] write": policy.engine is not None,
        "policy.prefix = 'repeated' leaves attention as it is": policy.prefix == "repeated",
        "policy.attn_implementation is another one than sdpa": policy.attn_implementation not in (None, "sdpa"),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def refuse_context(policy: TextPolicyConfig) -> None:
    """Raise ValueError for rows that several processes read together, where that is not possible or was not tried."""
    reasons = {
        "policy.prefix = 'repeated' packs no rows": policy.prefix == "repeated",
        "policy.attn_implementation is another one than sdpa": policy.attn_implementation not in (None, "sdpa"),
        "policy.compile was not tried with it": policy.compile,
        f"policy.decode = {policy.decode!r} was not tried with it": policy.decode not in ("auto", "plain"),
        f"policy.weights = {policy.weights!r} was not tried with it": policy.weights != "float",
        "policy.scores puts a head on rows that was not tried with it": bool(policy.scores),
        "policy.teachers were not tried with it": bool(policy.teachers),
        "the servers of [policy.engine] were not tried with it": policy.engine is not None,
    }
    if policy.context > 1:
        refuse_where(f"policy.context is {policy.context}, and ", reasons, ": change that, or leave policy.context out")


def refuse_rest(context: int, processes: int) -> None:
    """Raise ValueError for processes that cannot be cut into teams of `context`."""
    if processes % context:
        raise ValueError(
            f"policy.context is {context}, and the processes of the run are {processes}: start a multiple of {context} (torchrun "
            f"--nproc_per_node {context}, or `mmrl launch` with cluster.trainers = {context}), or leave policy.context out"
        )
