"""New weights on their way to the servers: an adapter's folder, all weights in one file, or over the network."""

import json
import logging
import shutil
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import torch
from torch import Tensor

from mmrl.engine.wire.client import EngineClient, EngineDownError, EngineRefusedError
from mmrl.engine.worker.weight_copy import place_of, write_sums
from mmrl.engine.worker.weight_group import (
    BUNDLE,
    Card,
    MeetingPlace,
    Seat,
    TensorFacts,
    Torch,
    WeightGroup,
    first_line,
    open_store,
    own_address,
    tensors_as_json,
)
from mmrl.policies.shared.lora import ADAPTER, is_own
from mmrl.policies.shared.weights import whole
from mmrl.policies.text.host import TextHost
from mmrl.runtime.net.fetch import CONNECT_S, is_local

KEPT = 2
"""Updates that stay in the folder: the one that is served, and the one before it."""
LEAVE_S = 10.0
"""Longest wait at the end of a run for a server that removes a copy."""
ADAPTER_PREFIX = "base_model.model."
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Update:
    """Weights that lie where the servers find them: `Update("3fe0-7", Path("/shared/3fe0-7"))`."""

    name: str
    """Of these weights alone, in this run and any other."""
    path: Path


@contextmanager
def pause_and_empty(client: EngineClient) -> Iterator[None]:
    """A block in which a server begins no request, and has forgotten what it computed before.

    Its caches are emptied before it gets weights, so that nothing from earlier weights is served under the new name. After a
    failure it stays paused: it may hold half an update, which the next complete one repairs.
    """
    client.pause()
    client.reset_caches()
    yield
    client.resume()


class Sync(ABC):
    """A way to bring weights into a running server; in this base they take the place of its own."""

    @abstractmethod
    def save(self, host: TextHost, update: Update) -> None:
        """Put the live weights where `update` says. Every process calls it, and the main one writes."""

    @abstractmethod
    def push(self, client: EngineClient, update: Update) -> None:
        """Let a server forget what it computed before, and take the weights over if it does not have them.

        Raises EngineDownError where it does not answer, EngineRefusedError where it cannot read them.
        """

    @abstractmethod
    def advice(self, update: Update) -> str:
        """A sentence for a user whose server refused them."""

    def holds(self, client: EngineClient, update: Update) -> bool:
        """True if the server names these weights as its own; then its caches hold nothing from others."""
        return client.weight_version() == update.name

    def model(self, served: str, update: Update) -> str:
        """The model that requests ask for, where the server gives its own the name `served`."""
        return served

    def version(self, start: str, update: Update) -> str:
        """The version of weights that answers name, where the server's was `start` when the run began."""
        return update.name

    def leave(self, client: EngineClient) -> None:  # noqa: B027 - most have nothing to do
        """The run is over for a server, which may be gone."""

    def close(self) -> None:  # noqa: B027 - most ways have nothing to close
        """The run is over."""


@dataclass(frozen=True)
class InFolder(Sync):
    """The common base of transfers through a folder."""

    local: str = field(default="", kw_only=True)
    """A folder of each server's machine, into which one of its workers copies the weights for all; empty: each reads them."""

    def wrote(self, update: Update) -> None:
        """The main process wrote an update."""
        if self.local:
            write_sums(update.path)

    def near(self, client: EngineClient, update: Update) -> Path:
        """The folder that a server is to read, on its own machine where a copy is wanted; EngineRefusedError without it."""
        if not self.local:
            return update.path
        if problems := client.ask_workers("copy_near", json.dumps([str(update.path), self.local])):
            raise EngineRefusedError(f"{client.url}: {problems[0]}")
        return place_of(str(update.path), self.local)

    def advice(self, update: Update) -> str:
        return f"Is {update.path} on a file system that the server sees too? If not, set policy.engine.folder"

    def leave(self, client: EngineClient) -> None:
        if self.local:
            with suppress(EngineDownError, EngineRefusedError):
                client.reopen()
                client.post("/collective_rpc", {"method": "drop_copies", "args": [self.local]}, LEAVE_S)


@dataclass(frozen=True)
class AdapterSync(InFolder):
    """The adapter as one of a new name each time: the model's own weights stay, and an old request can meet no new weights."""

    def save(self, host: TextHost, update: Update) -> None:
        named = host.net.model.state_dict(keep_vars=True)
        weights = {ADAPTER_PREFIX + name: whole(weight) for name, weight in named.items() if is_own(name)}
        if host.ranks.is_main:
            host.adapter.save_pretrained(update.path, state_dict=weights, selected_adapters=[ADAPTER])
            self.wrote(update)

    def push(self, client: EngineClient, update: Update) -> None:
        folder = self.near(client, update)
        with pause_and_empty(client):
            if not self.holds(client, update):
                old = [name for name in client.model_names() if name.startswith(family_of(update.name))]
                client.load_adapter(update.name, str(folder))
                for name in old:
                    client.post("/v1/unload_lora_adapter", {"lora_name": name})

    def holds(self, client: EngineClient, update: Update) -> bool:
        return update.name in client.model_names()

    def model(self, served: str, update: Update) -> str:
        return update.name

    def version(self, start: str, update: Update) -> str:
        return start


