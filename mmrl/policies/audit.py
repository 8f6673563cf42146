"""A check before training and at its first steps: do placeholders, vision features and completions fit each other?"""

from mmrl.policies.image_input import check_media
from mmrl.policies.trace import TextTrace


def audit(trace: TextTrace) -> None:
    """Placeholders == vision features, patch rows == what the grids tell, and no media token in a completion.

    Raises:
        ValueError: naming the prompt, when one of these does not hold.
    """
    for prompt in trace.prompts:
        try:
            check_media(trace.family, prompt.token_ids, prompt.media)
        except ValueError as error:
            raise ValueError(f"prompt {prompt.prompt_id!r}: {error}") from None
    forbidden = {trace.family.image_token_id, *trace.media_token_ids}
    for place, tokens, length in zip(trace.prompt_index.tolist(), trace.tokens.tolist(), trace.lengths.tolist(), strict=True):
        found = sorted(forbidden & set(tokens[:length]))
        if found:
            raise ValueError(
                f"prompt {trace.prompts[place].prompt_id!r}: a completion holds the media tokens {found}, "
                "which the model would take for a picture: do not train on it"
            )
