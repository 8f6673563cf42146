"""cos(picture, prompt) of HPSv2's CLIP ViT-H/14, in float32 and without temperature.

The picture keeps its shape: its longer side becomes 224 (bicubic, on the tensor), black bars fill the square, and only then is it
normalized. open_clip's own preprocessing crops instead: the same scores for squares, different ones for other shapes.

Modality: image
Range: about .20 to .35
Source: arXiv:2306.09341, tgxs002/HPSv2; its package's default is version 2.0, ours 2.1
Licence: own code Apache-2.0; HPSv2 code and weights Apache-2.0
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn.functional import pad

from mmrl import Group, Need, Prompt, Scored
from mmrl.serving.files import hub_file
from mmrl.serving.media import pictures_of
from mmrl.serving.scorers.encoders import OfEncoder, OpenClipEncoder, cosines, cosines_of_pixels, open_clip_checkpoint
from mmrl.serving.scorers.models import read_weights
from mmrl.serving.scorers.sizes import ModelSize, checkpoint_size

FILES = {"2.0": "HPS_v2_compressed.pt", "2.1": "HPS_v2.1_compressed.pt"}
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class HpsV2(OfEncoder):
    """Human preference score of the picture for its prompt."""

    checkpoint: str = "xswu/HPSv2"
    """Hub id, folder or file of the weights."""
    version: Literal["2.0", "2.1"] = "2.1"
    """Which file of the checkpoint's repository or folder."""
    architecture: str = "ViT-H-14"
    """A name of open_clip's, or the path of a JSON file with the settings of one."""
    needs = Need(setup="checkpoint (hub id, folder or file, 4 GB), open_clip")

    def models(self) -> Sequence[ModelSize]:
        return [checkpoint_size(self.checkpoint, FILES[self.version], self.device)]

    def __call__(self, group: Group) -> list[float | Scored | None]:
        found = cosines(self.encoder(), pictures_of(group), group.prompt.text, self.batch_size)
        return [Scored(cosine, {"cut_prompt": float(cut)}) for cosine, cut in zip(found.values.tolist(), found.cut, strict=True)]

    def of_pixels(self, pixels: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        """The same scores with a gradient, for pictures (n, 3, y, x) in [0, 1]."""
        return cosines_of_pixels(self.encoder(), pixels, [prompt.text for prompt in prompts], self.batch_size)

    def encoder(self) -> OpenClipEncoder:
        from torchvision.transforms.functional import to_tensor

        name = FILES[self.version]
        held, tokenizer = open_clip_checkpoint(
            self.architecture,
            lambda: read_weights(hub_file(self.checkpoint, name, "checkpoint")),
            f"checkpoint {self.checkpoint!r} ({name})",
            self.device,
        )
        size = held.model.visual.image_size
        side = size[0] if isinstance(size, tuple) else size
        return OpenClipEncoder(
            held, lambda picture: _letterbox(to_tensor(picture), side), tokenizer, lambda pixels: _letterbox(pixels, side)
        )


def _letterbox(pixels: Tensor, side: int) -> Tensor:
    """(..., 3, side, side), normalized, with black bars."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import normalize, resize

    height, width = pixels.shape[-2:]
    if (share := side / max(height, width)) != 1:
        height, width = max(1, round(height * share)), max(1, round(width * share))
        pixels = resize(pixels, [height, width], InterpolationMode.BICUBIC, antialias=True)
    across, down = side - width, side - height
    pixels = pad(pixels, (across // 2, across - across // 2, down // 2, down - down // 2))
    return normalize(pixels, list(MEAN), list(STD))