@dataclass(frozen=True)
class FileSync(InFolder):
    """All weights in one file of safetensors, under the names of the model's own checkpoints."""

    dtype: str = "float32"
    """The type that the server computes in."""

    def save(self, host: TextHost, update: Update) -> None:
        weights = whole_weights(host, TYPES[self.dtype])
        if host.ranks.is_main:
            with without_bars():
                # one file, whatever its size: an update of a part is none
                host.net.model.save_pretrained(update.path, state_dict=weights, max_shard_size=2**62)
                host.processor.save_pretrained(update.path)
            self.wrote(update)

    def push(self, client: EngineClient, update: Update) -> None:
        file = str(self.near(client, update) / "model.safetensors")
        if problems := client.ask_workers("weights_problem", file):
            raise EngineRefusedError(f"{client.url} cannot take the weights in {file} ({problems[0]})")
        with pause_and_empty(client):
            if not self.holds(client, update):
                client.update({"path": file}, update.name)


@contextmanager
def without_bars() -> Iterator[None]:
    """A block in which transformers draws no progress bars: it would at every step."""
    from transformers.utils import logging

    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            logging.enable_progress_bar()


def family_of(name: str) -> str:
    """The beginning of the names of one run's updates."""
    return name.rsplit("-", 1)[0] + "-"


def whole_weights(host: TextHost, dtype: torch.dtype) -> dict[str, Tensor]:
    """Name -> weight on the CPU, gathered where it is sharded, adapters merged. On other processes than the main one: nothing.

    Every process must call it.
    """
    model = host.net.model
    adapted = [(name, module) for name, module in model.named_modules() if hasattr(module, "lora_B")]
    scales = {name: module.scaling[ADAPTER] for name, module in adapted if ADAPTER in module.scaling}
    named = model.state_dict(keep_vars=True)
    found: dict[str, Tensor] = {}
    for name, weight in named.items():
        if ".lora_" in name:
            continue
        value = whole(weight)
        layer = name.removesuffix(".base_layer.weight")
        if layer in scales and layer != name:
            outer, inner = (whole(named[f"{layer}.lora_{side}.{ADAPTER}.weight"]).float() for side in "BA")
            value = value + scales[layer] * (outer @ inner).to(value.dtype)
        if host.ranks.is_main:
            found[name.replace(".base_layer.", ".")] = value.to(dtype) if value.is_floating_point() else value
    return found


