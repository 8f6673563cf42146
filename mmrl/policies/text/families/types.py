"""Which types of transformers that see or hear can be trained, read from classes and default configs, without weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from mmrl.policies.text.families import FAMILIES, Generic, Hearing
from mmrl.policies.text.families.base import HEAD_WORDS, parameters_of

ATTENTION = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers whose rule depends on the distance of two tokens alone, and on nothing that they carry along."""
BESIDE = {"cross_attention_states", "image_encoder_embeddings"}
"""Arguments of models whose text layers look at pictures by an attention of their own."""
OWN_CODE = {
    **dict.fromkeys(("chameleon", "emu3"), "writes pictures as tokens of its own vocabulary, and has no features of them"),
    "fuyu": "takes a list of patches per picture, which its processor pads by a rule of its own",
    "granite_speech_plus": "writes logits without the divisor that its text config names",
    "paligemma": "reads its prompt in both directions and has no chat template",
}
"""Types whose signatures follow the rule and that need code of their own all the same."""
HEARS_ODDLY = {
    "encoder_inputs_embeds": "adds sounds to its text while it writes, step by step",
    "sample": "adds noise to what it hears, so that no reading equals another",
}
"""Arguments of models that hear -> what they mean."""


@dataclass(frozen=True)
class ModelType:
    """A type of the installed transformers that takes pictures or sounds, and text."""

    name: str
    refusal: str | None
    """Why it cannot be trained, as the end of a sentence about it; None: it can."""
    family: str = ""
    """The class of mmrl that trains it; `Generic` is the rule."""
    notes: tuple[str, ...] = ()
    """What is special about it, by its default config."""

    @property
    def summary(self) -> str:
        """One line: no and why, or yes, by which family, and what is special."""
        if self.refusal is not None:
            return f"no: {self.refusal}"
        how = "by the rule" if self.family in ("Generic", "Hearing") else f"by {self.family}"
        return f"yes: {'; '.join((how, *self.notes))}"


def all_types() -> Iterator[ModelType]:
    """All types, in the order of their names; imports every model's code, which takes some seconds."""
    yield from map(type_of, sorted({**eyes(), **ears()}))


def eyes() -> dict[str, str]:
    """Type -> its class with the head, of those that take pictures."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES


def ears() -> dict[str, str]:
    """The same of those that take sounds and no pictures; of a folder of several parts the part that writes stands for it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES

    found = MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.items()
    return {name: head for name, head in found if name not in eyes() and f"{name}_thinker" not in FAMILIES}


@cache
def type_of(name: str) -> ModelType:
    """A type by its classes and its default config; KeyError for one that transformers does not know."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[name]()
    refusal = refusal_of(name, config.is_encoder_decoder)
    if refusal is not None:
        return ModelType(name, refusal)
    text = config.get_text_config()
    odd = sorted(set(getattr(text, "layer_types", None) or ()) - ATTENTION)
    words = [word for word in HEAD_WORDS if getattr(text, word, None) not in (None, 1.0)]
    notes = [*([f"repeats prompts ({', '.join(odd)})"] if odd else []), *([f"head: {', '.join(words)}"] if words else [])]
    rule = Generic if name in eyes() else Hearing
    return ModelType(name, None, FAMILIES.get(name, rule).__name__, ("sounds", *notes) if name in ears() else tuple(notes))


def refusal_of(name: str, encodes: bool) -> str | None:
    """Why no model of a type can be trained, as the end of a sentence about it; None: one can, or it takes text alone.

    `encodes`: its config says that it reads with an encoder.
    """
    import transformers

    if name not in {**eyes(), **ears()} or name in FAMILIES:
        return None
    head, core = classes_of(name)
    if "Diffusion" in head.__name__:
        return "diffuses its text, and has no probability of a token after those before it"
    if not issubclass(head, transformers.GenerationMixin):
        return "writes no text"
    if encodes:
        return "reads with an encoder and writes with a decoder"
    takes = set(parameters_of(vars(core or head)["forward"]))
    if name in ears():
        return refusal_of_ears(name, core, takes)
    if not any("pixel" in word or "image" in word for word in takes):
        return "takes no pictures"
    if takes & BESIDE:
        return "looks at pictures beside its text, not in it"
    return refusal_by_names(name, head, core, takes)


def refusal_of_ears(name: str, core: type | None, takes: set[str]) -> str | None:
    """The same of a model that takes sounds: does its forward put what it hears in place of tokens?"""
    if core is None or not takes & {"input_features", "input_values"}:
        return "takes no features of sounds in place of tokens of its text"
    if "input_ids" in parameters_of(getattr(core, "get_audio_features", len)):
        return "hears each sound by where it stands among the tokens"
    return next((said for word, said in HEARS_ODDLY.items() if word in takes), OWN_CODE.get(name))


def refusal_by_names(name: str, head: type, core: type | None, takes: set[str]) -> str | None:
    """The same of a model that takes pictures in its text: do the names of processor, features and forward fit?"""
    look = getattr(core, "get_image_features", None)
    if "mm_encoder_outputs" not in takes or look is None:
        return "does not take features of pictures in place of tokens of its text"
    if core is head:
        return "keeps its layers elsewhere than other models"
    named = set(parameters_of(look))
    lost = sorted(takes & set(tensors_of(name)) - named)
    if lost:
        return f"wants {', '.join(lost)} beside its pictures: a family would have to batch them"
    if other := sorted(word for word in named - takes if word.startswith("pixel_values")):
        return f"has a processor that makes {', '.join(other)}, which its own forward does not take"
    return OWN_CODE.get(name)


def classes_of(name: str) -> tuple[type, type | None]:
    """The class with the head, and the one below it; None where transformers names none."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    heads = {**eyes(), **ears()}
    # some types share the classes of another
    same = [other for other, cls in heads.items() if cls == heads[name]]
    core = next((found for other in (name, *same) if (found := MODEL_MAPPING_NAMES.get(other))), None)
    return getattr(transformers, heads[name]), getattr(transformers, core if isinstance(core, str) else core[0]) if core else None


def tensors_of(name: str) -> list[str]:
    """The tensors that a type's picture processor says it makes."""
    import transformers
    from transformers.models.auto import image_processing_auto

    found = vars(image_processing_auto)["IMAGE_PROCESSOR_MAPPING_NAMES"].get(name)
    called = found if found is None or isinstance(found, str) else found.get("torchvision") or found.get("pil")
    return [] if called is None else getattr(transformers, called).model_input_names
