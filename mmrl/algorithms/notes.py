"""Numbers that a part keeps from one step to the next."""

from dataclasses import dataclass, field

from mmrl.core.protocols import State


@dataclass(frozen=True)
class Notes:
    """A part's numbers by name: every run has its own, and checkpoints hold them."""

    notes: dict[str, float] = field(default_factory=dict[str, float], init=False, compare=False, repr=False)

    def state_dict(self) -> State:
        return {"notes": {**self.notes}}

    def load_state_dict(self, state: State) -> None:
        self.notes.clear()
        self.notes.update(state["notes"])
