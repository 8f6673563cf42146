"""Samplers that choose the next prompts. They have state: the same seed and state give the same prompts on every rank."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mmrl.core.protocols import State
from mmrl.core.types import Prompt
from mmrl.runtime.ranges import Count, Seed, check_ranges


def refuse_other_data(state: State, prompts: Sequence[Prompt], seed: int) -> None:
    """Raise ValueError for a sampler's state that is of another data set or seed."""
    for name, now in (("num_prompts", len(prompts)), ("seed", seed)):
        if state[name] != now:
            raise ValueError(
                f"the checkpoint's prompt sampler has {name} {state[name]}, this run has {now}: "
                "resume with the same data and seed, or start a new run from the checkpoint's weights"
            )


@dataclass
class Shuffled:
    """Epochs over a sequence of prompts, each in a new order; a draw may cross from one epoch into the next."""

    prompts: Sequence[Prompt]
    seed: Seed = 0
    epoch: int = field(default=0, init=False)
    position: int = field(default=0, init=False)
    """Prompts of this epoch already drawn."""
    _order: list[int] = field(default_factory=list[int], init=False, repr=False)

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.prompts:
            raise ValueError("the data set has no prompts: check its path, split and filters with `mmrl data check`")
        self._shuffle()

    def draw(self, num_prompts: int) -> list[Prompt]:
        drawn: list[Prompt] = []
        while len(drawn) < num_prompts:
            if self.position == len(self.prompts):
                self.epoch, self.position = self.epoch + 1, 0
                self._shuffle()
            take = self._order[self.position : self.position + num_prompts - len(drawn)]
            drawn += [self.prompts[i] for i in take]
            self.position += len(take)
        return drawn

    def peek(self, num_prompts: int) -> Iterator[Prompt]:
        """Yield the prompts of the next draw."""
        ahead = Shuffled.__new__(Shuffled)
        ahead.__dict__.update(self.__dict__)
        for _ in range(num_prompts):
            yield ahead.draw(1)[0]

    def observe(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]]) -> None:
        """Learns nothing from rewards."""

    def state_dict(self) -> State:
        return {"epoch": self.epoch, "position": self.position, "num_prompts": len(self.prompts), "seed": self.seed}

    def load_state_dict(self, state: State) -> None:
        refuse_other_data(state, self.prompts, self.seed)
        self.epoch, self.position = state["epoch"], state["position"]
        self._shuffle()

    def _shuffle(self) -> None:
        self._order = list(range(len(self.prompts)))
        random.Random(f"{self.seed}/{self.epoch}").shuffle(self._order)


@dataclass
class Streamed:
    """Epochs over prompts that can only be read in order, shuffled within a buffer.

    To resume, the stream is read again from its start and the prompts already drawn are skipped. An iterator (rather than
    an iterable that starts anew each time) lasts for one epoch and cannot be rewound.
    """

    prompts: Iterable[Prompt]
    seed: Seed = 0
    buffer_size: Count = 1024
    """Prompts held at a time, to draw from; 1 keeps the order."""
    num_drawn: int = field(default=0, init=False)
    _stream: Iterator[Prompt] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_ranges(self)
        self._stream = self._endless()

    def draw(self, num_prompts: int) -> list[Prompt]:
        """Raises ValueError when the stream has ended and cannot start anew."""
        drawn = [next(self._stream) for _ in range(num_prompts)]
        self.num_drawn += num_prompts
        return drawn

    def observe(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]]) -> None:
        """Learns nothing from rewards."""

    def state_dict(self) -> State:
        return {"num_drawn": self.num_drawn, "buffer_size": self.buffer_size, "seed": self.seed}

    def load_state_dict(self, state: State) -> None:
        """Raises ValueError when the state is of another buffer or seed, or this sampler has drawn already."""
        for name, now in (("buffer_size", self.buffer_size), ("seed", self.seed)):
            if state[name] != now:
                raise ValueError(
                    f"the checkpoint's prompt stream has {name} {state[name]}, this run has {now}: resume with the same"
                )
        if self.num_drawn and iter(self.prompts) is self.prompts:
            raise ValueError("an iterator of prompts cannot be rewound: load the sampler's state before the first draw")
        self._stream, self.num_drawn = self._endless(), 0
        self.draw(state["num_drawn"])

    def _endless(self) -> Iterator[Prompt]:
        epoch = 0
        while True:
            rng, num_read = random.Random(f"{self.seed}/{epoch}"), 0
            buffer: list[Prompt] = []
            for prompt in self.prompts:
                num_read += 1
                if len(buffer) < self.buffer_size:
                    buffer.append(prompt)
                    continue
                i = rng.randrange(self.buffer_size)
                yield buffer[i]
                buffer[i] = prompt
            if not num_read:
                raise ValueError(
                    f"the stream of prompts gave nothing in epoch {epoch}: check the data set, or if `load` returns an iterator, "
                    "return an object whose __iter__ starts anew"
                )
            rng.shuffle(buffer)
            yield from buffer
            epoch += 1
