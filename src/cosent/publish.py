"""Publish the folder of a model on the Hub, with its model card; private unless asked otherwise.

cosent publish --model runs/faq --repository me/faq-zh

All files go along, of a run also run.json (settings, versions, commit, results), scores.npz and queries.npz (results by
pair and by query); checkpoints do not.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from cosent.cli import REQUIRED, option, run


@dataclass
class PublishArguments:
    """What is published, and where."""

    model: str = option(REQUIRED, "Folder of a finished run.")
    repository: str = option(REQUIRED, "OWNER/NAME on the Hub; created if it is not there.")
    public: bool = option(False, "Let everyone see a new repository; default: private.")
    license: str | None = option(None, "Licence for the card, as the Hub calls it, e.g. apache-2.0.")
    dry_run: bool = option(False, "Print the card and the files, and send nothing.")


def main(args: PublishArguments) -> None:
    from huggingface_hub import ModelCard
    from huggingface_hub.utils import filter_repo_objects

    from cosent.errors import write_atomically
    from cosent.reporting.card import CARD_NAME, LEFT_OUT, card_of, upload
    from cosent.run import read_record

    folder = Path(args.model)
    card = ModelCard(card_of(folder, read_record(folder)))
    if args.license is not None:
        card.data.license = args.license
    files = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    sent = list(filter_repo_objects(files, ignore_patterns=LEFT_OUT))
    if args.dry_run:
        print(card.content, *sent, sep="\n")
        return
    print(f"{len(sent)} files go to {args.repository}: {', '.join(sent)}", file=sys.stderr)
    write_atomically(folder / CARD_NAME, str(card))
    print(upload(folder, args.repository, not args.public, "Publish a cosent model"))


ARGUMENTS = (PublishArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS)
