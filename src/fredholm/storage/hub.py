"""Repositories on the Hugging Face hub, and uploading folders to them."""

import re
from pathlib import Path

HUB = "hf://"
"""Prefix of `owner/name` of a repository. All else is a local path, so a typing error causes no network request."""
_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(f"{_PART}/{_PART}")
_ALONE = re.compile(_PART)
OWNERS = {
    "gpt2": "openai-community",
    "distilgpt2": "distilbert",
    "distilbert": "distilbert",
    "distilroberta": "distilbert",
    "bert": "google-bert",
    "roberta": "FacebookAI",
    "xlm-roberta": "FacebookAI",
}
"""Hub owners of models known by a bare name, by the beginning of the name."""


def hub_name(place: str) -> str | None:
    """Returns the `owner/name` of `hf://owner/name`; None for any other text, which is a path.

    Raises:
        ValueError: the text after hf:// is no such name.
    """
    if not place.startswith(HUB):
        return None
    name = place.removeprefix(HUB)
    if not _NAME.fullmatch(name):
        raise ValueError(f"{place!r} names no repository of the hub; expected {HUB}owner/name")
    return name


def hub_hint(path: str) -> str:
    """Returns a hint for the end of a message about a missing path: the hub repository that it may mean; else empty."""
    if _ALONE.fullmatch(path):
        owner = next((owner for name, owner in OWNERS.items() if re.match(rf"{name}(-|$)", path)), "owner")
        path = f"{owner}/{path}"
    return f" (a repository of the hub is written {HUB}{path})" if _NAME.fullmatch(path) else ""


def push_folder(
    folder: Path, repo: str, *, private: bool = False, token: str | None = None, overwrite: bool = False
) -> str:
    """Uploads the files of a folder as one commit, to a repository that is created if necessary.

    Args:
        folder: folder with config.json, safetensors and README.md.
        repo: `owner/name`.
        private: whether a new repository is private.
        token: write token of the hub; None: that of `hf auth login` or HF_TOKEN.
        overwrite: whether the repository may have files; those of the same kind are then replaced.

    Returns:
        the address of the commit.

    Raises:
        ValueError: the name is invalid, or the repository has files.
        ModuleNotFoundError: huggingface_hub is not installed.
        OSError: there is no network or no token, or the hub refuses.
    """
    repo = hub_name(repo) or repo
    if not _NAME.fullmatch(repo):
        raise ValueError(f"{repo!r} is no name of a repository; expected 'owner/name'")
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
            f"{repo}: nothing was uploaded ({type(error).__name__}: {reason:.200}); check the network, and the token "
            "(--token, HF_TOKEN or hf auth login)"
        ) from error
    raise ValueError(
        f"{repo} has files on the hub, such as {there[0]}; choose another name, or replace them with "
        "overwrite=True (--overwrite)"
    )
