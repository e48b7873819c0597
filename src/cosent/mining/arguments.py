"""Which pairs to make: flags of the jobs that mine."""

from dataclasses import dataclass

from cosent.errors import InputError
from cosent.flags import option, refuse_below_1


@dataclass(kw_only=True)
class PairArguments:
    """Which pairs to make."""

    text: list[str] | None = option(None, "Further sentences: .txt or .jsonl files, also .gz, a sentence per line.")
    range_min: int = option(10, "How many of the nearest neighbours of a sentence are skipped.")
    range_max: int = option(100, "How many of the nearest neighbours of a sentence are looked at.")
    per_sentence: int = option(1, "Neighbours taken per sentence, nearest first.")
    margin: float | None = option(
        None, "Least distance of a neighbour's cosine below that of the least similar pair that is labelled similar."
    )
    max_score: float | None = option(None, "Highest cosine of a neighbour.")
    neighbours: int | None = option(None, "Pairs with neighbours, drawn from those found; default: all.")
    random: int = option(0, "Random pairs.")
    own: int | None = option(
        None, "Pairs of the corpus itself, drawn at random; a teacher replaces their labels. Default: all."
    )
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available.")
    teacher_cache: str | None = option(None, "Folder of vectors and scores; default: ~/.cache/cosent/model_outputs.")


def check_pairs(args: PairArguments) -> None:
    """Refuses counts and ranks that no corpus could serve.

    Raises:
        InputError: a negative count, or fewer neighbours looked at than skipped and taken.
    """
    refuse_below_1(args, "range_max", "per_sentence")
    for name in ("range_min", "neighbours", "random", "own"):
        if (getattr(args, name) or 0) < 0:
            raise InputError(f"--{name} counts, got {getattr(args, name)}. 0 is the least.")
    if args.range_min + args.per_sentence > args.range_max:
        raise InputError(
            f"--range_min {args.range_min} and --per_sentence {args.per_sentence} need a --range_max of at least "
            f"{args.range_min + args.per_sentence}, got {args.range_max}: fewer neighbours than that are looked at."
        )
