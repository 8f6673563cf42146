"""New weights over the network: the trainer broadcasts them into a process group that it shares with a server's workers."""

import json
import logging
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

import torch
from torch import Tensor

from mmrl.engine.sync import TYPES, Sync, Update, checkpoint_weights, pause_and_empty
from mmrl.engine.wire.client import EngineClient, EngineDownError, EngineRefusedError
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
from mmrl.policies.text.host import TextHost
from mmrl.runtime.net.fetch import CONNECT_S, is_local

log = logging.getLogger("mmrl")
JOIN_S = 60.0
"""Longest wait for a server's workers to join."""
END_S = 10.0
"""Longest wait for a server's own account of a failed transfer."""


@dataclass(frozen=True)
class Joined:
    """A server that is in a group with this process."""

    name: str
    group: WeightGroup


class BroadcastSync(Sync):
    """All weights through a process group of each server's: NCCL between cards, else Gloo over TCP. Nothing is written to disk.

    The main process keeps them in its own memory, so that a server which is started again gets those of the step.
    """

    def __init__(self, dtype: str, device: torch.device, timeout_s: float) -> None:
        self.dtype, self.device, self.timeout_s = dtype, device, timeout_s
        self.bundle = BUNDLE
        self.weights: Mapping[str, Tensor] = {}
        self.joined: dict[str, Joined] = {}
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
        joined = self.join(client)
        with pause_and_empty(client):
            if not self.holds(client, update):
                client.post("/start_weight_update", seconds=self.timeout_s)
                self.send(client, joined, weights, facts)
                client.post("/finish_weight_update", {"weight_version": update.name}, self.timeout_s)

    def advice(self, update: Update) -> str:
        return 'Does it serve the policy\'s own model? If it does, send a file (policy.engine.sync = "file")'

    def close(self) -> None:
        """Leave all groups."""
        for url in list(self.joined):
            self.drop(url)

    def drop(self, url: str) -> None:
        """Leave the group of one server."""
        joined = self.joined.pop(url, None)
        if joined is not None:
            joined.group.close()

    def send(self, client: EngineClient, joined: Joined, weights: Mapping[str, Tensor], facts: str) -> None:
        """Send all weights while the server waits for them.

        Raises:
            EngineDownError: it left or does not go on; its group is given up, and the next update joins another.
        """
        info = {"update_info": {"group": joined.name, "tensors": facts}}
        with ThreadPoolExecutor(1) as pool:
            posted = pool.submit(client.post, "/update_weights", info, self.timeout_s)
            try:
                joined.group.send(weights, lambda: look_at(posted))
                posted.result(self.timeout_s)
            except (EngineDownError, EngineRefusedError, RuntimeError, LateError) as error:
                self.drop(client.url)
                raise EngineDownError(
                    f"{client.url} did not take all weights over the network ({reason_of(error, posted)}): look into its log; "
                    'if that goes on, set policy.engine.sync = "file"'
                ) from None

    def join(self, client: EngineClient) -> Joined:
        """The group with a server's workers: the one that they are in still, or a new one.

        Raises:
            EngineDownError: they cannot reach this machine, or do not come.
        """
        joined = self.joined.get(client.url)
        if joined is not None and not client.ask_workers("not_in_group", joined.name):
            return joined
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
            cards = read_cards(place.share_of(store))
        except RuntimeError as error:
            raise EngineDownError(f"{client.url}: its workers did not say what they are ({first_line(error)})") from None
        self.joined[client.url] = self.join_as(client, store, place, cards)
        return self.joined[client.url]

    def join_as(self, client: EngineClient, store: Torch, place: MeetingPlace, cards: list[Card]) -> Joined:
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
        return Joined(place.name, group)


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


def read_cards(store: Torch) -> list[Card]:
    """The cards that the workers wrote into the store, in their order."""
    first = json.loads(store.get("worker/0"))
    cards = [json.loads(store.get(f"worker/{rank}")) for rank in range(first["workers"])]
    return [Card(one["uuid"], tuple(one["nccl"])) for one in cards]


def address_toward(url: str) -> str:
    """The address under which a server reaches this machine.

    Raises:
        EngineDownError: nothing answers there.
    """
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
