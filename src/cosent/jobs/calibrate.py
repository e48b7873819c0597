"""Calibrate a model on labelled pairs: a copy of it with threshold, probabilities and threshold for duplicates.

cosent calibrate --model BAAI/bge-small-zh-v1.5 --corpus faq --output runs/bge_faq

Training does the same for its own corpora. The rules are in decision.json of the folder, which similarity, search,
dedup, serve and export read. They come from the validation split, whose labels must be 0 and 1. Several corpora
also get a rule for all of them together.
"""

import json
import sys
from dataclasses import dataclass

from cosent.atomic import complete_folder, locked, model_files, seal
from cosent.data.corpus import DataFolder, load_corpus
from cosent.encoders import resolve
from cosent.errors import InputError, writing
from cosent.flags import REQUIRED, option
from cosent.jobs.arguments import ModelSource, OutputFolder, open_model
from cosent.models.decision import DecisionRule, joint_rule, write_rules
from cosent.models.prompts import PromptArguments, warn_of_other_prompts
from cosent.record import read_record


@dataclass(kw_only=True)
class CalibrateArguments(OutputFolder, DataFolder, PromptArguments, ModelSource):
    """Corpora and output."""

    corpus: list[str] = option(REQUIRED, "Prepared corpora with labels 0 and 1: names under --data_dir, or folders.")


def main(args: CalibrateArguments) -> None:
    resolve(args.model)  # before imports that take seconds
    with locked(args.output):
        output = args.new_folder()
        from cosent.training.card import write_card

        corpora = [load_corpus(name, args.data_dir) for name in args.corpus]
        for corpus in corpora:
            if corpus.manifest.label_kind != "binary":
                raise InputError(f"{corpus.folder} has {corpus.manifest.label_kind} labels, and a rule needs 0 and 1.")
        model = open_model(args)
        prompts = model.prompts.sides(args.prompt, args.prompt_name)
        warn_of_other_prompts(args.model, model.prompts, *prompts)
        rules = fit_rules(model, corpora, prompts)
        with writing(output), complete_folder(output) as partial:
            model.save_pretrained(partial)
            write_rules(partial, rules)
            if (record := read_record(args.model)) is None:
                seal(partial, model_files(partial))
            else:  # of the same weights, with their terms
                write_card(partial, record, output.name)
                record.save(partial)
        for name, rule in rules.items():
            print(rule_line(name, rule, model.highest_score), file=sys.stderr)
        print(json.dumps({"output": args.output, "corpora": list(rules)}, ensure_ascii=False))


def fit_rules(model, corpora: list, prompts: tuple[str, str]) -> dict:
    """Fits a rule on each validation split, and one on all of them together."""
    scored = {}
    for corpus in corpora:
        if corpus.manifest.name in scored:
            raise InputError(f"Two corpora are called {corpus.manifest.name}. Prepare one under another name.")
        labels = corpus.labels("validation")
        if len(set(labels)) < 2:
            raise InputError(f"{corpus.folder}: every validation label is {labels[0]:g}. Add pairs of the other one.")
        rows = corpus.split("validation")
        scores = model.similarity(rows["sentence1"][:], rows["sentence2"][:], prompt=prompts, show_progress_bar=True)
        scored[corpus.manifest.name] = scores, labels
    rules = {name: DecisionRule.of(name, *both, prompts) for name, both in scored.items()}
    return joint_rule(rules, scored)


def rule_line(name: str, rule, highest_score: float) -> str:
    """One line about a rule."""
    merged = "nothing" if rule.merge_threshold is None else f"from {rule.merge_threshold:.4f}"
    likely = f"{rule.calibration.method}, at most {rule.probabilities([highest_score])[0]:.4f}"
    return f"{name}: similar from {rule.threshold:.4f}; probabilities: {likely}; merged by dedup: {merged}"
