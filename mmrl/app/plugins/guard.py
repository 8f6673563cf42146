"""Run code of a plug-in when a run is built: it ends in an answer or in one sentence, and leaves the process as it was."""

from collections.abc import Iterator
from contextlib import contextmanager

from mmrl.runtime.blame import describe, is_from_outside
from mmrl.runtime.process_state import ProcessChangedError, process_state, refuse_change


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Enclose code of a plug-in, which messages call `what`: `reward ./mine.py`.

    Raises ValueError where it raised something that is no sentence for people (SystemExit and the like too), or changed a setting
    of the whole process, which was put back. A ValueError, OSError or KeyboardInterrupt of its own passes.
    """
    before = process_state()
    try:
        yield
        refuse_change(before)
    except (ValueError, OSError):
        before.restore()
        raise
    except ProcessChangedError as error:
        raise ValueError(f"{what}: {error}") from error
    except BaseException as error:
        before.restore()
        if is_from_outside(error):
            raise
        raise ValueError(f"{what} raised {describe(error)}: mend it") from error
