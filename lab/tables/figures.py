"""Figures in sentences and hand-made tables of README, docs and cards, kept equal to the results by `lab.tables`.

lab/tables/figures.yaml has, by page, passages with a query in braces for each figure. A passage begins and ends with
text, and is found whatever the line breaks.

    {losses_stsb|cosent|stsb}                   test Spearman x100 of a row of a study, mean ± standard deviation
    {losses_stsb|cosent - sbert|stsb|interval}  difference with its 95% interval, by the rules of claims
    {merged.json/rows/both ranks/values|.2%}    a value of results/merged.json; of a list, the item whose name begins so

Rows of two studies are compared as `{native_mini + interactive_mini|cosent - cosent_mini|atec|interval}`.
Further parts are a format, then another metric. `.1f` shows the mean alone, `± .1f` the deviation too, `each` every
seed, `median` that of a list, `tried RATE` the validation score at a rate of the grid, `fused` what fusing both rows
gains, and `find ROW` Spearman / Recall@10, in bold where the interval of the difference from another row excludes 0.
"""

import json
import math
import os
import re
import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cosent.comparing.results import Study
from cosent.errors import InputError
from lab import RESULTS, ROOT
from lab.claims.measures import of_row, study_of
from lab.tables.differences import difference, fusion
from lab.tables.studies import with_interval

QUERY = re.compile(r"\{([^{}]+)\}")
VALUE = r"([-+\d.,±/*\[\]\s]{1,40}?)"
FIELDS = ("name", "claim", "loss")  # by which an item of a list is known


def passages(page: Path, root: Path = ROOT) -> list[str]:
    """The passages of a page; none of a page of another folder."""
    return pages_of(root / "lab/tables/figures.yaml").get(os.path.relpath(page, root), [])


@cache
def pages_of(file: Path) -> dict[str, list[str]]:
    return yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader) if file.is_file() else {}


def fill_figures(text: str, listed: list[str], of: Callable[[str], str] | None = None) -> str:
    """Replaces the figures of a page's passages; one that is still right keeps its line breaks.

    Raises:
        InputError: a passage is not on the page, or more than once.
    """
    for passage in listed:
        literals, queries = QUERY.split(passage)[::2], QUERY.findall(passage)
        pattern = VALUE.join(r"\s+".join(map(re.escape, literal.split(" "))) for literal in literals)
        matches = list(re.finditer(pattern + r"(?!\d)", text))  # the full stop of a passage is no decimal point
        if len(matches) != 1:
            raise InputError(f"{passage!r} is on the page {len(matches)} times. Change it in lab/tables/figures.yaml.")
        for place, query in reversed(list(enumerate(queries, 1))):
            value, (start, end) = (of or figure)(query), matches[0].span(place)
            if " ".join(text[start:end].split()) != value:
                text = text[:start] + value + text[end:]
    return text


@cache
def figure(query: str) -> str:
    """The figure that a query asks for."""
    try:
        source, *parts = query.split("|")
        return of_json(source, *parts) if ".json" in source else of_study(source, *parts)
    except (IndexError, KeyError, ValueError, TypeError, statistics.StatisticsError) as error:
        raise InputError(f"lab/tables/figures.yaml: no result for {{{query}}} ({error!r}).") from error


def of_json(path: str, form: str = ".2f") -> str:
    file, *keys = path.split("/")
    value: Any = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    for key in keys:
        if isinstance(value, list) and not key.isdigit():
            named = {str(item[field]): item for item in value for field in FIELDS if field in item}
            value = named[min((name for name in named if name.startswith(key)), key=len)]
        else:
            value = value[int(key)] if isinstance(value, list) else value[key]
    if form == "interval":
        return with_interval(*(100 * each for each in value))
    return shown(value if isinstance(value, list) else [value], form)


def of_study(names: str, rows: str, corpus: str, form: str = "± .2f", metric: str = "spearman") -> str:
    first, *other = rows.split(" - ")
    if form == "interval":
        return with_interval(*between(names, (first, other[0]), corpus, metric))
    if form == "fused":
        found = fusion(names, (first, other[0]), corpus)
        return with_interval(found["mean"], found["low"], found["high"])
    if form.startswith("tried"):
        grid = pair_of(names)[0].tried[first, corpus]
        return shown([100 * grid[f"learning_rate={form.removeprefix('tried ')}"]], ".1f")
    if form.startswith("find"):
        pair, cells = (first, form.removeprefix("find").strip()), []
        for each in ("spearman", "recall_at_10"):
            low, high = between(names, pair, corpus, each)[1:] if pair[1] else (0.0, 0.0)
            cell = of_study(names, rows, corpus, ".2f", each)
            cells.append(f"**{cell}**" if low * high > 0 else cell)
        return " / ".join(cells)
    sides = [of_row(study, row, corpus) for study, row in zip(pair_of(names), (first, *other), strict=False)]
    seeds = [seed for seed in sides[0] if seed in sides[-1]]
    values = [[100 * (side[seed].test(corpus, metric) or math.nan) for seed in seeds] for side in sides]
    return shown([ours - sum(others) for ours, *others in zip(*values, strict=True)], form)


def pair_of(names: str) -> list[Study]:
    """The two studies of a query, or the one twice."""
    studies = [study for name in names.split(" + ") if (study := study_of(name))]
    return [studies[0], studies[-1]]


def between(names: str, rows: tuple[str, str], corpus: str, metric: str) -> tuple[float, float, float]:
    found = difference(names, rows, corpus, metric)
    return found["mean"], found["low"], found["high"]


def shown(values: list[float], form: str) -> str:
    """Mean of values, with the standard deviation of several where the format has ±; `.2%` without its sign."""
    if form == "median":
        return f"{statistics.median(values):+.1f}"
    if form == "each":
        return ", ".join(f"{value:.1f}" for value in values)
    form, deviation = form.removeprefix("± "), form.startswith("±") and len(values) > 1
    numbers = [statistics.mean(values), *([statistics.stdev(values)] if deviation else [])]
    return " ± ".join(format(number, form).removesuffix("%") for number in numbers)
