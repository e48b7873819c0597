"""Try models on a page in the browser: scores and verdicts, search, paraphrases.

cosent demo                                                              http://127.0.0.1:7860, until Ctrl-C
cosent demo --model runs/faq --cross runs/cross --student runs/student --text questions.txt

The page is for this machine alone, and neither it nor the server asks any other host; --share makes a public link.
"""

from dataclasses import dataclass
from importlib.util import find_spec

from cosent.cli import option, run
from cosent.errors import InputError


@dataclass
class DemoArguments:
    """Models to try, and what they search."""

    model: str = option("similar", "Folder of a trained model of either tower, a shipped model or a Hub id.")
    cross: str | None = option(None, "Cross-encoder, which scores pairs too and reranks what --model found.")
    student: str | None = option(None, "Student, which writes paraphrases; default: similar-writer with similar.")
    index: str | None = option(None, "To search: unit vectors that `cosent encode` wrote.")
    text: str | None = option(
        None, "Instead: file of sentences: txt (one per line), tsv, csv, jsonl, parquet, xlsx; embedded once."
    )
    port: int | None = option(None, "Port; default: the first free one from 7860 on.")
    share: bool = option(False, "Also make a public link through gradio.live: whoever has it can use the models.")
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available.")


def main(args: DemoArguments) -> None:
    check(args)
    from cosent.jobs.demo_page import serve

    serve(load(args), args.port, args.share)


def check(args: DemoArguments) -> None:
    """Refuses arguments before a model is loaded."""
    if find_spec("gradio") is None:
        raise InputError("The page needs Gradio, which is not installed. Run pip install -e '.[demo]'.")
    if args.index and args.text:
        raise InputError("--index and --text are mutually exclusive. Give one of the two.")


def load(args: DemoArguments):
    """The `Models` that the flags name."""
    from cosent.compute.devices import choose_device
    from cosent.data.files import SENTENCE, open_table
    from cosent.jobs.demo_page import Models, Scorer
    from cosent.models.auto import load_bi_encoder, load_model
    from cosent.models.cache import growing_vectors
    from cosent.models.student import Student
    from cosent.search.index import Index

    device, index = choose_device(args.device), None
    if args.index is not None:
        index = Index.open(args.index, load_bi_encoder(args.model).to(device))
    elif args.text is not None:
        table = open_table(args.text, None, SENTENCE, "the only column, or one called text or sentence")
        index = Index.of(list(table.texts()), load_bi_encoder(args.model).to(device), growing_vectors)
    scorers = [Scorer.of(args.model, load_model(args.model).to(device) if index is None else index.encoder)]
    if args.cross is not None:
        scorers.append(Scorer.of(args.cross, load_model(args.cross).to(device)))
    student = args.student or ("similar-writer" if args.model == "similar" else None)
    return Models(scorers, index, Student.from_pretrained(student).to(device) if student else None)


ARGUMENTS = (DemoArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
