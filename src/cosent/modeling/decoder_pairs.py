"""Pairs as a decoder's classifier reads them: a token between the sentences, and a last token that is not padding."""

import torch
from tokenizers import processors

from cosent.errors import InputError


def reads_last_token(model) -> bool:
    """Whether a sequence classifier reads the last token that is not padding, as those of decoders do.

    transformers names the layer that reads it `score`, and that of an encoder otherwise.
    """
    return "score" in dict(model.named_children())


def reads_last_place(config) -> bool:
    """Whether a sequence classifier reads the last place of a row, padded or not, as that of XLNet does."""
    return config.model_type == "xlnet" and config.summary_type == "last"


def padded_on_the_left(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of shape `(batch, tokens)` with the padding of each row moved from its end to its start."""
    mask = inputs["attention_mask"]
    padding = (mask == 0).sum(1, keepdim=True)  # (batch, 1)
    places = (torch.arange(mask.shape[1], device=mask.device) - padding) % mask.shape[1]
    return {name: tensor.gather(1, places) for name, tensor in inputs.items()}


def find_last_token(config, tokenizer, fresh: bool) -> None:
    """Makes the token that transformers takes for the last one of a pair the right one, wherever the folder is served.

    transformers reads the last token that is not `config.pad_token_id`. A head that was trained so keeps that token,
    and the tokenizer pads with it. For a fresh head, sentences are separated, and padding is told from the end.

    Args:
        config, tokenizer: of a decoder's classifier; changed in place, and saved with it.
        fresh: whether its head is new.

    Raises:
        InputError: see `tell_padding_from_end`.
    """
    if fresh:
        separate_sentences(tokenizer)
    if fresh or config.pad_token_id is None:
        tell_padding_from_end(tokenizer)
        config.pad_token_id = tokenizer.pad_token_id
    elif config.pad_token_id != tokenizer.pad_token_id:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(config.pad_token_id)


def separate_sentences(tokenizer) -> None:
    """Puts an end-of-text token between two sentences if there is nothing: "ab" + "c" would be "a" + "bc"."""
    if tokenizer.num_special_tokens_to_add(pair=True):
        return
    backend, end = tokenizer.backend_tokenizer, tokenizer.eos_token or tokenizer.pad_token
    between = processors.TemplateProcessing(
        single="$A", pair=f"$A {end} $B", special_tokens=[(end, tokenizer.convert_tokens_to_ids(end))]
    )
    earlier = [] if backend.post_processor is None else [backend.post_processor]
    backend.post_processor = processors.Sequence([*earlier, between])


def tell_padding_from_end(tokenizer) -> None:
    """Pads with another special token if every pair ends with the padding token, as in Qwen3-Embedding.

    transformers would read the token before it, and servers that read the very last token (vLLM) another score. Padding
    is masked, so that it changes nothing else.

    Raises:
        InputError: the tokenizer has no other special token.
    """
    last = tokenizer("a", "b")["input_ids"][-1]
    if last != tokenizer.pad_token_id:
        return
    others = [token for token in tokenizer.all_special_tokens if tokenizer.convert_tokens_to_ids(token) != last]
    if not others:
        raise InputError(
            f"This tokenizer ends a pair with its padding token {tokenizer.pad_token}, and has no other special token: "
            "scores would be read one token too early. Set another pad_token in its tokenizer_config.json."
        )
    tokenizer.pad_token = others[0]
