"""Try models on a page in the browser: scores and verdicts, search, paraphrases.

cosent demo                                                              http://127.0.0.1:7860, until Ctrl-C
cosent demo --model runs/faq --cross runs/cross --student runs/student --text questions.txt

The page is for this machine alone, and neither it nor the server asks any other host; --share makes a public link.
"""

from dataclasses import dataclass
from importlib.util import find_spec

from cosent.cli import option, refuse_changed
from cosent.errors import InputError
from cosent.jobs.arguments import ModelSource, SentenceFile, open_model


@dataclass(kw_only=True)
class DemoArguments(SentenceFile, ModelSource):
    """Demo options."""

    cross: str | None = option(None, "Cross-encoder that also scores pairs, and reranks the hits of --model.")
    student: str | None = option(None, "Student that writes paraphrases; default: similar-writer next to similar.")
    index: str | None = option(None, "Vectors of `cosent encode --normalize`, instead of --text.")
    port: int | None = option(None, "Port to listen on; default: the first free one from 7860 on.")
    share: bool = option(False, "Make a public link through gradio.live, too: anybody who has it can use the models.")


def main(args: DemoArguments) -> None:
    check_arguments(args)
    from cosent.jobs.demo_page import serve

    serve(load(args), args.port, args.share)


def check_arguments(args: DemoArguments) -> None:
    """Refuses arguments before a model is loaded."""
    if find_spec("gradio") is None:
        raise InputError("The page needs Gradio, which is not installed. Run pip install -e '.[demo]'.")
    if args.index and args.text:
        raise InputError("--index and --text are mutually exclusive. Give one of the two.")
    if args.text is None:
        refuse_changed(args, ("text_column",), "--text FILE")


def load(args: DemoArguments):
    """The `Models` that the flags name."""
    from cosent.jobs.demo_page import Models, Scorer
    from cosent.models.auto import load_model
    from cosent.models.cache import growing_vectors
    from cosent.models.student import Student
    from cosent.search.index import open_index

    searches = args.index is not None or args.text is not None
    model = open_model(args, bi_encoder=searches)
    text = None if args.text is None else [args.text]
    index = open_index(args.index, text, model, growing_vectors, args.text_column) if searches else None
    scorers = [Scorer.of(args.model, model)]
    if args.cross is not None:
        scorers.append(Scorer.of(args.cross, load_model(args.cross).to(model.device)))
    student = args.student or ("similar-writer" if args.model == "similar" else None)
    return Models(scorers, index, Student.from_pretrained(student).to(model.device) if student else None)
