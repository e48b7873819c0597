"""Upload a model folder to the Hub."""

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import HFValidationError, validate_repo_id

from cosent.errors import InputError
from cosent.flags import nearest
from cosent.run import UNFINISHED

# What only continues a run here; everything else is published.
LEFT_OUT = ("checkpoint-*", "checkpoint-*/*", "*.partial", ".cache/*", "trainer_state.json", "optimizer.pt")

# As in https://huggingface.co/docs/hub/repositories-licenses; the Hub adds one from time to time.
LICENSES = (  # noqa: SIM905
    "afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0 "
    "bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 "
    "cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 "
    "cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 "
    "cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 "
    "etalab-2.0 eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 grok2-community "
    "h-research intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 "
    "lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 openmdw-1.0 openmdw-1.1 openrail openrail++ osl-3.0 other "
    "pddl postgresql unknown unlicense wtfpl zlib "
).split()


def check_request(repository: str, license_id: str | None) -> None:
    """Refuses what the Hub would refuse, before anything is sent.

    Raises:
        InputError: a repository that is not OWNER/NAME, or a licence that the Hub does not know.
    """
    try:
        validate_repo_id(repository)
        owner, _, _ = repository.rpartition("/")
    except HFValidationError:
        owner = ""
    if not owner:
        raise InputError(
            f"--repository {repository} is not OWNER/NAME: both of letters, digits, -, _ and ., with one / between."
        )
    if license_id is not None and license_id not in LICENSES:
        raise InputError(
            f"--license {license_id} is none that the Hub knows.{nearest(license_id, LICENSES)} Name one of "
            "https://huggingface.co/docs/hub/repositories-licenses, or `other`."
        )


def upload(folder: str | Path, repository: str, private: bool, message: str, token: str | None = None) -> str:
    """Creates a repository where there is none, and commits a folder to it in one commit.

    A repository that exists keeps its visibility.

    Args:
        token: default: the one of `hf auth login` or HF_TOKEN.

    Returns:
        Address of the commit.

    Raises:
        InputError: the folder holds an unfinished run, or the Hub refuses.
    """
    if Path(folder, UNFINISHED).exists():
        raise InputError(
            f"{folder} holds a run that has not finished: others would load weights of some step. Let it finish "
            "(--resume_from_checkpoint auto continues it), then publish it."
        )
    api = HfApi(token=token)
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=str(folder), ignore_patterns=list(LEFT_OUT), commit_message=message
        )
    except HfHubHTTPError as error:
        raise InputError(
            f"The Hub at {api.endpoint} refused {repository}: {error.server_message or error}. Nothing was published. "
            "Log in with `hf auth login` (a token with write access), and check the owner's name."
        ) from error
    return str(commit.commit_url)
