"""Folders go to the Hugging Face hub."""

import re
from pathlib import Path


def is_hub_id(name: str) -> bool:
    """Whether a text is `owner/name`, and no path: these begin with a dot, a slash or ~, or lead to what is there."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None and not Path(name).exists()


def push_folder(
    folder: Path, repo: str, *, private: bool = False, token: str | None = None, overwrite: bool = False
) -> str:
    """Uploads the files of a folder as one commit, to a repository that is made where there is none.

    Args:
        folder: with config.json, safetensors and README.md.
        repo: `owner/name`.
        private: whether a new repository is private.
        token: of the hub, with the right to write; None: the one that `hf auth login` or HF_TOKEN gave.
        overwrite: whether a repository may have files already; those of the same kind are then replaced.

    Returns:
        the address of the commit.

    Raises:
        ValueError: the name is no hub id, or the repository has files.
        ModuleNotFoundError: huggingface_hub is not there.
        OSError: there is no network, no token, or the hub refuses.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise ValueError(f"{repo!r} is no hub id; expected 'owner/name'")
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise ModuleNotFoundError(
            "the hub needs huggingface_hub; pip install 'fredholm[hub]', or save to a folder"
        ) from error
    try:
        api = HfApi(token=token, library_name="fredholm")
        api.create_repo(repo, private=private or None, exist_ok=True)
        there = [name for name in api.list_repo_files(repo) if name != ".gitattributes"]
        if not there or overwrite:
            return api.upload_folder(
                repo_id=repo,
                folder_path=folder,
                commit_message="A model of fredholm",
                delete_patterns=["*.safetensors", "*.safetensors.index.json"],
            ).commit_url
    except Exception as error:  # the hub's client raises errors of several libraries
        reason = " ".join(str(error).split())
        raise OSError(
            f"{repo}: the hub took nothing ({type(error).__name__}: {reason:.200}); check the network, and the token "
            "(--token, HF_TOKEN or hf auth login)"
        ) from error
    raise ValueError(
        f"{repo} has files on the hub, such as {there[0]}; choose another name, or replace them with "
        "overwrite=True (--overwrite)"
    )
