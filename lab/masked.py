"""CoSENT with BERT's masked words beside it, the MLM term of a review of kexue.fm 8847 (lab/LOG.md).

cosent train --config cosent_mini --loss lab/masked.py:cosent_mlm --loss_args weight=0.1 --corpus stsb \
    --output_dir runs/masked

For one process without --cached_batch_size, whose loss is that of several readings.
"""

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling

from cosent.losses.cosent import cosent_loss
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.loading import quiet_transformers

IGNORED = -100  # label of a word that is not masked


def cosent_mlm(embeddings: Tensor, labels: Tensor, weight: float = 0.1, scale: float = 20.0) -> Tensor:
    """CoSENT plus `weight` times the mean cross entropy of the masked words of the same sentences, read once more."""
    return cosent_loss(cosine_similarity(*embeddings.unbind(1)), labels, scale) + weight * READING.masked_words()


class Reading:
    """The sentences that an encoder has read last in training: a hook on all modules, since a loss gets no tokens."""

    def __init__(self):
        self.head: torch.nn.Module | None = None
        self.hook = register_module_forward_pre_hook(self.keep)

    def keep(self, module: torch.nn.Module, args: tuple[Tensor, ...]) -> None:
        if isinstance(module, SentenceEncoder) and module.training:
            self.encoder, (self.ids, self.attention_mask) = module, args

    def masked_words(self) -> Tensor:
        """Mean cross entropy of 15% of the words, by the head of the starting model, which is not trained.

        Its output weights are the embeddings of the tokens, which are.
        """
        backbone, tokenizer = self.encoder.backbone, self.encoder.tokenizer
        if self.head is None:
            with quiet_transformers():
                self.head = AutoModelForMaskedLM.from_pretrained(backbone.config.name_or_path).cls.predictions
            self.head.to(backbone.device).requires_grad_(False)
            self.head.decoder.weight = backbone.get_input_embeddings().weight
        special = torch.isin(self.ids, self.ids.new_tensor(tokenizer.all_special_ids))
        inputs, words = DataCollatorForLanguageModeling(tokenizer).torch_mask_tokens(self.ids.clone(), special)
        hidden = backbone(input_ids=inputs, attention_mask=self.attention_mask).last_hidden_state
        masked = words != IGNORED
        entropy = cross_entropy(self.head(hidden[masked]).float(), words[masked], reduction="sum")
        return entropy / max(1, int(masked.sum()))


READING = Reading()
