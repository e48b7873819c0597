"""Keys of config.json that servers need and transformers 5 does not write."""

from transformers import PretrainedConfig


def add_server_keys(config: PretrainedConfig) -> None:
    """Adds what Text Embeddings Inference reads of a ModernBERT: the names that its settings had in transformers 4.

    transformers 5 reads its own `layer_types` and `rope_parameters`, which stay. Local and global layers that do not
    alternate regularly have no such names, and nothing is added. Until huggingface/text-embeddings-inference reads the
    names of transformers 5 (1.9.3 requires the old ones).
    """
    if config.model_type != "modernbert":
        return
    kinds, ropes = config.layer_types, config.rope_parameters
    period = next((place for place, kind in enumerate(kinds) if place and kind == "full_attention"), len(kinds))
    regular = ["full_attention" if place % period == 0 else "sliding_attention" for place in range(len(kinds))]
    if kinds == regular:
        config.global_attn_every_n_layers = period
        config.global_rope_theta = ropes["full_attention"]["rope_theta"]
        config.local_rope_theta = ropes["sliding_attention"]["rope_theta"]
