"""Which class of a diffusers pipeline belongs to which family."""

from typing import NoReturn

from mmrl.policies.flow.families.base import EULER, FlowFamily, Index
from mmrl.policies.flow.families.flux.flux1 import Chroma, Flux, Kontext
from mmrl.policies.flow.families.flux.flux2 import Flux2, Flux2Klein
from mmrl.policies.flow.families.hunyuan import HunyuanVideo15, HunyuanVideo15Image
from mmrl.policies.flow.families.krea2 import Krea2
from mmrl.policies.flow.families.ltx2 import LTX2, LTX2Image
from mmrl.policies.flow.families.qwen.image import QwenImage, QwenImageEdit
from mmrl.policies.flow.families.qwen.image21 import QwenImage21
from mmrl.policies.flow.families.sana import Sana, SanaVideo, SanaVideoImage
from mmrl.policies.flow.families.sd3 import StableDiffusion3
from mmrl.policies.flow.families.stable_audio3 import StableAudio3
from mmrl.policies.flow.families.stable_diffusion import StableDiffusion, StableDiffusionXL
from mmrl.policies.flow.families.wan import Wan, WanFirstLatent, WanImage
from mmrl.policies.flow.families.z_image import Lumina2, ZImage
from mmrl.policies.flow.settings import OWN_FAMILIES, FlowPolicyConfig

FAMILIES: dict[str, type[FlowFamily]] = {
    "StableDiffusion3Pipeline": StableDiffusion3,
    "FluxPipeline": Flux,
    "FluxKontextPipeline": Kontext,
    "QwenImagePipeline": QwenImage,
    "QwenImage21Pipeline": QwenImage21,
    "ZImagePipeline": ZImage,
    "Flux2Pipeline": Flux2,
    "Flux2KleinPipeline": Flux2Klein,
    "SanaPipeline": Sana,
    "SanaVideoPipeline": SanaVideo,
    "SanaImageToVideoPipeline": SanaVideoImage,
    "StableDiffusionPipeline": StableDiffusion,
    "StableDiffusionXLPipeline": StableDiffusionXL,
    "QwenImageEditPlusPipeline": QwenImageEdit,
    "Krea2Pipeline": Krea2,
    "ChromaPipeline": Chroma,
    "Lumina2Pipeline": Lumina2,
    "HunyuanVideo15Pipeline": HunyuanVideo15,
    "HunyuanVideo15ImageToVideoPipeline": HunyuanVideo15Image,
    "LTX2Pipeline": LTX2,
    "LTX2ImageToVideoPipeline": LTX2Image,
    "WanPipeline": Wan,
    "WanImageToVideoPipeline": WanImage,
    "StableAudio3Pipeline": StableAudio3,
}
"""Class of a diffusers pipeline -> its family."""
RELATIVES = {
    **dict.fromkeys(("StableAudio", "AceStep", "AudioLDM", "MusicLDM"), "StableAudio3Pipeline"),
    "StableDiffusion3": "StableDiffusion3Pipeline",
    "StableDiffusionXL": "StableDiffusionXLPipeline",
    "StableDiffusion": "StableDiffusionPipeline",
    "FluxKontext": "FluxKontextPipeline",
    "Flux2": "Flux2Pipeline",
    "Flux": "FluxPipeline",
    "Chroma": "ChromaPipeline",
    "Krea": "Krea2Pipeline",
    "QwenImage": "QwenImagePipeline",
    "Sana": "SanaPipeline",
    "PixArt": "SanaPipeline",
    "AuraFlow": "StableDiffusion3Pipeline",
    "Lumina": "Lumina2Pipeline",
    "ZImage": "ZImagePipeline",
    "Kolors": "StableDiffusionXLPipeline",
    "LatentConsistency": "StableDiffusionPipeline",
    "LTX2": "LTX2Pipeline",
    **dict.fromkeys(("Wan", "LTX", "HunyuanVideo", "CogVideoX", "Mochi"), "WanPipeline"),
}
"""Beginnings of other pipelines' names -> the one here that is built most like them, or draws the same kind of samples."""


def own_family(settings: FlowPolicyConfig) -> type[FlowFamily] | None:
    """The class that policy.family names; None: mmrl's own. Raises ValueError for one that is no family or was not loaded."""
    if settings.family is None:
        return None
    found = OWN_FAMILIES.get(settings.family)
    if found is None:
        raise ValueError(
            f"policy.family {settings.family!r} was not loaded: name it in a config, or give FlowParts a `load` with the class"
        )
    if not (isinstance(found, type) and issubclass(found, FlowFamily)):
        raise ValueError(
            f"policy.family {settings.family!r} is no family of generators: name a class made from FlowFamily "
            "(mmrl/policies/flow/families/base.py)"
        )
    return found


def family_of(index: Index, model: str, own: type[FlowFamily] | None = None) -> type[FlowFamily]:
    """The family of a pipeline with this model_index.json: the user's `own`, or one known here.

    Raises ValueError for a pipeline that is unknown or not whole, or whose scheduler does not take the family's steps.
    """
    name = str(index.get("_class_name"))
    if own is None and name not in FAMILIES:
        kind = f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"
        raise ValueError(
            f"policy.model {model!r} is {kind}, which is not known here{relative(name)}: use "
            f"one of {', '.join(sorted(FAMILIES))}, or give policy.family a family of your own"
        )
    # Wan 2.2 5B, whose class does not tell it from the others
    has_own_times = own is None and name.startswith("Wan") and index.get("expand_timesteps")
    family = WanFirstLatent if has_own_times else own or FAMILIES[name]
    if not any(network in index for network in family.networks):
        raise ValueError(
            f"policy.model {model!r} has no part {family.networks[0]!r}, which {family.__name__} trains: take a "
            "model of that family"
        )
    for part in ("scheduler", "vae"):
        match index.get(part):
            case [str(), str()]:
                pass
            case found:
                raise ValueError(
                    f"policy.model {model!r} names no class for its part {part!r} in model_index.json ({str(found)[:80]}): take "
                    "the folder of a whole pipeline, or download it again"
                )
    scheduler = index["scheduler"][1]
    if scheduler not in family.schedulers:
        refuse_scheduler(model, scheduler, family)
    return family


def relative(name: str) -> str:
    """Words about the known pipeline that is most like an unknown one; empty where there is none."""
    near = next((known for word, known in RELATIVES.items() if word in name), None)
    return "" if near is None else f" (its nearest relative here is {near})"


def refuse_scheduler(model: str, scheduler: str, family: type[FlowFamily]) -> NoReturn:
    """Raise ValueError for a scheduler whose steps are not those taken here."""
    known = sorted(family.schedulers)
    why = "whose steps cannot be followed here"
    if EULER in known:
        why = "but its steps are taken here along the straight paths of flow matching"
    elif scheduler.startswith(("LCM", "TCD")) or "Ancestral" in scheduler:
        why = "which draws noise in its steps, in a way that has no log-probability here"
    raise ValueError(
        f"policy.model {model!r} comes with the scheduler {scheduler}, {why}: use a model with {' or '.join(known)}, or save a "
        f"copy of its pipeline with pipeline.scheduler = {known[0]}.from_config(pipeline.scheduler.config), if it draws well so"
    )
