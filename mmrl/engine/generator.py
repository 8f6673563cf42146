"""Completions from vLLM servers, which are given the weights whenever they have moved."""

import atexit
import logging
import platform
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from mmrl.core.episodes import Limits as EpisodeLimits
from mmrl.core.episodes import Worlds
from mmrl.core.ranks import Ranks
from mmrl.engine.facts import Wanted, look_at, tokens_of_probe
from mmrl.engine.fleet import Fleet, Member, Probe, limits_of
from mmrl.engine.server import EngineServer, engine_dtype, resolve_sync, serve_command
from mmrl.engine.sync import AdapterSync, BroadcastSync, FileSync, Sync, Update, drop_old
from mmrl.engine.teachers import AskedTeacher
from mmrl.engine.wire.client import EngineClient, EngineDownError
from mmrl.engine.wire.completions import EngineMismatchError, Written, sampling_params, share_rows
from mmrl.engine.wire_prompts import untold_clip, wire_prompts
from mmrl.policies.shared.lora import ADAPTER
from mmrl.policies.shared.weights import Publication, Weights
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.loading import server_model
from mmrl.policies.text.parts import TextParts
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.settings import EngineConfig, Sampling, TextPolicyConfig
from mmrl.policies.text.write.generate import Completions, Generator, LocalGenerator
from mmrl.runtime.blame import EngineUnavailableError
from mmrl.runtime.spans import in_span
from mmrl.runtime.tensors import stack_ragged

log = logging.getLogger("mmrl")
T = TypeVar("T")


def text_parts(config: TextPolicyConfig, worlds: Worlds | None = None) -> TextParts:
    """The usual parts of a text policy, with vLLM as the generator where the settings name an engine, and where a teacher is."""
    engine, limits, parts = config.engine, None if worlds is None else worlds.limits, TextParts(asked=AskedTeacher, worlds=worlds)
    return parts if engine is None else replace(parts, generator=lambda host: VllmGenerator(host, engine, limits))


