"""Tiny language models of the real classes that take text alone."""

from mmrl.tiny.byte_tokens import STOP, TURN, Built, byte_tokenizer, token_ids


def text_template() -> str:
    """Turns between <|im_start|> and <|im_end|>, whose messages are plain text, as models without eyes have it."""
    turn = f"{TURN}{{{{ message.role }}}}\n{{{{ message.content }}}}{STOP}\n"
    opening = f"{{% if add_generation_prompt %}}{TURN}assistant\n{{% endif %}}"
    return f"{{% for message in messages %}}{turn}{{% endfor %}}{opening}"


def qwen3() -> Built:
    """A language model without eyes: text alone."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = byte_tokenizer({})
    tokenizer.chat_template = text_template()
    return Qwen3ForCausalLM(Qwen3Config(**token_ids(tokenizer, head_dim=8))), tokenizer


def llama() -> Built:
    """Another one, whose tokenizer writes a first token."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer({}, bos="<bos>")
    tokenizer.chat_template = "{{ bos_token }}" + text_template()
    return LlamaForCausalLM(LlamaConfig(**token_ids(tokenizer))), tokenizer
