"""Read YAML whose scalars stay text, as it is written."""

import yaml

from cosent.errors import InputError

NULL = "tag:yaml.org,2002:null"


def read_yaml(text: str, where: str):
    """Reads YAML whose scalars are text as it is written, or None for null: the flag decides what the text means.

    YAML 1.1 itself reads `no` as false, `010` as 8 and `1:30` as 90.

    Raises:
        InputError: not YAML, or a key that occurs twice, of which YAML silently keeps the last.
    """
    try:
        return _as_written(yaml.compose(text, Loader=yaml.SafeLoader), where)
    except yaml.YAMLError as error:
        raise InputError(f"{where} is not YAML: {error}") from error


def _as_written(node: yaml.Node | None, where: str):
    if isinstance(node, yaml.SequenceNode):
        return [_as_written(item, where) for item in node.value]
    if not isinstance(node, yaml.MappingNode):
        return None if node is None or node.tag == NULL else node.value
    found = {}
    for key, value in node.value:
        name = str(key.value)
        if name in found:
            raise InputError(f"{where}: the key {name!r} occurs twice. Keep one.")
        found[name] = _as_written(value, where)
    return found
