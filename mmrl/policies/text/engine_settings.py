"""`[policy.engine]`: who writes completions in place of the policy's own network."""

from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlsplit

from mmrl.runtime.net.fetch import check_address, is_local
from mmrl.runtime.net.secrets import read_secret
from mmrl.runtime.ranges import Count, CountOrNone, Positive, PositiveShare, Range, check_ranges


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
        if len(set(self.url)) < len(self.url):
            raise ValueError(f"policy.engine.url names a server twice ({', '.join(self.url)}): name each once")
        idle = [name for name in ("environment", "port", "devices", "options") if self.url and getattr(self, name)]
        if idle:
            raise ValueError(
                f"policy.engine.{idle[0]} is for a server that mmrl starts, and policy.engine.url names servers that others run: "
                "remove one of them"
            )
        far = [url for url in self.url if not is_local(urlsplit(url).hostname or "")]
        if far and not self.folder and self.sync != "broadcast":
            raise ValueError(
                f"policy.engine.url names {far[0]}, which is another machine, and policy.engine.folder is empty, so new weights "
                "cannot reach it: set policy.engine.folder to a folder that this machine and the servers share, or "
                'policy.engine.sync = "broadcast"'
            )
        if self.local and not self.local.startswith("/"):
            raise ValueError(f"policy.engine.local is {self.local!r}, and servers have folders of their own: write it from / on")
        if self.local and (not self.folder or self.sync == "broadcast"):
            why = "policy.engine.folder is empty" if not self.folder else 'policy.engine.sync = "broadcast" writes none'
            raise ValueError(
                f"policy.engine.local is where machines copy files of weights, and {why}: set policy.engine.folder to a folder "
                "that all machines share and sync to another way, or leave local empty"
            )

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
