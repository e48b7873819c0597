"""Flags of `--mteb`; imports nothing heavy, for their `--help`."""

from dataclasses import dataclass

from cosent.errors import InputError
from cosent.flags import option, refuse_changed

TASKS = ("ATEC", "BQ", "LCQMC", "PAWSX", "STSB", "AFQMC", "QBQTC")


@dataclass
class MtebArguments:
    """Tasks of mteb: the Chinese STS tasks of its leaderboard, run by mteb itself."""

    mteb: list[str] | None = option(
        None, f"bi_encoder: instead of --corpus, tasks of mteb: {', '.join(TASKS)}, or sts for all."
    )
    mteb_data: str = option(
        "prepared", "Their rows: corpora under --data_dir called atec, bq, ...; or from the Hub, as mteb reads them.",
        ("prepared", "hub"),
    )  # fmt: skip
    mteb_output: str = option("mteb", "Folder of mteb's result files.")
    mteb_name: str | None = option(
        None, "Name of the model in them, OWNER/NAME; default: its Hub id, or local/ and the name of its folder."
    )
    mteb_revision: str | None = option(
        None, "Revision of the model in them; default: its commit on the Hub, or a hash of its files."
    )

    def __post_init__(self):
        if self.mteb is None:
            refuse_changed(self, ("mteb_data", "mteb_output", "mteb_name", "mteb_revision"), "--mteb sts")
            return
        self.mteb = list(dict.fromkeys(name.upper() for name in self.mteb))
        unknown = [name for name in self.mteb if name not in (*TASKS, "STS")]
        if unknown or ("STS" in self.mteb and len(self.mteb) > 1):
            raise InputError(
                f"--mteb takes sts, or some of {' '.join(TASKS)}, got {' '.join(self.mteb)}. Other tasks of mteb are "
                "not for pairs in Chinese. Correct the names."
            )
        if self.mteb_name is not None and self.mteb_name.strip("/").count("/") != 1:
            raise InputError(
                f"--mteb_name {self.mteb_name}: expected OWNER/NAME, which mteb names folders after. Nothing was run."
            )
