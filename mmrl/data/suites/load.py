"""The prompts of a suite, from a folder or from the hub's snapshot on this machine; nothing is downloaded."""

from collections import Counter
from pathlib import Path

from mmrl.core.samples import Prompt
from mmrl.data.suites.suite import Suite
from mmrl.data.validate import Report
from mmrl.runtime.near import near

NAMED = 3
"""Missing files that an error names."""


def load_suite(
    suite: Suite, path: str | Path | None = None, media: str | Path | None = None, any_size: bool = False
) -> list[Prompt]:
    """All prompts of a suite, in the order of its files.

    Args:
        path: the folder with its files; None: the hub's snapshot of them on this machine.
        media: the folder of pictures or clips; None: the one in `path` that the suite names.
        any_size: True takes files with another number of prompts than was published.

    Raises:
        FileNotFoundError: files are missing.
        ValueError: files of another version.
    """
    folder = find_folder(suite, path)
    named = [folder / file.name for file in suite.files if file.is_media]
    shown = Path(media).expanduser() if media is not None else named[0] if len(named) == 1 else folder
    if not shown.is_dir():
        raise FileNotFoundError(
            f"{shown} is no folder{near(shown)}: set evaluation.data.media to the pictures or clips of suite {suite.name}"
        )
    report = Report(str(folder))
    prompts = list(suite.read(folder, shown, report))
    if not report.ok:
        first, more = report.problems[0], f" (and {report.num_problems - 1} more)" if report.num_problems > 1 else ""
        raise ValueError(f"{folder} lacks something of suite {suite.name}, or is another version of it: {first}{more}")
    found = Counter(str(prompt.columns[suite.by[0]]) for prompt in prompts)
    for kind, size in {**dict.fromkeys(found, 0), **suite.sizes}.items():
        if found[kind] != size and not any_size:
            prompts_of = "prompt of" if found[kind] == 1 else "prompts of"
            raise ValueError(
                f"{folder} has {found[kind]} {prompts_of} {suite.by[0]} {kind!r}, and suite {suite.name} was published with "
                f"{size}: get its published files, or set evaluation.data.any_size=true, whose numbers compare with no paper"
            )
    return prompts


def find_folder(suite: Suite, path: str | Path | None) -> Path:
    """The folder with the suite's files; FileNotFoundError names the missing ones and where they come from."""
    folder = snapshot(suite.hub) if path is None else Path(path).expanduser()
    missing = [file for file in suite.files if folder is None or not (folder / file.name).exists()]
    # pictures may be elsewhere: evaluation.data.media then names the folder
    if folder is not None and all(file.is_media for file in missing):
        return folder
    files = ", ".join([*map(str, missing[:NAMED]), *([f".. ({len(missing)} in all)"] if len(missing) > NAMED else [])])
    where = "" if folder is None else f" in {folder}" if folder.is_dir() else f": there is no folder {folder}{near(folder)}"
    raise FileNotFoundError(
        f"suite {suite.name} lacks files{where}, and nothing is downloaded: get {files} and name their folder with --data"
    )


def snapshot(repository: str) -> Path | None:
    """The newest snapshot of a data set of the hub on this machine; None without one."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, repo_type="dataset", local_files_only=True)) if repository else None
    except FileNotFoundError:
        return None
