"""Published test sets: a suite is a file of `datasets/suites/`, shipped or yours alike, whose SUITE says what it is."""

from mmrl.app.plugins.resolve import SUITES, execute, listing, locate
from mmrl.data.suites.suite import Suite


def find_suite(name: str) -> Suite:
    """The suite of that name, or of a file of yours: `mmrl.find_suite("mmmu")`, `mmrl.find_suite("./mine.py")`.

    Raises FileNotFoundError without the file, and ValueError for no such name or a file that has no suite.
    """
    file, wanted = locate(name, SUITES)
    found = getattr(execute(file, SUITES), wanted or "SUITE", None)
    if not isinstance(found, Suite):
        raise ValueError(f"{file} has no SUITE: write SUITE = Suite(...) of mmrl.data.suites.suite there")
    return found


def all_suites() -> list[Suite]:
    """All that a name can mean, by name."""
    return [find_suite(listed.name) for listed in listing(SUITES)]
