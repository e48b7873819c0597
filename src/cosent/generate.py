"""Generate sentences similar to a given one, ranked by the model's own cosine.

cosent generate --model runs/student --text 微信和支付宝哪个好 --num 20
"""

import json
from dataclasses import dataclass

from cosent.cli import run
from cosent.data.text import numbered_lines
from cosent.errors import InputError
from cosent.flags import REQUIRED, option


@dataclass
class GenerateArguments:
    """Input and sampling parameters of generation."""

    model: str = option(REQUIRED, "Folder of a student, or a published RoFormer-Sim.")
    text: list[str] | None = option(None, "Sentences to generate similar ones for.", commas=True)
    input: str | None = option(None, "Instead of --text: UTF-8 file, one sentence per line.")
    num: int = option(20, "Most sentences to show per text.")
    num_samples: int = option(100, "Samples per text, before repetitions are dropped.")
    top_p: float = option(0.95, "Draw from the most likely tokens that together reach this probability.")
    top_k: int | None = option(None, "Draw from at most this many tokens.")
    temperature: float = option(1.0, "Below 1: safer sentences; above 1: more varied ones.")
    max_length: int = option(64, "Tokens of a generated sentence.")
    keep_tokens: list[str] | None = option(None, "Strings that every sentence must contain.", commas=True)
    mask_tokens: list[str] | None = option(None, "Strings to hide from the model.", commas=True)
    seed: int = option(42, "Seed of the sampling.")
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available.")
    json: bool = option(False, "Print one JSON line per text.")


def main(args: GenerateArguments) -> None:
    from cosent.compute.devices import choose_device
    from cosent.student.model import Student

    texts = read_texts(args.text, args.input)
    student = Student.from_pretrained(args.model).to(choose_device(args.device))
    found = student.similar_sentences(
        texts,
        num_samples=args.num_samples,
        top_p=args.top_p,
        top_k=args.top_k,
        temperature=args.temperature,
        max_length=args.max_length,
        keep=args.num,
        keep_tokens=args.keep_tokens,
        mask_tokens=args.mask_tokens,
        seed=args.seed,
    )
    for text, sentences in zip(texts, found, strict=True):
        if args.json:
            print(json.dumps({"text": text, "similar": sentences}, ensure_ascii=False))
            continue
        print(text if sentences else f"{text}: no sentence ended within --max_length; raise it, or --num_samples")
        for sentence, score in sentences:
            print(f"{score:7.4f}  {sentence}")


def read_texts(texts: list[str] | None, file: str | None) -> list[str]:
    if (texts is None) == (file is None):
        raise InputError("Give either --text SENTENCE ... or --input FILE with a sentence per line.")
    if file is None:
        if not all(text.strip() for text in texts):
            raise InputError("--text has an empty sentence, which nothing is similar to. Leave it out.")
        return texts
    lines = []
    for number, line in numbered_lines(file, "a UTF-8 file with one sentence per line"):
        if not line.strip():
            raise InputError(f"{file}, line {number} is empty: results would not line up with the lines. Remove it.")
        lines.append(line)
    if not lines:
        raise InputError(f"{file} is empty. Put a sentence on each line.")
    return lines


ARGUMENTS = (GenerateArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
