"""Exceptions as sentences for people."""

TRACEBACK = "MMRL_TRACEBACK"


EXTRAS = {
    "jinja2": "report",
    "matplotlib": "report",
    "sklearn": "demo",
    "pyarrow": "data",
    "fastapi": "server",
    "uvicorn": "server",
    "httpx": "server",
    "math_verify": "rewards",
    "pycocotools": "rewards",
    "rapidfuzz": "rewards",
    "rouge_score": "rewards",
}
"""Package -> the extra that brings it."""


def sentence(error: ValueError | OSError | ModuleNotFoundError) -> str:
    """Words an error for its user; one that mmrl did not word itself says also how to see where it happened."""
    if isinstance(error, ModuleNotFoundError):
        return f'this needs the package {error.name}: pip install "mmrl[{EXTRAS[error.name or ""]}]"'
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    module = frame.tb_frame.f_globals.get("__name__", "") if frame is not None else ""
    ours = module.partition(".")[0].startswith("mmrl")
    return str(error) if ours else f"{error} ({type(error).__name__} in {module}; --traceback shows where)"
