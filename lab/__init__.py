"""The laboratory of this repository: its measurements, claims and pages.

It imports `cosent`, nothing imports it, and it is not in the wheel.
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "lab/results"
