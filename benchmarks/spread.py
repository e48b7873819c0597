"""How the vectors of an encoder spread before and after training: mean cosine of all sentences, uniformity, rank.

python -m benchmarks.spread --untrained mini --studies losses_stsb sbert_settings --runs runs/studies --corpus stsb \
    --output results/spread.json

Reads the results of studies and the models of their runs, and embeds the distinct test sentences of the corpus.
"""

import argparse
import json
from pathlib import Path

from cosent.data.corpus import load_corpus
from cosent.errors import messages_for_users
from cosent.evaluation.similarity import spread
from cosent.models.auto import load_bi_encoder
from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, with_deviation
from cosent.run_record import shortened
from cosent.studies.results import read_results
from cosent.training.record import environment

MEASURES = {"mean_cosine": ".3f", "uniformity": ".3f", "effective_rank": ".1f"}


def main(args: argparse.Namespace) -> None:
    splits = load_corpus(args.corpus, args.data_dir).split("test")
    sentences = list(dict.fromkeys([*splits["sentence1"], *splits["sentence2"]]))
    rows = [measure("untrained", [args.untrained], sentences)]
    for name in args.studies:
        study = read_results(Path("results") / name)
        for method, results in study.rows.items():
            rows.append(measure(f"{name} {method}", [str(args.runs / name / r.file.stem) for r in results], sentences))
    here = environment()
    result = {"kind": "spread", "corpus": args.corpus, "sentences": len(sentences), "rows": rows}
    result |= {"device": here.device, "commit": here.commit}
    args.output.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(spread_table(result))


def measure(method: str, models: list[str], sentences: list[str]) -> dict:
    found = [spread(load_bi_encoder(model).encode(sentences)) for model in models]
    print(f"{method}: {len(models)} models", flush=True)
    return {"method": method} | {key: [values[key] for values in found] for key in MEASURES}


def spread_table(result: dict) -> str:
    """Spread by method: mean and standard deviation over seeds."""
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        rows.append([row["method"], *(with_deviation(row[key], form) for key, form in MEASURES.items())])
    return (
        f"{markdown_table(['vectors of', *(key.replace('_', ' ') for key in MEASURES)], rows)}\n\n"
        f"{result['sentences']:,} distinct test sentences of {result['corpus']}; mean ± standard deviation over seeds; "
        f"{result['device']}, commit {shortened(result['commit'])}."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--untrained", required=True, help="the encoder that the runs started from")
    parser.add_argument("--studies", nargs="+", required=True, help="studies of bi-encoders with results in results/")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the studies' runs, whose models are read")
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--data_dir", type=Path, default=Path("data"))
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
