"""Coverage-guided fuzzing of all that reads foreign text: boxes, spans, answers, configs and messages of reward servers.

    pip download atheris --no-deps -d wheels && unzip -q 'wheels/atheris-*.whl' -d wheels/atheris
    PYTHONPATH=wheels/atheris python benchmarks/fuzz.py --target all --seconds 60

What must hold for every input stands in tests/fuzz/properties.py. Each target runs in a process of its own, because the fuzzer
ends it. Inputs that break a property are kept, one per place of failure, with the traceback beside them; give such a file as
`--replay` to see it again. An input that takes more than ten seconds counts as a failure as well.
"""

import argparse
import copy
import hashlib
import io
import json
import re
import subprocess
import sys
import time
import tomllib
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

WATCHED = {
    "box": ["mmrl.answers"],
    "span": ["mmrl.answers"],
    "answer": ["mmrl.answers"],
    "call": ["mmrl.answers"],
    "config": [
        "mmrl.app.config.run",
        "mmrl.app.toml.tables",
        "mmrl.app.config.algorithm",
        "mmrl.app.toml.reader",
        "mmrl.app.modality.base",
    ],
    "wire": ["mmrl.serving.wire"],
}
"""Target -> packages whose branches steer the search."""
WORDS = {
    "box": '[ ] ( ) { } < , ; : = " \' \\ - . e9 1e308 1e-300 nan 1,2,3,4 "label": bbox_2d x1= ymax: <box> </box> <|box_start|> '
    "<|box_end|> <ref> </ref> <answer> </answer> <think> </think> ```json None",
    "span": "to until between and from frames frame % 1: 00:03.2 01:02:03 1m 20s ms hours - .. \u2013 ~ [ ] ( ) , { } start end "
    "<answer> </answer> </think> e9 1e308",
    "answer": "A B. (C) A,C and or answer is option: total = \\boxed \\frac{1}{2} % percent 1,000 1e308 / three <answer>",
    "call": '<tool_call> </tool_call> <think> </think> {"name": "arguments": "actions": [ ] { } , : " \\ NaN 1e999 <code> '
    "</code> ```python",
    "config": "",
    "wire": '__metadata__ mmrl {"$type":"Group"} "$tuple" "$dict" "$array" "$file" "$image" "$float" "$type" Prompt Sample Video '
    "MediaSize Box Interval dtype shape data_offsets U8 F32 BF16 I64 protocol value suffix sizes parts status values",
}
"""Words that mutations put in."""
VALUES: tuple[Any, ...] = (
    0,
    1,
    -1,
    2**63,
    -(2**70),
    0.5,
    -0.0,
    float("nan"),
    float("inf"),
    1e-320,
    True,
    False,
    "",
    "none",
    "auto",
)
VALUES += ("iou", "grpo", "..", "a" * 300, "\ud7ff\u0000", [], [[]], {}, [{}], {"kind": "x"}, {"use": 3}, [None], {"": {"": {}}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=[*WATCHED, "all"], default="all")
    parser.add_argument("--seconds", type=int, default=60, help="per target")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="folder for inputs that fail")
    parser.add_argument("--replay", type=Path, help="run one kept input, without the fuzzer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.replay is not None:
        body(args.target)(args.replay.read_bytes())
    elif args.child:
        fuzz(args)
    else:
        print(f"{'target':8} {'seconds':>8} {'executions':>11} {'edges':>7} {'failures':>9}")
        for target in WATCHED if args.target == "all" else [args.target]:
            measure(target, args)


def measure(target: str, args: argparse.Namespace) -> None:
    """Fuzz one target in a process of its own and print a line of the table."""
    folder = args.keep / target
    folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, __file__, "--child", "--target", target, "--seconds", str(args.seconds), "--seed", str(args.seed)]
    start = time.monotonic()
    run = subprocess.run([*words, "--keep", str(args.keep)], capture_output=True, text=True, errors="replace", check=False)
    seconds = time.monotonic() - start
    executions = re.findall(r"number_of_executed_units: (\d+)", run.stderr)
    edges = re.findall(r"cov: (\d+)", run.stderr)
    if not executions or not edges:
        raise SystemExit(f"the fuzzer of {target} did not end well ({run.returncode}):\n{run.stderr[-3000:]}")
    failures = [file for file in folder.iterdir() if file.suffix != ".txt"]
    print(f"{target:8} {seconds:8.0f} {int(executions[0]):11d} {int(edges[-1]):7d} {len(failures):9d}")
    for file in failures:
        said = file.with_suffix(".txt")
        print(f"  {file}: {said.read_text().strip().splitlines()[-1] if said.is_file() else 'too slow'}")


def fuzz(args: argparse.Namespace) -> None:
    """Search with atheris until the time is over; it then ends the process."""
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=WATCHED[args.target], enable_loader_override=False):
        run = body(args.target)
    folder, corpus = args.keep / args.target, args.keep / f"corpus-{args.target}"
    corpus.mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(seeds(args.target)):
        (corpus / f"seed-{i}").write_bytes(seed)
    dictionary = args.keep / f"{args.target}.dict"
    dictionary.write_text("".join(f'"{escape(word)}"\n' for word in WORDS[args.target].split()))

    def one(data: bytes) -> None:
        try:
            run(data)
        except (Exception, RecursionError) as error:  # noqa: BLE001 - whatever is raised is what we look for
            keep(folder, data, error)

    flags = [f"-max_total_time={args.seconds}", "-print_final_stats=1", "-timeout=10", "-max_len=4096", f"-seed={args.seed}"]
    flags += [f"-dict={dictionary}"] if WORDS[args.target] else []
    flags += [f"-artifact_prefix={folder}/", "-rss_limit_mb=4096"]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one)
    atheris.Fuzz()


