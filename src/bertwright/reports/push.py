"""`bertwright push`: send a model folder with its card to the Hugging Face hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertwright.base.messages import first_line
from bertwright.base.reporter import SILENT, Line, Reporter
from bertwright.base.settings import Positional, check_not_str
from bertwright.interop.model_files import CARD, DOWNLOADED, check_model, model_folder

MESSAGE = "Upload a model by bertwright"
LOGIN = "log in with `hf auth login`, or set HF_TOKEN to a token that may write (huggingface.co/settings/tokens)"
REASONS = {401: f"no valid token; {LOGIN}", 403: f"this token may not write there; choose another name, or {LOGIN}"}


@dataclass(frozen=True)
class PushSettings:
    """Send a model folder with its card to the Hugging Face hub, in one commit.

    Only what loading reads is sent: weights, configuration, tokenizer, task, card; no optimizer state, no logs.
    """

    model: Positional[str]
    """Model folder or run folder."""
    name: Positional[str]
    """Name on the hub, as in me/my-model; without me/, of the account that the token belongs to."""
    public: bool = False
    """Create a repository that everyone can read. By default a new one is private; one that exists stays as it is."""
    license: str | None = None
    """License for the card, by its identifier on the hub, such as apache-2.0."""
    language: tuple[str, ...] = ()
    """Languages for the card, as codes, such as en ko."""

    def __post_init__(self) -> None:
        check_not_str(self, "language")


def check_inputs(settings: PushSettings) -> None:
    """Raise ValueError unless the model is a folder here."""
    check_model(settings.model)
    if not Path(settings.model).is_dir():
        raise ValueError(f"{settings.model}: expected a model folder or a run folder, got no such folder")


def push(settings: PushSettings, reporter: Reporter = SILENT) -> str:
    """Send the files of a model to the hub; return the address of the repository.

    The token is huggingface_hub's, from HF_TOKEN or `hf auth login`. Raises ValueError if the hub does not accept
    the files.
    """
    check_inputs(settings)
    folder = model_folder(settings.model)
    paths = find_files(folder)
    if CARD not in paths:
        reporter.note(f"{folder}: no {CARD}, so the model arrives without a card; bertwright convert writes one")
    from huggingface_hub import CommitOperationAdd, HfApi

    contents: dict[str, Path | bytes] = {**paths}
    if settings.license or settings.language:
        contents[CARD] = with_statements(paths.get(CARD), settings).encode()
    operations = [CommitOperationAdd(name, content) for name, content in contents.items()]
    try:
        api = HfApi()
        repository = api.create_repo(settings.name, private=not settings.public, exist_ok=True)
        with reporter.progress("sending", None):
            api.create_commit(repository.repo_id, operations, commit_message=MESSAGE)
    except Exception as error:  # the hub client raises its own errors, its HTTP library's, and OSError
        code = getattr(getattr(error, "response", None), "status_code", 0)
        reason = REASONS.get(code) or first_line(error)
        raise ValueError(f"{settings.name}: the hub has not accepted the model: {reason}") from error
    reporter.record(Line(f"{repository}: {len(operations)} files", "good"))
    return str(repository)


def find_files(folder: Path) -> dict[str, Path]:
    """Return the files of a model by their names in the folder: what loading reads, its code for others, the card."""
    found = {path for pattern in (*DOWNLOADED, "modeling_*.py", CARD) for path in folder.glob(pattern)}
    return {path.relative_to(folder).as_posix(): path for path in sorted(found) if path.is_file()}


def with_statements(card: Path | None, settings: PushSettings) -> str:
    """Return the text of a card with license and languages in its metadata; the file stays as it is."""
    from huggingface_hub import ModelCard

    loaded = ModelCard.load(card) if card is not None else ModelCard("---\n{}\n---\n")
    stated = {"license": settings.license, "language": [*settings.language]}
    for name, value in stated.items():
        if value:
            setattr(loaded.data, name, value)
    return str(loaded)
