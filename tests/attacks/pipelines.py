"""Attacks by hostile pipelines: damaged configs of their parts, and chat templates that do not end."""

import shutil
from functools import partial
from pathlib import Path

from mmrl.policies.flow.dry_run import load_meta
from tests.attacks.attack import Attack, BrokenError
from tests.attacks.models import Damage, config, tiny, train, write
from tests.policies.flow.test_damaged_configs import walk

LOOP = b"{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
INDEX, VAE, NETWORK, ENCODER = "model_index.json", "vae/config.json", "transformer/config.json", "text_encoder/config.json"
FLOW: dict[str, tuple[tuple[str, ...], Damage]] = {
    "an index that is null": (("policy.model",), partial(write, INDEX, b"null")),
    "an index that is a number": (("policy.model",), partial(write, INDEX, b"3")),
    "a part that is null": (("transformer",), partial(config, INDEX, "transformer", None)),
    "a part that is a number": (("text_encoder",), partial(config, INDEX, "text_encoder", 7)),
    "a part with half a pair": (("tokenizer",), partial(config, INDEX, "tokenizer", ["transformers"])),
    "a scaling factor that is text": (("(vae)", "scaling_factor"), partial(config, VAE, "scaling_factor", "x")),
    "an autoencoder without blocks": (("(vae)", "block_out_channels"), partial(config, VAE, "block_out_channels", [])),
    "a patch of 0": (("(transformer)", "patch_size"), partial(config, NETWORK, "patch_size", 0)),
    "a billion layers": (("(transformer)", "num_layers"), partial(config, NETWORK, "num_layers", 10**9)),
    "a text encoder of a billion layers": (("(text_encoder)",), partial(config, ENCODER, "num_hidden_layers", 10**9)),
}
TEXT: dict[str, tuple[tuple[str, ...], Damage]] = {
    "a chat template with two loops": (("chat template", "200,000 turns"), partial(write, "chat_template.jinja", LOOP)),
    "a language model of a billion layers": (
        ("num_hidden_layers",),
        partial(config, "config.json", "text_config.num_hidden_layers", 10**9),
    ),
}


def every_part(first: int, folder: Path) -> str:
    """Each 23rd damage of every key of every config, in this process: a sentence or a model."""
    model = Path(shutil.move(tiny("flow", folder), folder / "sd3"))
    bad = walk(model, 23, first, load_meta)
    if bad:
        raise BrokenError(f"{len(bad)} raise otherwise: {bad[0]}")
    return "sentences"


ATTACKS = [
    *(Attack("pipelines", name, partial(train, "flow", *case)) for name, case in FLOW.items()),
    *(Attack("pipelines", name, partial(train, "text", *case)) for name, case in TEXT.items()),
    *(Attack("pipelines", f"every part damaged, part {first + 1} of 3", partial(every_part, 7 * first)) for first in range(3)),
]
