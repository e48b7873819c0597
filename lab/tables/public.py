"""README's picture of CoSENT on five corpora: BERT and RoBERTa as published, and a public encoder tuned here."""

import json
from statistics import mean

from cosent.comparing.figures import saved, styled
from lab import RESULTS
from lab.benchmarks.front import INKS, themed
from lab.tables.compared import found_runs
from lab.tables.studies import published

PANELS = {"atec": "ATEC", "bq": "BQ", "lcqmc": "LCQMC", "pawsx": "PAWSX", "stsb": "STS-B"}
PUBLISHED_ROWS = {  # method and encoder of a row of published.yaml, by label
    "BERT + Sentence-BERT": ("sbert", "BERT"),
    "RoBERTa + Sentence-BERT": ("sbert", "RoBERTa"),
    "BERT + CoSENT": ("cosent", "BERT"),
    "RoBERTa + CoSENT": ("cosent", "RoBERTa"),
    "e5-small, untuned": ("untuned", "e5-small"),
}
SOURCES = ("kexue.fm 8847, table 1", "github.com/embeddings-benchmark/results")
UNTUNED = "e5-small, untuned, here"
MEASURED_ROWS = {  # row of the table of losses, by label
    "e5-small + Sentence-BERT": "Sentence-BERT's head",
    "e5-small + CoSENT": "CoSENT",
    "e5-small + CoSENT, all pairs": "CoSENT, all pairs",
}


def scores() -> dict[str, dict[str, float]]:
    """Test Spearman x100 by row and corpus, as far as published or measured."""
    tables = [table for table in published() if table["source"].startswith(SOURCES)]
    rows = {(row["method"], row["encoder"]): row for table in tables for row in table["rows"]}
    front = json.loads((RESULTS / "front.json").read_text(encoding="utf-8"))["rows"]
    untuned = next(row["spearman"] for row in front if row["name"] == "e5-small-zh")
    by_label = {label: rows[key] for label, key in PUBLISHED_ROWS.items()}
    by_label[UNTUNED] = {corpus: 100 * value for corpus, value in untuned.items()}
    for label, loss in MEASURED_ROWS.items():
        runs = {corpus: found_runs("public_stsb", loss, corpus)[2] for corpus in PANELS}
        by_label[label] = {
            corpus: 100 * mean(run.test(corpus) or 0.0 for run in each) for corpus, each in runs.items() if each
        }
    return by_label


@styled
def public_picture(theme: str) -> str:
    """A panel for each corpus with a scale of its own, and a row for each model with its score.

    Args:
        theme: a key of `INKS`.
    """
    from matplotlib.lines import Line2D

    text, faint, *_, ours, others = INKS[theme]
    rows = {label: values for label, values in scores().items() if values}
    figure = themed(theme, 0.6 + 0.27 * len(rows))
    panels = figure.subplots(1, len(PANELS), sharey=True)
    panels[0].set_yticks(range(len(rows)), rows)
    panels[0].tick_params(labelcolor=text)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    for axes, (corpus, title) in zip(panels, PANELS.items(), strict=True):
        values = [of_row[corpus] for of_row in rows.values() if corpus in of_row]
        span = max(values) - min(values)
        axes.set_title(title)
        axes.set_facecolor("none")
        axes.grid(False)
        axes.set_xlim(min(values) - 0.1 * span, max(values) + 0.45 * span)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.axhline(len(PUBLISHED_ROWS) - 0.5, color=faint, linewidth=1)
        for place, (label, of_row) in enumerate(rows.items()):
            if corpus not in of_row:
                continue
            color = ours if "CoSENT" in label else others if "Sentence" in label else faint
            marker = "s" if label in PUBLISHED_ROWS else "o"
            axes.plot([of_row[corpus]], [place], marker, color=color, markersize=7, zorder=3)
            shift = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "fontsize": 9}
            axes.annotate(f"{of_row[corpus]:.1f}", (of_row[corpus], place), **shift)
    names = {
        "published: all pairs, five epochs": "s",
        "measured here: at most 10,000 pairs once, but for the last row": "o",
    }
    style = {"linestyle": "none", "color": faint, "markersize": 7}
    handles = [Line2D([], [], marker=marker, label=name, **style) for name, marker in names.items()]
    figure.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.04), ncol=2, frameon=False, handletextpad=0
    )
    figure.subplots_adjust(left=0.02, right=0.99, top=0.92, bottom=0.05, wspace=0.06)
    return saved(panels[0])
