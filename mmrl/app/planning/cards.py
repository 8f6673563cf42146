"""Memory of well-known GPUs by name: RTX 4090, A100-40, T4."""

import logging
import re
from difflib import get_close_matches

from mmrl.app.modality.on_cards import without_bfloat16

log = logging.getLogger("mmrl")

SIZES = {
    **{"RTX 3060": (12,), "RTX 3070": (8,), "RTX 3080": (10, 12), "RTX 3080 Ti": (12,), "RTX 3090": (24,), "RTX 3090 Ti": (24,)},
    **{"RTX 4060": (8,), "RTX 4060 Ti": (8, 16), "RTX 4070": (12,), "RTX 4070 Super": (12,), "RTX 4070 Ti": (12,)},
    **{"RTX 4070 Ti Super": (16,), "RTX 4080": (16,), "RTX 4080 Super": (16,), "RTX 4090": (24,)},
    **{"RTX 5060 Ti": (8, 16), "RTX 5070": (12,), "RTX 5070 Ti": (16,), "RTX 5080": (16,), "RTX 5090": (32,)},
    **{"RTX A4000": (16,), "RTX A5000": (24,), "RTX A6000": (48,), "RTX 6000 Ada": (48,), "RTX PRO 6000": (96,)},
    **{"T4": (16,), "P100": (16,), "V100": (16, 32), "A10": (24,), "A10G": (24,), "A30": (24,), "A40": (48,), "L4": (24,)},
    **{"L40": (48,), "L40S": (48,), "A100": (40, 80), "H100": (80, 94), "H200": (141,), "B200": (180,)},
}
"""The GB in a card's name or data sheet; several where it was sold with several."""
LESS = {"T4": 15, "L4": 22, "A10": 22, "A10G": 22, "A40": 45, "L40": 45, "L40S": 45}
"""GiB that drivers show of cards whose memory corrects its errors."""
OLD = ("T4", "P100", "V100")
"""Those without bfloat16 units."""
SHARE = 0.98
"""What drivers show of the others' GB."""


def gigabytes_of(card: str) -> float:
    """GiB that the card called `card` shows; its size may follow its name, as in A100-40. Warns of one without bfloat16 units.

    Raises ValueError for a name that is not known, and for one that was sold in several sizes without its size.
    """
    wanted = plain(card)
    sized = {f"{plain(name)}{size}{unit}": (name, size) for name, sizes in SIZES.items() for size in sizes for unit in ("", "gb")}
    named = {plain(name): name for name in SIZES}
    name, size = sized.get(wanted) or (named.get(wanted), None)
    if name is None:
        near = get_close_matches(wanted, named, 1, cutoff=0.6)
        also = f" (do you mean {' or '.join(spelled(named[near[0]]))}?)" if near else ""
        raise ValueError(f"--card is {card!r}, a card that is not known here{also}: write its memory as in --card 24GB")
    if name in OLD:
        log.warning("%s", without_bfloat16(name))
    sizes = SIZES[name]
    if size is None and len(sizes) > 1:
        raise ValueError(f"--card is {card!r}, which was sold in {len(sizes)} sizes: write {' or '.join(spelled(name))}")
    return float(LESS[name]) if name in LESS else (size or sizes[0]) * SHARE


def plain(card: str) -> str:
    """Letters and digits alone, without the maker."""
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", card.lower())


def spelled(name: str) -> list[str]:
    return [name] if len(SIZES[name]) == 1 else [f'"{name}-{size}"' for size in SIZES[name]]
