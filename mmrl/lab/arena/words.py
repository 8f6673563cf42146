"""The words of a command line as a contest."""

from collections.abc import Sequence

from mmrl.lab.arena.contest import Contest


def contest_of(task: str, methods: str, budget_s: float, seeds: str, model: str | None, overrides: Sequence[str]) -> Contest:
    """`a,b,c` as methods, `0,1,2` as seeds; ValueError for a seed that is no whole number, or a contest without sense."""
    try:
        numbers = tuple(int(seed) for seed in seeds.split(",") if seed.strip())
    except ValueError:
        raise ValueError(f"--seeds is {seeds!r}: write whole numbers with commas between them, such as 0,1,2") from None
    names = tuple(name.strip() for name in methods.split(",") if name.strip())
    return Contest(task, names, budget_s, numbers, model, overrides=tuple(overrides))