def checkpoint_weights(host: TextHost, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights under the names and in the shapes of the model's own checkpoints, each once: what a file of them would hold.

    Every process must call it; on others than the main one there are none.
    """
    from transformers.core_model_loading import revert_weight_conversion

    model, weights = host.net.model, whole_weights(host, dtype)
    tied = model.all_tied_weights_keys
    for name in [name for name, kept in tied.items() if kept in weights]:
        weights.pop(name, None)
    return revert_weight_conversion(model, weights) if weights else weights


def drop_old(folder: Path, served: Update, keep: int = KEPT) -> None:
    """Remove the updates of a run that are older than those it needs; later ones may wait to be served."""
    found = sorted((path for path in folder.glob(f"{family_of(served.name)}*") if path.is_dir()), key=number_of)
    for path in [path for path in found if number_of(path) <= number_of(served.path)][:-keep]:
        shutil.rmtree(path, ignore_errors=True)


def number_of(path: Path) -> int:
    """An update's number in its run."""
    return int(path.name.rsplit("-", 1)[1])


log = logging.getLogger("mmrl")
JOIN_S = 60.0
"""Longest wait for a server's workers to join."""
END_S = 10.0
"""Longest wait for a server's own account of a failed transfer."""


class BroadcastSync(Sync):
    """All weights through a process group of each server's: NCCL between cards, else Gloo over TCP. Nothing is written to disk.

    The main process keeps them in its own memory, so that a server which is started again gets those of the step.
    """

    def __init__(self, dtype: str, device: torch.device, timeout_s: float) -> None:
        self.dtype, self.device, self.timeout_s = dtype, device, timeout_s
        self.bundle = BUNDLE
        self.weights: Mapping[str, Tensor] = {}
        self.groups: dict[str, WeightGroup] = {}
        """Address of a server -> the group that its workers are in with this process."""
        self._saving = threading.Lock()

    def save(self, host: TextHost, update: Update) -> None:
        with self._saving:
            # the old ones go first: both at once would be twice the model
            self.weights = {}
            self.weights = checkpoint_weights(host, TYPES[self.dtype])

    def push(self, client: EngineClient, update: Update) -> None:
        with self._saving:
            weights = self.weights
        facts = tensors_as_json([TensorFacts.of(name, weight) for name, weight in weights.items()])
        if problems := client.ask_workers("tensors_problem", facts):
            raise EngineRefusedError(f"{client.url} cannot take the weights ({problems[0]})")
        group = self.join(client)
        with pause_and_empty(client):
            if not self.holds(client, update):
                client.post("/start_weight_update", seconds=self.timeout_s)
                self.send(client, group, weights, facts)
                client.post("/finish_weight_update", {"weight_version": update.name}, self.timeout_s)

    def advice(self, update: Update) -> str:
        return 'Does it serve the policy\'s own model? If it does, send a file (policy.engine.sync = "file")'

    def close(self) -> None:
        """Leave all groups."""
        for url in list(self.groups):
            self.drop(url)

    def drop(self, url: str) -> None:
        """Leave the group of one server."""
        if (group := self.groups.pop(url, None)) is not None:
            group.close()

    def send(self, client: EngineClient, group: WeightGroup, weights: Mapping[str, Tensor], facts: str) -> None:
        """Send all weights while the server waits for them.

        Raises EngineDownError where it left or does not go on; its group is given up, and the next update joins another.
        """
        info = {"update_info": {"group": group.place.name, "tensors": facts}}
        with ThreadPoolExecutor(1) as pool:
            posted = pool.submit(client.post, "/update_weights", info, self.timeout_s)
            try:
                group.send(weights, lambda: look_at(posted))
                posted.result(self.timeout_s)
            except (EngineDownError, EngineRefusedError, RuntimeError, LateError) as error:
                self.drop(client.url)
                raise EngineDownError(
                    f"{client.url} did not take all weights over the network ({reason_of(error, posted)}): look into its log; "
                    'if that goes on, set policy.engine.sync = "file"'
                ) from None

    def join(self, client: EngineClient) -> WeightGroup:
        """The group with a server's workers: the one that they are in still, or a new one.

        Raises EngineDownError where they cannot reach this machine, or do not come.
        """
        group = self.groups.get(client.url)
        if group is not None and not client.ask_workers("not_in_group", group.place.name):
            return group
        self.drop(client.url)
        seconds = min(JOIN_S, self.timeout_s)
        host = address_toward(client.url)
        store = open_store(host, seconds)
        place = MeetingPlace(host, store.port, uuid.uuid4().hex[:12], seconds, self.timeout_s, self.bundle)
        if problems := client.ask_workers("meet_trainer", json.dumps(asdict(place))):
            raise EngineDownError(
                f"{client.url}: {problems[0]}: open that machine's ports to this one's, or set policy.engine.sync = \"file\""
            )
        try:
            shared = place.share_of(store)
            workers = json.loads(shared.get("worker/0"))["workers"]
            told = [json.loads(shared.get(f"worker/{rank}")) for rank in range(workers)]
        except RuntimeError as error:
            raise EngineDownError(f"{client.url}: its workers did not say what they are ({first_line(error)})") from None
        cards = [Card(one["uuid"], tuple(one["nccl"])) for one in told]
        self.groups[client.url] = self.join_as(client, store, place, cards)
        return self.groups[client.url]

    def join_as(self, client: EngineClient, store: Torch, place: MeetingPlace, cards: list[Card]) -> WeightGroup:
        """Join as rank 0 while the workers join as the others."""
        kind, why = kind_for(Card.of(self.device), cards)
        if why:
            log.warning("weights go to %s over TCP (Gloo) and not from card to card (NCCL), for %s", client.url, why)
        seat = Seat(0, 1 + len(cards), self.device, place.host)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(client.ask_workers, "join_trainer", kind)
            try:
                group = WeightGroup(store, place, kind, seat)
            except RuntimeError as error:
                problem = reason_of(error, asked)
                raise EngineDownError(f"{client.url}: its {len(cards)} worker(s) did not join ({problem})") from None
            if problems := asked.result():
                raise EngineDownError(f"{client.url}: {problems[0]}")
        return group


def kind_for(own: Card, cards: list[Card]) -> tuple[str, str]:
    """NCCL or Gloo, and why no NCCL where both sides have cards."""
    if not own.uuid or not all(card.uuid for card in cards):
        return "gloo", ""
    others = {card.nccl for card in cards} - {own.nccl}
    if others:
        here, there = (".".join(map(str, version)) for version in (own.nccl, min(others)))
        return "gloo", f"NCCL is {here} here and {there} there, and has to be the same"
    used = [own.uuid, *(card.uuid for card in cards)]
    if len(set(used)) < len(used):
        return "gloo", "two of their processes share a card, which NCCL refuses"
    return "nccl", ""


def address_toward(url: str) -> str:
    """The address under which a server reaches this machine; EngineDownError where nothing answers there."""
    parts = urlsplit(url)
    host, port = str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80)
    if is_local(host):
        return "127.0.0.1"
    try:
        return own_address(host, port, CONNECT_S)
    except OSError as error:
        raise EngineDownError(f"{url} cannot be reached ({error})") from None


def look_at(posted: "Future[list[str]]") -> None:
    """Raise the server's error if it has given up."""
    if posted.done():
        posted.result()


def reason_of(error: BaseException, posted: "Future[list[str]] | Future[object]") -> str:
    """The server's account of a failure if one comes soon, else that of this side."""
    try:
        answer = posted.result(END_S)
    except (EngineDownError, EngineRefusedError) as reported:
        return str(reported)
    except LateError:
        return first_line(error) if not isinstance(error, LateError) else "it gave no answer in time"
    return str(answer[0]) if isinstance(answer, list) and answer else first_line(error)
