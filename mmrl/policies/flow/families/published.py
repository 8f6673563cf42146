"""The public weights of models that draw, by the class of their pipeline."""

from mmrl.policies.shared.published import Published, Read

LIKE_PIPELINE = "latents, pictures, exports as its pipeline's; log-probabilities, gradients"


def drawing(licence: str, read: Read, *tasks: str, tested: str = LIKE_PIPELINE) -> Published:
    return Published(tasks or ("text to image",), licence, read, tested)


FROM_FRAME = "clips from a first frame"
LTX2 = LIKE_PIPELINE.replace("pictures", "clips, waves")
PUBLISHED: dict[str, Published] = {
    "StableDiffusion3Pipeline": drawing("Stability AI Community", "makers"),
    "FluxPipeline": drawing("dev: FLUX.1 dev Non-Commercial; schnell: Apache-2.0", "makers"),
    "FluxKontextPipeline": drawing("dev: FLUX.1 dev Non-Commercial", "makers", "edits of one picture"),
    "QwenImagePipeline": drawing("Apache-2.0", "makers"),
    "QwenImage21Pipeline": drawing("Qwen Research (non-commercial)", "others", "text to image", "edits of up to ten pictures"),
    "ZImagePipeline": drawing("Apache-2.0", "makers"),
    "Flux2Pipeline": drawing("FLUX dev Non-Commercial", "makers", "text to image", "edits of up to four pictures"),
    "Flux2KleinPipeline": drawing(
        "4B: Apache-2.0; 9B: FLUX Non-Commercial", "makers", "text to image", "edits of up to four pictures"
    ),
    "SanaPipeline": drawing("NVIDIA's own, with Gemma's terms", "makers"),
    "SanaVideoPipeline": drawing("NVIDIA Open Model, with Gemma's terms", "others", "text to video"),
    "SanaImageToVideoPipeline": drawing("NVIDIA Open Model, with Gemma's terms", "others", FROM_FRAME),
    "StableDiffusionPipeline": drawing("CreativeML Open RAIL-M", "makers"),
    "StableDiffusionXLPipeline": drawing("CreativeML Open RAIL++-M", "makers"),
    "QwenImageEditPlusPipeline": drawing("Apache-2.0", "makers", "edits of one to three pictures"),
    "Krea2Pipeline": drawing("Krea 2 Community", "others"),
    "ChromaPipeline": drawing("Apache-2.0", "others"),
    "Lumina2Pipeline": drawing("Apache-2.0", "makers"),
    "HunyuanVideo15Pipeline": drawing("Tencent Hunyuan Community", "makers", "text to video"),
    "HunyuanVideo15ImageToVideoPipeline": drawing("Tencent Hunyuan Community", "makers", FROM_FRAME),
    "LTX2Pipeline": drawing(
        "LTX-2 Community", "others", "text to video with sound", "clips with sound from a first frame", tested=LTX2
    ),
    "LTX2ImageToVideoPipeline": drawing("LTX-2 Community", "others", "clips with sound from a first frame", tested=LTX2),
    "WanPipeline": drawing("Apache-2.0", "makers", "text to video", "text to image", f"{FROM_FRAME} (2.2 5B)"),
    "WanImageToVideoPipeline": drawing("Apache-2.0", "makers", FROM_FRAME),
    "StableAudio3Pipeline": drawing(
        "Stability AI Community", "others", "text to sound", tested=LIKE_PIPELINE.replace("pictures", "waves")
    ),
}
