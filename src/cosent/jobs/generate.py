"""Generate sentences similar to a given one (experimental: read them before use), ranked by the model `similar`.

cosent generate --model runs/student 微信和支付宝哪个好 --num 20
cosent generate --model runs/student --text questions.xlsx --text_column question --output similar.xlsx

--output (csv, jsonl, xlsx) has a row per generated sentence: text, similar and score, the last two empty
for a text without any.
"""

import json
from collections import Counter
from dataclasses import dataclass
from operator import itemgetter

from cosent.data.files import OF_FILES, SENTENCE, open_table
from cosent.data.formats import FileOptions, is_blank
from cosent.data.writers import check_output, table_writer
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.flags import option, refuse_changed
from cosent.jobs.arguments import ModelSource, OutputFile, SentenceFile, choose_device

RANKER = "similar"


@dataclass(kw_only=True)
class GenerateArguments(OutputFile, SentenceFile, ModelSource):
    """Sentences and sampling."""

    model: str = "similar-writer"
    sentences: list[str] | None = option(None, "Sentences, instead of a file.", positional=True)
    num: int = option(5, "Most generated sentences per text.")
    num_samples: int = option(100, "Samples per text, before duplicates are dropped.")
    top_p: float = option(
        0.95, "Nucleus sampling: draw from the most likely tokens whose probabilities add up to this."
    )
    max_length: int = option(64, "Most tokens of a generated sentence.")
    seed: int = option(42, "Seed of all random draws.")


def main(args: GenerateArguments) -> None:
    if args.text is None:
        refuse_changed(args, ("text_column", *OF_FILES), "--text FILE")
    if args.output:
        check_output(args.output, args.text or "", args.overwrite)
    texts = read_texts(args.sentences, args.text, args.text_column, args.options)
    resolve(args.model)  # before imports that take seconds
    from cosent.models.student import Student

    student = Student.from_pretrained(args.model).to(choose_device(args.device)).eval()
    written = student.similar_sentences(
        texts,
        keep=args.num_samples,
        num_samples=args.num_samples,
        top_p=args.top_p,
        max_length=args.max_length,
        seed=args.seed,
    )
    candidates = [[sentence for sentence, _ in sentences] for sentences in written]
    similar_sentences = ranked(texts, candidates, student.device, args.num)
    if args.output:
        nothing: list[tuple[None, None]] = [(None, None)]
        rows = [
            {"text": text, "similar": similar, "score": score}
            for text, sentences in zip(texts, similar_sentences, strict=True)
            for similar, score in (sentences or nothing)
        ]
        with table_writer(args.output, ("text", "similar", "score")) as write:
            write(rows)
        print(json.dumps({"output": args.output, "texts": len(texts), "sentences": sum(map(len, similar_sentences))}))
        return
    print(" cosine  sentence")
    for text, sentences in zip(texts, similar_sentences, strict=True):
        print(text if sentences else f"{text}: no sentence is left; raise --num_samples or --max_length")
        for sentence, score in sentences:
            print(f"{score:7.4f}  {sentence}")


def ranked(texts: list[str], candidates: list[list[str]], device, most: int) -> list[list[tuple[str, float]]]:
    """The `most` candidates of each text without repeated characters, by falling cosine of `RANKER`, with it."""
    from cosent.models import load_bi_encoder

    ranker = load_bi_encoder(RANKER).to(device).eval()
    ranking = []
    for text, sentences in zip(texts, candidates, strict=True):
        fluent = [sentence for sentence in sentences if not repeats(sentence, text)]
        cosines = ranker.similarity([text] * len(fluent), fluent).tolist() if fluent else []
        ranking.append(sorted(zip(fluent, cosines, strict=True), key=itemgetter(1), reverse=True)[:most])
    return ranking


def repeats(sentence: str, source: str) -> bool:
    """Whether two neighbouring characters occur again, or a character twice in a row, more often than in the source."""
    bigrams, expected = (Counter(zip(text, text[1:], strict=False)) for text in (sentence, source))
    return any(count > max(expected[bigram], 0 if bigram[0] == bigram[1] else 1) for bigram, count in bigrams.items())


def read_texts(texts: list[str] | None, file: str | None, column: str | None, options: FileOptions) -> list[str]:
    """The texts of the command line, or of a column of the file."""
    if file is not None and texts is None:
        return list(open_table(file, column and [column], SENTENCE, "--text_column", "--text", options).texts())
    if texts is None or file is not None:
        raise InputError("Give sentences or --text FILE, one of the two.")
    if any(map(is_blank, texts)):
        raise InputError("One of the sentences is empty. Leave it out.")
    return texts
