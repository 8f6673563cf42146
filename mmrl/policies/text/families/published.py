"""The public weights of models that write, by the name their files give them, and of those that no family was written for."""

from mmrl.policies.shared.published import Published, Read

SEEING = ("pictures to text", "clips to text")
RULE = "readings as transformers alone; rollouts re-read, pictures, gradients, exports"
CLIPS = f"{RULE}, clips"
HEARD = "readings as transformers alone; rollouts re-read, sounds, gradients"


def of_class(other: str) -> str:
    """How a model is tested whose class is another's."""
    return f"nothing of its own: shares the class of {other}"


def seeing(licence: str, read: Read, tested: str = CLIPS) -> Published:
    return Published(SEEING, licence, read, tested)


def hearing(licence: str) -> Published:
    return Published(("sounds to text",), licence, "nowhere", HEARD)


PUBLISHED: dict[str, Published] = {
    "qwen2_vl": seeing("7B: Apache-2.0; others: see the card", "makers", of_class("qwen2_5_vl")),
    "qwen2_5_vl": seeing("3B: Qwen Research; 7B: Apache-2.0; others: see the card", "makers"),
    "qwen3_vl": seeing("Apache-2.0", "makers"),
    "qwen3_vl_moe": seeing("Apache-2.0", "others", of_class("qwen3_vl")),
    "qwen3_5": seeing("Apache-2.0", "makers"),
    "qwen3_5_moe": seeing("Apache-2.0", "others"),
    "qwen2_5_omni_thinker": Published(
        (*SEEING, "sounds to text"), "3B: Qwen Research; 7B: see the card", "nowhere", f"{CLIPS}, sounds"
    ),
    "qwen3_omni_moe_thinker": Published((*SEEING, "sounds to text"), "Apache-2.0", "others", f"{CLIPS}, sounds"),
    "smolvlm": seeing("Apache-2.0", "makers"),
    "idefics3": Published(("pictures to text",), "Apache-2.0", "makers", of_class("smolvlm")),
    "internvl": seeing("3-8B-hf: Qwen; 3.5: Apache-2.0; others: see the card", "makers"),
    "llava_onevision": seeing("Apache-2.0", "makers"),
    "gemma3": seeing("Gemma Terms of Use", "makers"),
    "gemma4": Published((*SEEING, "sounds to text"), "Apache-2.0", "others", f"{CLIPS}, sounds (E2B, E4B)"),
    "granite_speech": hearing("Apache-2.0"),
    "phi4_multimodal": hearing("MIT"),
    "voxtral": hearing("Apache-2.0"),
    "glm4v": seeing("4.1V-9B: MIT; others: see the card", "makers"),
    "glm4v_moe": seeing("MIT", "others"),
    "glm46v": seeing("MIT", "others"),
    "generic": Published(SEEING[:1], "see the model's own card", "nowhere", "the types with a mark in mmrl ls families --all"),
    "hearing": hearing("Qwen2-Audio: Apache-2.0; others: see the model's own card"),
    "text_only": Published(
        ("text to text",),
        "Qwen3: Apache-2.0; Llama 3.1: Llama 3.1 Community; others: see the card",
        "makers",
        "Qwen3 and Llama: readings as transformers alone; rollouts re-read, gradients, exports",
    ),
}
"""`generic`: other models that take pictures; `hearing`: that take sounds and no pictures; `text_only`: any causal language
model that transformers knows."""