class VllmGenerator(Generator):
    """Writes in vLLM servers; locally under weights other than the live ones, under views, and for clips a server would misread.

    Nothing is started or asked before `follow` is called first.

    Raises ValueError where adapters are to be sent, and none train.
    """

    exact = False

    def __init__(self, host: TextHost, settings: EngineConfig, episodes: EpisodeLimits | None = None) -> None:
        """`episodes`: how far those of a run go that has an environment."""
        self.host, self.settings, self.episodes = host, settings, episodes
        self.local = LocalGenerator(host)
        self.sync: Sync = sync_of(host, settings)
        self.run, self.model = "", ""
        self.folder = Path()
        self.server: EngineServer | None = None
        self.fleet: Fleet | None = None
        self.version = -1
        """The updates of the weights that the servers have."""
        self._publishes = False
        self._beside: Ranks | None = None
        """The processes, for the thread that writes while the others train."""
        self._asleep = False
        self._told: set[str] = set()

    def follow(self, weights: Weights, version: int) -> None:
        """Give the live weights to all servers, which are started or looked at first where they were not yet.

        In a run that publishes weights itself there is nothing to do.

        Raises:
            ValueError: a server cannot serve this policy, or cannot read the weights.
            EngineMismatchError: a server answers as if it had others.
            EngineUnavailableError: no server answers.
        """
        if not self._publishes:
            self._give(version, *self._set_aside(version))

    def publish(self, version: int) -> Publication:
        """See FollowsWeights: the first call gives the weights to all servers, unless they have them. Raises as `follow` does.

        From then on the policy's own network writes under other weights than the live ones alone.
        """
        self._publishes = True
        update, probe = self._set_aside(version)
        self._beside = self._beside or self.ranks.apart()

        def hold() -> None:
            if self.version != version:
                self._give(version, update, probe)

        assert self.fleet is not None
        return version, hold, self.fleet.leave

    @property
    def ranks(self) -> Ranks:
        """The processes that are given weights together."""
        return self._beside or self.host.ranks

    def _set_aside(self, version: int) -> tuple[Update, Probe]:
        self.fleet = self.fleet or self._open()
        self.fleet.begin()
        self.wake()
        update = Update(f"{self.run}-{version}", self.folder / f"{self.run}-{version}")
        self.sync.save(self.host, update)
        return update, Probe.of(self.host)

    def _give(self, version: int, update: Update, probe: Probe) -> None:
        assert self.fleet is not None
        self.fleet.update, self.fleet.probe = update, probe
        self._on_main(self.fleet.push)
        if self.host.ranks.is_main:
            drop_old(self.folder, update)
        took = self.ranks.gather([member.alive for member in self.fleet.members])[0]
        for member, is_alive in zip(self.fleet.members, took, strict=True):
            member.alive = is_alive
        self.version = version

    @in_span("generate")
    def write(
        self, prompts: Sequence[Encoded], prompt_index: Sequence[int], seeds: Sequence[tuple[int, int]], sampling: Sampling
    ) -> Completions:
        """Completions of all rows; see Generator. Log-probabilities are NaN where top_k, top_p or min_p cut the distribution.

        Raises EngineUnavailableError where no server answers, EngineMismatchError for an answer that does not fit the prompt,
        the weights or the tokens that are allowed.
        """
        assert self.fleet is not None
        if self.host.weights.active != "policy":
            return self.local.write(prompts, prompt_index, seeds, sampling)
        here = [i for i, place in enumerate(prompt_index) if self._is_local(prompts[place])]
        there = [i for i in range(len(prompt_index)) if i not in set(here)]
        written: list[Written | None] = [None] * len(prompt_index)
        if self.host.ranks.anyone(bool(here)):
            for i, one in zip(here, write_locally(self.local, prompts, prompt_index, seeds, sampling, here), strict=False):
                written[i] = one
        for i, one in zip(there, self._write_there(prompts, prompt_index, seeds, sampling, there), strict=True):
            written[i] = one
        found = [one for one in written if one is not None]
        return completions_of(found, is_cut(sampling), self.version)

    def wake(self) -> None:
        """Let servers be asked again after a stop, and those that sleep take their card's memory back; every process calls it."""
        if self.fleet is not None and not self._publishes:
            self.fleet.begin()
        if self._asleep and self.fleet is not None:
            alive = self.fleet.alive
            self._on_main(lambda: [member.client.wake() for member in alive])
            self._asleep = False

    def rest(self) -> None:
        """The policy reads and updates now: servers on its card release their memory. Every process calls it."""
        if self.settings.sleep and self.fleet is not None and not self._asleep:
            alive = self.fleet.alive
            # one process may have its rows before another one, whose requests still run
            self.host.ranks.wait()
            self._on_main(lambda: [member.client.sleep() for member in alive])
            self._asleep = True

    def close(self) -> None:
        """End a server that mmrl started, and remove files that were only for it."""
        if self.fleet is not None:
            self.fleet.is_over.set()
            for member in self.fleet.members:
                if self.host.ranks.is_main:
                    self.sync.leave(member.client)
                member.client.close()
        self.sync.close()
        if self.server is not None:
            self.server.close()
            self.server = None
        if self.host.ranks.is_main and not self.settings.folder and self.run:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.fleet = None

    def _write_there(
        self,
        prompts: Sequence[Encoded],
        prompt_index: Sequence[int],
        seeds: Sequence[tuple[int, int]],
        sampling: Sampling,
        rows: list[int],
    ) -> list[Written]:
        """The completions of these rows by the servers."""
        assert self.fleet is not None
        used = sorted({prompt_index[i] for i in rows})
        sent = wire_prompts(self.host, [prompts[place] for place in used])
        # Greedy completions are all alike, and vLLM writes one of them per request.
        most = {"most": 1} if sampling.temperature == 0 else {}
        asks = share_rows([used.index(prompt_index[i]) for i in rows], [seeds[i] for i in rows], **most)
        params = sampling_params(sampling, self.host.banned, self.host.eos_token_ids)
        answers = self.fleet.write(asks, sent, params, limits_of(self.host, sampling))
        found = {row: one for ask, written in zip(asks, answers, strict=True) for row, one in zip(ask.rows, written, strict=True)}
        return [found[row] for row in range(len(rows))]

    def _is_local(self, encoded: Encoded) -> bool:
        assert self.fleet is not None
        if encoded.view != "plain":
            return True
        reason = untold_clip(self.host, encoded, [member.facts for member in self.fleet.members])
        if reason and self._publishes:
            raise ValueError(
                f"prompt {encoded.prompt_id!r}: {reason}; set ahead = 0, with which the policy's own network answers it"
            )
        if reason and reason not in self._told:
            self._told.add(reason)
            log.warning("prompt %r is answered by the policy's own network and not by the engine: %s", encoded.prompt_id, reason)
        return bool(reason)

    def _open(self) -> Fleet:
        """Start the server, or connect to given ones, and check that they can serve this policy; every process calls it."""
        ranks = self.host.ranks
        nodes = set(ranks.gather(platform.node()))
        if self.settings.is_own and len(nodes) > 1:
            raise ValueError(
                f"the run's processes are on {len(nodes)} machines, and a server that mmrl starts listens on its own alone: "
                "start servers with `mmrl launch`, and name them in policy.engine.url"
            )
        self._on_main(self._prepare)
        url = [self.server.url] if self.server is not None else list(self.settings.url)
        self.run, self.model, folder, urls = ranks.gather((self.run, self.model, str(self.folder), url))[0]
        self.folder = Path(folder)
        members = self._on_all(lambda: [self._member(url) for url in urls])
        fleet = Fleet(members, self.sync, self.settings, ranks.rank, own=lambda: self.server)
        if ranks.is_main and ranks.world > 1:
            threading.Thread(target=fleet.look_after_all, name="engine-look", daemon=True).start()
        return fleet

    def _prepare(self) -> None:
        self.run, self.model = uuid.uuid4().hex[:12], server_model(self.host.config)
        chosen = self.settings.folder
        self.folder = Path(chosen).expanduser().absolute() if chosen else Path(tempfile.mkdtemp(prefix="mmrl-engine-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        atexit.register(self.close)
        if self.settings.is_own:
            log.warning("starting vLLM for %s; its log is %s", self.model, self.folder / "engine.log")
            served = replace(self.host.config, model=self.model)
            command = partial(serve_command, served, self.settings, lora_rank=adapter_rank(self.host))
            self.server = EngineServer(command, self.settings.port, self.folder, self.settings.retries)

    def _member(self, url: str) -> Member:
        """A server that was looked at; ValueError where it does not answer, or cannot serve this policy."""
        client, config = EngineClient(url, self.settings.timeout_s, self.settings.token_env), self.host.config
        wanted = Wanted(
            model=self.model,
            dtype=engine_dtype(config, self.settings),
            tokens=tokens_of_probe(self.host.tokenizer),
            sync=resolve_sync(config, self.settings),
            lora_rank=adapter_rank(self.host),
            longest=config.sampling.max_new_tokens,
            episodes=self.episodes,
        )
        return Member(client, look_at(client, lambda _: wanted))

    def _on_main(self, act: Callable[[], object]) -> None:
        """Do something on the main process; when it fails there, all processes raise."""
        self._on_all(act if self.host.ranks.is_main else lambda: None)

    def _on_all(self, act: Callable[[], T]) -> T:
        """Do something on every process; when it fails on one, all raise, so that none waits for it."""
        try:
            value = act()
        except (ValueError, OSError, EngineDownError, EngineMismatchError, EngineUnavailableError) as error:
            self.ranks.gather(str(error))
            raise EngineUnavailableError(str(error)) if isinstance(error, EngineDownError) else error from None
        found = [text for text in self.ranks.gather("") if text]
        if found:
            raise EngineUnavailableError(found[0])
        return value


def adapter_rank(host: TextHost) -> int:
    """The rank of the adapter that trains; 0 without one."""
    return 0 if host.config.lora is None else int(host.adapter.peft_config[ADAPTER].r)


def sync_of(host: TextHost, settings: EngineConfig) -> Sync:
    """The way that new weights take; ValueError where adapters are to be sent, and none train."""
    chosen = resolve_sync(host.config, settings)
    if chosen == "lora":
        return AdapterSync(local=settings.local)
    dtype = engine_dtype(host.config, settings)
    return (
        FileSync(dtype, local=settings.local) if chosen == "file" else BroadcastSync(dtype, host.net.device, settings.timeout_s)
    )


def write_locally(
    local: LocalGenerator,
    prompts: Sequence[Encoded],
    prompt_index: Sequence[int],
    seeds: Sequence[tuple[int, int]],
    sampling: Sampling,
    rows: list[int],
) -> list[Written]:
    """The completions of these rows by the policy's own network; a process without rows takes part for the others' sake."""
    used = sorted({prompt_index[i] for i in rows})
    places = [used.index(prompt_index[i]) for i in rows]
    drawn = local.write([prompts[place] for place in used], places, [seeds[i] for i in rows], sampling)
    lengths = drawn.lengths.tolist()
    return [
        Written(drawn.tokens[i, : lengths[i]].tolist(), drawn.logprobs[i, : lengths[i]].tolist(), bool(drawn.stopped[i]))
        for i in range(len(rows))
    ]


def is_cut(sampling: Sampling) -> bool:
    """Do filters cut the distribution? The engine's log-probabilities are then those of what they left."""
    return sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)


def completions_of(written: Sequence[Written], unknown: bool, version: int) -> Completions:
    """The completions as tensors; `unknown`: their log-probabilities are not those of the policy's own distribution."""
    if not written:
        empty = torch.zeros(0, 0)
        return Completions(empty.long(), empty, torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.bool), version)
    tokens = stack_ragged([torch.tensor(list(one.tokens)) for one in written])
    logprobs: Tensor = stack_ragged([torch.tensor(list(one.logprobs), dtype=torch.float32) for one in written])
    return Completions(
        tokens=tokens,
        logprobs=torch.full_like(logprobs, torch.nan) if unknown else logprobs,
        lengths=torch.tensor([len(one.tokens) for one in written]),
        stopped=torch.tensor([one.stopped for one in written]),
        weights_version=version,
        noted=not unknown,
    )
