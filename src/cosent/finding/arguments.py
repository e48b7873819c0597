"""Arguments of the jobs that find sentences: what is searched."""

from dataclasses import dataclass

from cosent.flags import REQUIRED, option


@dataclass
class IndexArguments:
    """The sentences, and the model that compares them."""

    model: str = option(REQUIRED, "Bi-encoder: folder of a trained model, a shipped encoder or a Hub id.")
    index: str | None = option(None, "Vectors that `cosent encode` wrote with --normalize, or a folder of them.")
    text: list[str] | None = option(
        None, "Instead: text files, a sentence per line; embedded once, and cached by model and text."
    )
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available.")
