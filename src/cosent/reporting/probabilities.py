"""Section and table on probabilities: how far they, and raw scores, are from the share of similar pairs."""

from cosent.evaluation.calibration import BINS, reliability, uncalibrated
from cosent.reporting import figures
from cosent.reporting.document import Figures, Section, Table, markdown_table
from cosent.reporting.numbers import Cell, mean_of
from cosent.reporting.readme_tables import protocol
from cosent.studies.results import Result, Study

METRICS = {"brier": "Brier", "log_loss": "log loss", "calibration_error": "calibration error"}
HEADER = ["method, corpus", "map", *(f"{name}, {how}" for name in METRICS.values() for how in ("as is", "calibrated"))]


def probabilities(study: Study) -> Section:
    """Section of errors on test and reliability diagrams, for corpora with labels of 0 and 1."""
    rows = error_rows(study)
    if not rows:
        return Section("Probabilities", [])
    plots = [plot for row in study.rows for run in study.rows[row][:1] for plot in diagrams(row, run)]
    caption = "Errors of scores taken as probabilities, and of the probabilities of the map from validation, on test."
    legend = (
        f"Share of similar test pairs by probability, in {BINS} bins, first run of a method: on the diagonal a "
        "probability is what it says. Scores as they are (orange): cosines cut to 0..1, or the sigmoid of logits."
    )
    return Section("Probabilities", [Table(caption, HEADER, rows), Figures(legend, plots)])


def probabilities_table(study: Study) -> str:
    """Markdown table of the errors, with the settings of the runs."""
    return f"{markdown_table(HEADER, error_rows(study))}\n\nOn test; means over seeds. {protocol(study.results)}"


def error_rows(study: Study) -> list[list[Cell]]:
    """A row per method and corpus that has a map; means over its runs."""
    rows: list[list[Cell]] = []
    for row in study.rows:
        for corpus in study.corpora:
            runs = [run for run in study.cell(row, corpus) if corpus in run.calibrations]
            if runs:
                maps = dict.fromkeys(run.calibrations[corpus].method for run in runs)
                errors = [mean_of((run.test(corpus, prefix + metric) for run in runs), ".4f")
                          for metric in METRICS for prefix in ("uncalibrated_", "")]  # fmt: skip
                rows.append([f"{row}, {corpus}", " or ".join(maps), *errors])
    return rows


def diagrams(row: str, run: Result) -> list[str]:
    """A reliability diagram for each corpus with a map whose test scores were kept."""
    plots = []
    for corpus, calibration in run.calibrations.items():
        if corpus in run.scores:
            scores, labels = (run.scores[corpus]["test"][name] for name in ("after", "labels"))
            raw = uncalibrated(scores, run.recipe.get("tower", "bi_encoder"))
            lines = [(label, *reliability(p, labels)[1:])
                     for label, p in (("as is", raw), ("calibrated", calibration.probabilities(scores)))]  # fmt: skip
            plots.append(figures.diagonal(f"{row}, {corpus}", lines, "probability", "share of similar pairs"))
    return plots
