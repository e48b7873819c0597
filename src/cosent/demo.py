"""Try models on a page in the browser: scores and verdicts, search, paraphrases, labels, reports.

cosent demo --model runs/faq                                             http://127.0.0.1:7860, until Ctrl-C
cosent demo --model runs/faq --cross runs/cross --student runs/student --text questions.txt --runs results/faq

The page is for this machine alone, and neither it nor the server asks any other host; --share makes a public link.
"""

from dataclasses import dataclass
from importlib.util import find_spec

from cosent.cli import REQUIRED, option, run
from cosent.errors import InputError


@dataclass
class DemoArguments:
    """Models to try, and what they search."""

    model: str = option(REQUIRED, "Folder of a trained model of either tower, a shipped encoder or a Hub id.")
    cross: str | None = option(None, "Cross-encoder, which scores pairs too and reranks what --model found.")
    student: str | None = option(None, "Student, which writes paraphrases.")
    index: str | None = option(None, "To search: unit vectors that `cosent encode` wrote, or a folder of them.")
    text: str | None = option(
        None, "Instead: file of sentences: txt (one per line), tsv, csv, jsonl, parquet, xlsx; embedded once."
    )
    runs: list[str] | None = option(
        None, "Reports to show: folders in which `cosent report` wrote report.html, or such pages."
    )
    port: int | None = option(None, "Port; default: the first free one from 7860 on.")
    share: bool = option(False, "Also make a public link through gradio.live: whoever has it can use the models.")
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available.")


def main(args: DemoArguments) -> None:
    check(args)
    from cosent.demo_page.reports import report_pages

    reports = report_pages(args.runs or [])
    from cosent.demo_page.models import load
    from cosent.demo_page.serving import serve

    models = load(args.model, args.cross, args.student, args.index, args.text, args.device)
    serve(models, reports, args.port, args.share)


def check(args: DemoArguments) -> None:
    """Refuses arguments before a model is loaded.

    Raises:
        InputError: Gradio is not installed, flags that do not go together, or no such port.
    """
    if find_spec("gradio") is None:
        raise InputError(
            "The page needs Gradio, which is not installed here. Nothing was loaded. Run pip install 'cosent[demo]'."
        )
    if args.index and args.text:
        raise InputError("Give --index or --text, not both: one of them is searched.")
    if args.port is not None and not 1 <= args.port <= 65535:
        raise InputError(f"--port must be 1 to 65535, got {args.port}.")


ARGUMENTS = (DemoArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
