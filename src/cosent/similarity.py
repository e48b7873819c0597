"""Score pairs of sentences.

cosent similarity --model runs/stsb 我喜欢北京 我不喜欢北京
cosent similarity --model runs/stsb --pairs pairs.tsv
"""

import sys
from dataclasses import dataclass

from cosent.cli import run
from cosent.data.text import numbered_lines
from cosent.errors import InputError
from cosent.flags import REQUIRED, option
from cosent.inference.prompt_arguments import PromptArguments, described, warn_of_other_prompts


@dataclass
class SimilarityArguments:
    """Sentences to compare."""

    model: str = option(REQUIRED, "Folder of a trained model, a shipped encoder or a Hub id.")
    sentences: list[str] | None = option(None, "Sentences, in pairs.", positional=True, commas=True)
    pairs: str | None = option(None, "Instead of sentences: UTF-8 file with `sentence1 TAB sentence2` lines.")
    corpus: str | None = option(
        None, "Corpus whose threshold and probabilities to use; default: the only one that the model has them for."
    )
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available.")


def main(args: SimilarityArguments, prompt_args: PromptArguments) -> None:
    from cosent.compute.devices import choose_device
    from cosent.inference.decision_rule import decision_rules
    from cosent.modeling.auto import load_model

    if args.pairs and args.sentences:
        raise InputError("Give sentences or --pairs FILE, not both.")
    pairs = read_pairs(args.pairs) if args.pairs else pair_up(args.sentences or [])
    rules = decision_rules(args.model)
    model = load_model(args.model).to(choose_device(args.device))
    prompts = model.prompts.sides(prompt_args.prompt, prompt_args.prompt_name)
    warn_of_other_prompts(args.model, *prompts)
    rule, note = choose_rule(rules, args, prompts)
    scores = model.similarity(*map(list, zip(*pairs, strict=True)), prompt=prompts)
    print(note, file=sys.stderr)
    for line in lines(pairs, scores, rule):
        print(line)


def choose_rule(rules: dict, args: SimilarityArguments, prompts: tuple[str, str] = ("", "")):
    """The decision rule of `--corpus`, or the only one, or None; and a note about it for the user.

    Args:
        prompts: texts in front of both sentences; a rule that was found with others says nothing about these scores.

    Raises:
        InputError: the model has no rule for that corpus.
    """
    names = " ".join(rules)
    if args.corpus is not None and args.corpus not in rules:
        raise InputError(
            f"--corpus {args.corpus}: {args.model} has a threshold and probabilities for {names or 'no corpus'}. Those "
            "of another corpus would give wrong verdicts. Name one of these, or leave it out."
        )
    if not rules:
        return None, "score; no probability or verdict, since this model was not trained here on labels of 0 and 1"
    if args.corpus is None and len(rules) > 1:
        return None, f"score; for probability and verdict choose --corpus {names.replace(' ', ' or ')}"
    rule = rules[args.corpus or names]
    if rule.prompts != prompts:
        return None, f"score; no probability or verdict, since this model was trained with {described(rule.prompts)}"
    return rule, f"score, probability and verdict (at {rule.threshold:.4f}) as on {rule.corpus} validation"


def lines(pairs: list[tuple[str, str]], scores, rule) -> list[str]:
    """Score, with a rule also probability and verdict, and the sentences of each pair."""
    columns = [f"{score:7.4f}" for score in scores]
    if rule is not None:
        verdicts = ("similar" if similar else "not similar" for similar in rule.similar(scores))
        judged = zip(columns, rule.probabilities(scores), verdicts, strict=True)
        columns = [f"{score}  {probability:6.4f}  {verdict:<11}" for score, probability, verdict in judged]
    return [f"{column}  {first}  |  {second}" for column, (first, second) in zip(columns, pairs, strict=True)]


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


ARGUMENTS = (SimilarityArguments, PromptArguments)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
