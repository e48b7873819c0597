"""Score pairs of sentences.

cosent similarity --model runs/stsb 我喜欢北京 我不喜欢北京
cosent similarity --model runs/stsb --pairs pairs.tsv
"""

from dataclasses import dataclass

from cosent.cli import run
from cosent.data.text import numbered_lines
from cosent.errors import InputError
from cosent.flags import REQUIRED, option


@dataclass
class SimilarityArguments:
    """Sentences to compare."""

    model: str = option(REQUIRED, "Folder of a trained model, a shipped encoder or a Hub id.")
    sentences: list[str] | None = option(None, "Sentences, in pairs.", positional=True, commas=True)
    pairs: str | None = option(None, "Instead of sentences: UTF-8 file with `sentence1 TAB sentence2` lines.")
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available.")


def main(args: SimilarityArguments) -> None:
    from cosent.compute.devices import choose_device
    from cosent.modeling.auto import load_model

    if args.pairs and args.sentences:
        raise InputError("Give sentences or --pairs FILE, not both.")
    pairs = read_pairs(args.pairs) if args.pairs else pair_up(args.sentences or [])
    model = load_model(args.model).to(choose_device(args.device))
    scores = model.similarity([first for first, _ in pairs], [second for _, second in pairs])
    for (first, second), score in zip(pairs, scores, strict=True):
        print(f"{score:7.4f}  {first}  |  {second}")


def pair_up(sentences: list[str]) -> list[tuple[str, str]]:
    if not sentences or len(sentences) % 2 or not all(sentences):
        raise InputError(
            f"similarity compares sentences in pairs, got {sentences}. Give an even number of non-empty sentences, "
            "or --pairs FILE."
        )
    return list(zip(sentences[::2], sentences[1::2], strict=True))


def read_pairs(path: str) -> list[tuple[str, str]]:
    """Reads `sentence1 TAB sentence2` lines; further columns are ignored."""
    pairs = []
    for number, line in numbered_lines(path, "a UTF-8 file with `sentence1 TAB sentence2` lines"):
        fields = line.split("\t")
        if len(fields) < 2 or not all(fields[:2]):
            raise InputError(f"{path}, line {number}: expected `sentence1 TAB sentence2`, got {line!r}.")
        pairs.append((fields[0], fields[1]))
    if not pairs:
        raise InputError(f"{path} is empty. --pairs takes a UTF-8 file with `sentence1 TAB sentence2` lines.")
    return pairs


ARGUMENTS = (SimilarityArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
