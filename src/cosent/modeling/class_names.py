"""Find the similar and dissimilar classes of a classifier by the names in its config."""

import logging
import re

from cosent.errors import InputError
from cosent.schema import NLI_CLASSES

logger = logging.getLogger(__name__)

ENGLISH = ("entailment", "entail", "entails", "entailed", "similar", "same", "paraphrase", "duplicate", "equivalent",
           "related", "relevant", "match")  # fmt: skip
CHINESE = ("蕴含", "相似", "相同", "同义", "重复", "等价", "相关", "匹配", "一致")
SIMILAR = (*ENGLISH, *CHINESE)
NEGATIONS = ("not_", "non_", "no_", "not", "non", "un", "dis", "in", "ir")
DISSIMILAR = (
    *("contradiction", "contradict", "contradicts", "contradictory", "mismatch", "different", "矛盾", "不同", "无关"),
    *(f"{negation}{name}" for negation in NEGATIONS for name in ENGLISH),
    *(f"{negation}{name}" for negation in ("不", "非", "不是") for name in CHINESE),
)
# Of two classes; one of a pair alone may mean anything.
ANSWERS = (("no", "yes"), ("false", "true"), ("0", "1"), ("否", "是"), ("不是", "是"))
BINARY_CLASSES = ("dissimilar", "similar")  # the label is the position
UNNAMED = re.compile(r"LABEL_\d+")


def scored_classes(id2label: dict[int, str]) -> tuple[int, int | None]:
    """Indices of the logits for similar and dissimilar, whose difference is the score.

    A single logit is the score itself. Two classes without a name have one since `name_two_classes`.

    Args:
        id2label: from a transformers config.

    Returns:
        Both indices; None for the second one if there is a single logit.

    Raises:
        InputError: names that do not identify the classes.
    """
    # `str`: transformers' example scripts keep the labels of a CSV file, which may be the numbers 0 and 1.
    names = {int(number): normal(str(name)) for number, name in id2label.items()}
    if len(names) == 1:
        return 0, None
    by_name = {name: number for number, name in names.items()}
    for no, yes in ANSWERS:
        if set(by_name) == {no, yes}:
            return by_name[yes], by_name[no]
    similar = [number for number, name in names.items() if name in SIMILAR]
    dissimilar = [number for number, name in names.items() if name in DISSIMILAR]
    if len(names) == 2 and len(similar) == 1 != len(dissimilar):
        dissimilar = [1 - similar[0]]
    if len(similar) != 1 or len(dissimilar) != 1:
        raise InputError(
            f"The classes of this classifier are named {', '.join(names[number] for number in sorted(names))}, and "
            "which of them means similar is unclear: scores might be inverted. Set `id2label` in its config.json "
            "to entailment, neutral, contradiction, or to similar and dissimilar."
        )
    return similar[0], dissimilar[0]


def normal(name: str) -> str:
    """A name of a class without its case and spaces: `Is-Duplicate` is `duplicate`."""
    return re.sub(r"[\s-]+", "_", name.strip().lower()).removeprefix("is_")


def name_classes(config, path: str) -> None:
    """Names the classes of a classifier before training, in the order of its labels.

    Three are those of NLI, two are `BINARY_CLASSES`; names of the folder that mean the same stay. Under others the
    score of what is trained as similar might be inverted.

    Args:
        config: config of a transformers model; changed in place.
        path: name of the loaded model, for the warning that its head is retrained with another order of classes.
    """
    old = [str(config.id2label[number]) for number in range(config.num_labels)]
    unnamed = all(UNNAMED.fullmatch(name) for name in old)
    names = {len(NLI_CLASSES): NLI_CLASSES, len(BINARY_CLASSES): BINARY_CLASSES}.get(config.num_labels)
    if names is None or (not unnamed and in_order_of_labels(config.id2label)):
        return
    if not unnamed:
        logger.warning("%s has the classes %s; its head is trained as %s.", path, old, list(names))
    set_names(config, names)


def in_order_of_labels(id2label: dict[int, str]) -> bool:
    """Whether the first class is known to be the dissimilar one and the last the similar one."""
    try:
        return scored_classes(id2label) == (len(id2label) - 1, 0)
    except InputError:  # names that say neither
        return False


def name_two_classes(config) -> None:
    """Names two classes without a name, which are the labels 0 and 1: transformers would save none at all.

    Text Embeddings Inference refuses a classifier without `id2label` in its config.json.
    """
    if config.num_labels == 2 and all(UNNAMED.fullmatch(str(name)) for name in config.id2label.values()):
        set_names(config, BINARY_CLASSES)


def set_names(config, names: tuple[str, ...]) -> None:
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}
