"""Tiny language models of the real classes that take text alone."""

from mmrl.lab.tiny.byte_tokens import STOP, TURN, Built, byte_tokenizer, hub, token_ids


def turns(content: str = "{{ message.content }}") -> str:
    """A template of turns between <|im_start|> and <|im_end|>; messages are plain text, as of models without eyes."""
    turn = f"{TURN}{{{{ message.role }}}}\n{content}{STOP}\n"
    opening = f"{{% if add_generation_prompt %}}{TURN}assistant\n{{% endif %}}"
    return f"{{% for message in messages %}}{turn}{{% endfor %}}{opening}"


def chat_template(image: str, video: str = "", start: str = "", audio: str = "") -> str:
    """Turns between <|im_start|> and <|im_end|>; a picture's marker stands where its part stands in the message."""
    sound = f"{{% elif part.type == 'audio' %}}{audio}" if audio else ""
    other = f"{{% elif part.type == 'video' %}}{video}{sound}{{% else %}}{{{{ part.text }}}}{{% endif %}}"
    part = f"{{% if part.type == 'image' %}}{image}{other}"
    return start + turns(f"{{% for part in message.content %}}{part}{{% endfor %}}")


def qwen3() -> Built:
    """A language model without eyes: text alone."""
    tokenizer = byte_tokenizer({})
    tokenizer.chat_template = turns()
    return hub("Qwen3ForCausalLM", hub("Qwen3Config", **token_ids(tokenizer, head_dim=8))), tokenizer


def llama() -> Built:
    """Another one, whose tokenizer writes a first token."""
    tokenizer = byte_tokenizer({}, bos="<bos>")
    tokenizer.chat_template = "{{ bos_token }}" + turns()
    return hub("LlamaForCausalLM", hub("LlamaConfig", **token_ids(tokenizer))), tokenizer
