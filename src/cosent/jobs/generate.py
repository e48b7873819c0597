"""Generate sentences similar to given ones (experimental: read them before use), ranked by the model `similar`.

cosent generate --model runs/student 微信和支付宝哪个好 --top 20
"""

from collections import Counter
from dataclasses import dataclass
from operator import itemgetter

from cosent.data.formats import is_blank
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.flags import REQUIRED, option, refuse_below_1
from cosent.jobs.arguments import ModelSource, choose_device

RANKER = "similar"
SAMPLES = 100  # of a sentence, before duplicates are dropped


@dataclass(kw_only=True)
class GenerateArguments(ModelSource):
    """Sentences and sampling."""

    model: str = "similar-writer"
    sentences: list[str] = option(REQUIRED, "Sentences.", positional=True)
    top: int = option(5, "Most results for each query or sentence.")
    max_length: int = option(64, "Most tokens of a generated sentence.")
    seed: int = option(42, "Seed of all random draws.")


def main(args: GenerateArguments) -> None:
    if any(map(is_blank, args.sentences)):
        raise InputError("One of the sentences is empty. Leave it out.")
    refuse_below_1(args, "top")
    resolve(args.model)  # before imports that take seconds
    from cosent.models.student import Student

    student = Student.from_pretrained(args.model).to(choose_device(args.device)).eval()
    samples = student.similar_sentences(
        args.sentences, keep=SAMPLES, num_samples=SAMPLES, max_length=args.max_length, seed=args.seed
    )
    print(" cosine  sentence")
    rankings = ranked(args.sentences, samples, student.device, args.top)
    for source, ranking in zip(args.sentences, rankings, strict=True):
        print(source if ranking else f"{source}: no sentence is left; take another --seed, or raise --max_length")
        for sentence, score in ranking:
            print(f"{score:7.4f}  {sentence}")


def ranked(
    sources: list[str], samples: list[list[tuple[str, float]]], device, most: int
) -> list[list[tuple[str, float]]]:
    """The `most` samples of each source without repeated characters, by falling cosine of `RANKER`, with it."""
    from cosent.models.bi_encoder import SentenceEncoder

    ranker = SentenceEncoder.from_pretrained(RANKER).to(device).eval()
    ranking = []
    for source, sampled in zip(sources, samples, strict=True):
        fluent = [sentence for sentence, _ in sampled if not repeats(sentence, source)]
        cosines = ranker.similarity([source] * len(fluent), fluent).tolist() if fluent else []
        ranking.append(sorted(zip(fluent, cosines, strict=True), key=itemgetter(1), reverse=True)[:most])
    return ranking


def repeats(sentence: str, source: str) -> bool:
    """Whether two neighbouring characters occur again, or a character twice in a row, more often than in the source."""
    bigrams, expected = (Counter(zip(text, text[1:], strict=False)) for text in (sentence, source))
    return any(count > max(expected[bigram], 0 if bigram[0] == bigram[1] else 1) for bigram, count in bigrams.items())
