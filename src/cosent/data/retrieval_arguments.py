"""Flags of the jobs that measure retrieval; imports nothing heavy, for their `--help`."""

from dataclasses import dataclass

from cosent.errors import InputError
from cosent.flags import option, refuse_changed


@dataclass
class RetrievalArguments:
    """Retrieval, measured next to Spearman: which similar sentences a bi-encoder finds among those of a split."""

    retrieval: bool = option(True, "bi_encoder: measure Recall@1, 5 and 10, MRR@10, nDCG@10 and MAP too.")
    retrieval_pool: str = option("split", "Sentences to search: those of the split or of all.", ("split", "all"))
    retrieval_from: float | None = option(
        None, "Least label of sentences that are to be found; default: that of the corpus (1 of 0 and 1, 4 of 0..5)."
    )
    retrieval_closure: bool = option(False, "Sentences that are connected by similar pairs are to be found too.")

    def __post_init__(self):
        if not self.retrieval:
            refuse_changed(self, ("retrieval_pool", "retrieval_from", "retrieval_closure"), "--retrieval true")
        if self.retrieval_from is not None and self.retrieval_from <= 0:
            raise InputError(f"--retrieval_from must be above 0, got {self.retrieval_from:g}: labels are gains.")
