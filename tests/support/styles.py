"""Boxes and spans in the styles of other families, which models write and mmrl only reads."""

from dataclasses import replace

from mmrl.answers.boxes.box import Box
from mmrl.answers.boxes.parsing import format_box
from mmrl.answers.spans.interval import Interval
from mmrl.answers.spans.parsing import format_interval


def box_in(style: str, box: Box) -> str:
    """json: Qwen2.5-VL and Qwen3-VL. list: plain numbers. tags: InternVL. corners: Qwen2-VL."""
    if style in ("json", "list"):
        return format_box(box, "list" if style == "list" else "json")
    numbers, label = format_box(box, "list"), box.label
    if style == "tags":
        return ("" if label is None else f"<ref>{label}</ref>") + f"<box>[{numbers}]</box>"
    x1, y1, x2, y2 = numbers.strip("[]").split(", ")
    ref = "" if label is None else f"<|object_ref_start|>{label}<|object_ref_end|>"
    return f"{ref}<|box_start|>({x1},{y1}),({x2},{y2})<|box_end|>"


def span_in(style: str, span: Interval, digits: int = 1) -> str:
    """text: `3.2 to 7.0`. list: `[3.2, 7.0]`. json: `{"start": 3.2, "end": 7.0}`. clock: `00:03.2 to 01:07.0`."""
    if style == "text":
        return format_interval(span, digits)
    first, last = format_interval(replace(span, unit="seconds"), digits).split(" to ")
    if style == "clock":
        return f"{_clock(float(first), digits)} to {_clock(float(last), digits)}"
    return f"[{first}, {last}]" if style == "list" else f'{{"start": {first}, "end": {last}}}'


def _clock(seconds: float, digits: int) -> str:
    minutes, rest = divmod(round(seconds * 10**digits), 60 * 10**digits)
    hours, minutes = divmod(minutes, 60)
    shown = f"{rest / 10**digits:0{digits + 3 if digits else 2}.{digits}f}"
    return f"{hours:02d}:{minutes:02d}:{shown}" if hours else f"{minutes:02d}:{shown}"