def keep(folder: Path, data: bytes, error: BaseException) -> None:
    """Keep the first input per place of failure, and its traceback."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "mmrl" in f.filename or "properties" in f.filename]
    place = f"{type(error).__name__} {frames[-1].filename}:{frames[-1].lineno}" if frames else type(error).__name__
    file = folder / hashlib.sha256(place.encode()).hexdigest()[:12]
    if not file.exists():
        file.write_bytes(data)
        file.with_suffix(".txt").write_text("".join(traceback.format_exception(error)), errors="replace")


def body(target: str) -> Callable[[bytes], None]:
    """The property of a target as a function of bytes."""
    properties: Any = import_module("tests.fuzz.properties")
    if target == "wire":
        return lambda data: wire_input(properties, data)
    if target == "config":
        tables = [tomllib.loads(file.read_text()) for file in sorted((ROOT / "configs").rglob("*.toml"))]
        return lambda data: config_input(properties, tables, data)
    check = {"box": properties.boxes, "span": properties.spans, "answer": properties.answers, "call": properties.calls}[target]
    return lambda data: check(data.decode(errors="replace"))


def wire_input(properties: Any, data: bytes) -> None:
    """Try a whole body, or a header whose length is right."""
    properties.message(data)
    header, _, rest = data.partition(b"\0\0")
    properties.message(properties.frame(header, rest))
    inner = json.dumps({"protocol": 1, "value": 0})[:-2].encode() + header + b"}"
    arrays = b',"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}'
    outer = b'{"__metadata__":{"mmrl":' + json.dumps(inner.decode(errors="replace")).encode() + b"}" + arrays + b"}"
    properties.message(properties.frame(outer, b"\0" * 8))


def config_input(properties: Any, tables: list[dict[str, Any]], data: bytes) -> None:
    """Try TOML as it stands, or a shipped config in which the bytes choose keys and what is put there."""
    if data[:1] == b"#":
        properties.config_text(data.decode(errors="replace"))
        return
    choose = io.BytesIO(data)

    def number(most: int) -> int:
        return int.from_bytes(choose.read(2), "little") % max(most, 1)

    values = copy.deepcopy(tables[number(len(tables))])
    for _ in range(1 + number(4)):
        holder, key = place(values, number)
        kind = number(8)
        if kind == 0 and key in holder:
            del holder[key]
        elif kind == 1:
            holder[choose.read(6).decode(errors="replace")] = holder.get(key)
        elif kind == 2:
            holder[key] = tables[number(len(tables))].get(key, {})
        else:
            holder[key] = copy.deepcopy(VALUES[number(len(VALUES))])
    words = choose.read().decode(errors="replace")
    properties.config(values, [words] if "=" in words else [])


def place(values: dict[str, Any], number: Callable[[int], int]) -> tuple[dict[str, Any], str]:
    """A table somewhere in a config, and one of its keys."""
    holder = values
    while True:
        keys = list(holder) or ["x"]
        key = keys[number(len(keys))]
        below = holder.get(key)
        if isinstance(below, list) and below and isinstance(below[0], dict):
            below = below[number(len(below))]
        if not isinstance(below, dict) or number(3) == 0:
            return holder, key
        holder = below


def seeds(target: str) -> list[bytes]:
    """Inputs to start from."""
    if target == "wire":
        wire, samples = import_module("mmrl.serving.wire"), import_module("mmrl.core.samples")
        group = samples.Group(0, samples.Prompt("p", "x", (), (1, 2.5)), (samples.Sample("a", (1,)),))
        reply = wire.ServedScores((1.0,), (samples.Status.OK,), ({"a": 1.0},), "f", None)
        return [wire.pack_group(group), wire.pack_reply(reply), b'{"$type":"Group","id":1}', b'{"$file":"a","suffix":".x"}']
    texts = {
        "box": ('{"bbox_2d": [1, 2, 3, 4], "label": "cat"}', "<box>[[1,2,3,4]]</box>", "x1=1, y1=2, x2=3, y2=4", "(3, 4)"),
        "span": ("from 3.2s to 7s", "00:03 - 01:07", '{"start": 3, "end": 4}', "frames 12 to 48", "10% to 20%", "[3.2, 7.0]"),
        "answer": ("<answer>A, C</answer>", "the answer is B", "1,250.5 kg", "\\frac{1}{2} = 50 %", "B. a dog"),
        "config": (
            "",
            "#steps = 3\n[algorithm]\npreset = 'grpo'\n[policy]\nmodel = 'm'\n[data]\nuse = 'x'\n[[reward]]\nuse='iou'",
        ),
    }
    return [text.encode() for text in texts[target]]


def escape(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


if __name__ == "__main__":
    main()
