"""The page of licences next to the packages that are pinned and installed."""

import re

from packaging.markers import Marker

from lab import ROOT
from lab.licences import installed, locked, normalised

LINUX = {"sys_platform": "linux", "platform_machine": "x86_64", "python_full_version": "3.12.1"}
PAGE = (ROOT / "lab/licences.md").read_text(encoding="utf-8")
LISTED = {
    name: row[0] for row in re.findall(r"^\| (.+) \| (.+) \|$", PAGE, re.MULTILINE) for name in row[1].split(", ")
}


def test_every_package_is_listed():
    """Fails if a user's lawyer reads a list in which a pinned package is missing, or one that has gone is named."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    packages = re.findall(r"^([\w.-]+)==[^ ]+(?: ; ([^\\]+))?", lock, re.MULTILINE)
    here = {normalised(name) for name, marker in packages if not marker or Marker(marker).evaluate(LINUX)}
    assert len(here) > 80 and here == LISTED.keys() - {"packages"}


def test_licences_are_those_of_the_packages():
    """Fails if a package changed its licence and the page did not, or one binds the programs that use it."""
    versions = locked()
    found = {name: text for name, text in installed().items() if len(versions[name]) == 1}  # of any Python
    assert len(found) > 20 and {"torch", "transformers", "numpy"} <= found.keys()
    assert {name: text for name, text in found.items() if text != LISTED[name]} == {}
    assert not [
        text for text in LISTED.values() if re.search("GPL|not stated", text) and text != LISTED["cuda-toolkit"]
    ]
