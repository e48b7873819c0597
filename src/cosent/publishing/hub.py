"""Upload a model folder to the Hub."""

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from cosent.errors import InputError
from cosent.run import UNFINISHED

# What only continues a run here; everything else is published.
LEFT_OUT = ("checkpoint-*", "checkpoint-*/*", "*.partial", ".cache/*", "trainer_state.json", "optimizer.pt")


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
