"""What an operator may change, with defaults that are safe on a machine others can reach."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from capsnmt.errors import CapsNMTError


@dataclass(frozen=True)
class Limits:
    """What one client may ask for, and how much may be under way at a time."""

    characters: int = 10_000  # of all texts of a request together
    items: int = 100  # texts of a request
    lines: int = 20_000  # of all texts of a request, or of a file
    alternatives: int = 5
    body_bytes: int = 1 << 20
    file_bytes: int = 512 << 10
    deadline_s: float = 30.0  # from a request's arrival to its answer
    file_deadline_s: float = 300.0
    body_s: float = 20.0  # for a request's headers, and again for its body
    requests: int = 512  # under way at a time, whatever they ask for
    waiting_requests: int = 256  # that wait for the model
    waiting_characters: int = 2_000_000
    requests_per_minute: int = 0  # of a client without a key, by its address; 0: no limit
    downloads_bytes: int = 64 << 20  # of translated files that wait to be fetched, all together
    downloads_s: float = 20 * 60.0
    html_depth: int = 256  # elements within elements

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name in ("alternatives", "requests_per_minute") else 1
            if value < least and not (name.endswith("_s") and value > 0):
                raise CapsNMTError(f"{name} {value} must be {least} or more")


@dataclass(frozen=True)
class Batching:
    """How the lines of different clients are put together."""

    lines: int = 32  # in a batch; 1 turns batching off. More make no line cheaper, and each waits for all
    characters: int = 3_000  # in a batch, so that none holds up the next for long
    wait_s: float = 0.003  # for company, when a line comes to an idle model

    def __post_init__(self) -> None:
        if self.lines < 1 or self.characters < 1 or self.wait_s < 0:
            raise CapsNMTError(f"{self}: lines and characters must be 1 or more, the wait 0 or more")


@dataclass(frozen=True)
class ServeSettings:
    """One server."""

    models: tuple[str | Path | None, ...] = (None,)  # folders, or names of models that ship; None: the usual one
    host: str = "127.0.0.1"
    port: int = 5000
    limits: Limits = Limits()
    batching: Batching = Batching()
    allowed_hosts: tuple[str, ...] = ()  # names besides localhost and addresses; "*": all
    keys: Path | None = None
    key_required: bool = False
    key_url: str | None = None  # where users get a key
    metrics_token: str | None = None
    public_url: str | None = None  # what clients call this server, where a proxy stands before it
    threads: int | None = None  # of the model; None: one per core
    grace_s: float = 8.0  # for what is under way when the server is told to stop
    access_log: bool = True

    def __post_init__(self) -> None:
        if not self.models:
            raise CapsNMTError("serve needs a model folder")
        if self.grace_s < 0:
            raise CapsNMTError(f"grace_s {self.grace_s} must be 0 or more")
        if self.key_required and self.keys is None:
            raise CapsNMTError("--require-key needs --keys FILE; make a key with --new-key NAME")
