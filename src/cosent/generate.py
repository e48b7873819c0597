"""Write sentences similar to a given one, ranked by the model's own cosine.

python -m cosent.generate --model runs/student --text 微信和支付宝哪个好 --num 20
"""

import argparse
import json
from pathlib import Path

import torch

from cosent.errors import InputError, messages_for_users
from cosent.student.model import Student


def main(args: argparse.Namespace) -> None:
    texts = read_texts(args.text, args.input)
    student = Student.from_pretrained(args.model).to("cuda" if torch.cuda.is_available() else "cpu")
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
        print(text if sentences else f"{text}: no sentence came to an end; try --max_length or --num_samples")
        for sentence, score in sentences:
            print(f"{score:7.4f}  {sentence}")


def read_texts(texts: list[str] | None, file: str | None) -> list[str]:
    if (texts is None) == (file is None):
        raise InputError("Give --text SENTENCE ... or --input FILE with a sentence per line, one of the two.")
    if file is None:
        if not all(text.strip() for text in texts):
            raise InputError("--text has an empty sentence, and nothing is similar to that. Leave it out.")
        return texts
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--input cannot be read: {error}. Name a UTF-8 file, one sentence per line.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise InputError(f"{file}, line {number} is empty: results would not line up with the lines. Remove it.")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a student, or a published RoFormer-Sim")
    parser.add_argument("--text", nargs="+", help="sentences to write similar ones for")
    parser.add_argument("--input", help="UTF-8 file, one sentence per line")
    parser.add_argument("--num", type=int, default=20, help="the most sentences to show per text")
    parser.add_argument("--num_samples", type=int, default=100, help="samples per text, before repeated ones go")
    parser.add_argument("--top_p", type=float, default=0.95, help="probability that the tokens drawn from reach")
    parser.add_argument("--top_k", type=int, help="draw from this many tokens at most")
    parser.add_argument("--temperature", type=float, default=1.0, help="below 1: safer sentences, above: wilder ones")
    parser.add_argument("--max_length", type=int, default=64, help="tokens of a written sentence")
    parser.add_argument("--keep_tokens", nargs="+", help="strings that every sentence has to contain")
    parser.add_argument("--mask_tokens", nargs="+", help="strings that the model does not get to see")
    parser.add_argument("--seed", type=int, default=42, help="seed of the sampling")
    parser.add_argument("--json", action="store_true", help="one JSON line per text")
    with messages_for_users():
        main(parser.parse_args())
