"""One complete YAML = one run. Unknown keys are errors that name the nearest known one.

The `model` section is kept as plain values here, because each system declares its own config beside its torch code
(`models/<system>.py`) and this module must stay torch-free; `models.parse_model_config` validates it.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from capsnmt.errors import CapsNMTError
from capsnmt.plain_yaml import parse_yaml

LengthPenaltyType = Literal["wu", "len"]
SpanKind = Literal["placeholder", "tag", "url", "email", "number"]  # text/spans.py

Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
LanguageCode = Annotated[str, Field(min_length=2, max_length=35, pattern=r"^[A-Za-z0-9_-]+$")]

FORMAT_VERSION = 1  # of the model folder

# A model folder may come from anywhere, so what its config asks for must be possible: these are far beyond any model
# of today, and far below what fills a machine's memory by itself.
_MOST_YAML_BYTES = 1 << 18
_LARGEST_SIZE = 100_000  # of anything in a model, such as its width
_MOST_LAYERS = 1000
_LARGEST_VOCABULARY = 10_000_000


class StrictModel(BaseModel):
    """A frozen config section in which a typo is an error."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LanguagesConfig(StrictModel):
    """Language codes, kept in the config and in the model folder."""

    source: LanguageCode = Field(description="code of the source language, such as en")
    target: LanguageCode = Field(description="code of the target language, such as de")

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


def parse_language_pair(text: str) -> LanguagesConfig:
    """`en-de` → source en, target de."""
    source, _, target = text.partition("-")
    try:
        return LanguagesConfig(source=source, target=target)
    except ValidationError:
        raise CapsNMTError(f"{text!r} is not a language pair; write it as in en-de") from None


class ParallelText(StrictModel):
    """Two aligned text files, or one TSV whose first two columns are source and target. Plain, .gz or .zst."""

    source: str | None = None
    target: str | None = None
    tsv: str | None = None

    @model_validator(mode="after")
    def _either_two_files_or_a_tsv(self) -> ParallelText:
        if not self._has_its_files():
            raise ValueError("give either `source` and `target`, or `tsv`")
        return self

    def _has_its_files(self) -> bool:
        return (self.tsv is None) != (self.source is None) and (self.source is None) == (self.target is None)


class WeightedText(ParallelText):
    """One of several training corpora."""

    weight: float = Field(1.0, gt=0.0, le=1e6, description="how often its pairs come, relative to the others'")


class TrainingText(ParallelText):
    """One corpus, or several that are mixed: a corpus of n pairs gets a share of weight × n^(1 / temperature)."""

    mix: tuple[WeightedText, ...] = Field((), max_length=255, description="several corpora instead of one")
    temperature: float = Field(1.0, gt=0.0, le=1e6, description="1: by size; higher: small corpora come more often")

    @model_validator(mode="after")
    def _either_two_files_or_a_tsv(self) -> TrainingText:
        alone = (self.source, self.target, self.tsv) == (None, None, None)
        if not (alone if self.mix else self._has_its_files()):
            raise ValueError("give either `source` and `target`, or `tsv`, or several of these as `mix`")
        return self

    @property
    def corpora(self) -> tuple[ParallelText, ...]:
        """Every corpus, also a single one."""
        return self.mix or (self,)


class FilterConfig(StrictModel):
    """Training pairs that are left out, and counted, before they are encoded; the defaults leave out none."""

    max_words: int | None = Field(None, ge=1, description="most words of a side")
    max_characters: int | None = Field(None, ge=1, description="most characters of a side")
    max_ratio: float | None = Field(
        None, ge=1.0, description="words of the longer side / words of the shorter, where the longer has more than 5"
    )
    deduplicate: bool = Field(False, description="keep the first of the pairs that are the same on both sides")
    wrong_language: bool = Field(False, description="leave out sides that py3langid takes for another language")
    drop_overlap: bool = Field(False, description="leave out pairs whose source is in valid or test")


class DataConfig(StrictModel):
    """Where the text is (relative paths start at `root`) and where its prepared form goes (as written)."""

    root: str = "."
    generate: Literal["demo"] | None = Field(None, description="write this made-up corpus under root first")
    fetch: Literal["wmt14-en-de", "wmt14-en-fr"] | None = Field(
        None, description="download this corpus (with mtdata) into the files below, where they are missing"
    )
    train: TrainingText
    valid: ParallelText
    test: ParallelText | None = None
    store: str = Field(description="folder of the prepared corpus; systems that share it share their vocabulary")
    subwords_from: str | None = Field(
        None, description="folder whose subword models are used instead of new ones: what fine-tuning needs"
    )
    max_tokens: int = Field(256, ge=2, description="training pairs with a longer side are left out, and counted")
    filters: FilterConfig = FilterConfig()


class NormaliseConfig(StrictModel):
    """What `text/normalise` does; training and translating use the same settings, so they are recorded."""

    unicode: Literal["NFC", "NFKC", "none"] = "NFC"
    quotes: bool = Field(True, description="map typographic quotes and apostrophes to \" and '")
    spaces: bool = Field(True, description="fold runs of white space, trim, drop control and zero-width characters")


PieceType = Literal["bpe", "unigram", "char", "word"]
NO_SUBWORDS: dict[PieceType, str] = {"char": "characters", "word": "words"}  # pieces of other lengths, by their name


class SubwordsConfig(StrictModel):
    """SentencePiece settings."""

    type: PieceType = "bpe"
    vocabulary: int | tuple[int, int] = Field(8000, description="its size, or [source, target] with joint: false")
    joint: bool = Field(True, description="one vocabulary for both languages")
    byte_fallback: bool = Field(True, description="unknown characters become bytes (bpe and unigram only)")
    split_digits: bool = True
    character_coverage: float = Field(1.0, gt=0.9, le=1.0)
    protected_symbols: int = Field(16, ge=0, description="reserved symbols that stand for protected spans")
    dropout: float = Field(0.0, ge=0.0, lt=1.0, description="BPE-dropout: re-encode the training text each time")

    @model_validator(mode="after")
    def _every_vocabulary_has_a_size(self) -> SubwordsConfig:
        if self.joint and not isinstance(self.vocabulary, int):
            raise ValueError(f"vocabulary: {list(self.vocabulary)} has a size for each side and needs joint: false")
        if min(self.size_of("source"), self.size_of("target")) < 32:
            raise ValueError(f"vocabulary: {self.vocabulary} is too small; 32 is the least")
        return self

    def size_of(self, side: Literal["source", "target"]) -> int:
        """The size of one side's vocabulary."""
        sizes = (self.vocabulary,) * 2 if isinstance(self.vocabulary, int) else self.vocabulary
        return sizes[0 if side == "source" else 1]

    @model_validator(mode="after")
    def _only_bpe_has_merges_to_drop(self) -> SubwordsConfig:
        if self.dropout > 0.0 and self.type != "bpe":
            raise ValueError(f"dropout: {self.dropout} needs type: bpe, not {self.type}")
        return self


class TextConfig(StrictModel):
    """The whole way from a string to ids."""

    normalise: NormaliseConfig = NormaliseConfig()
    protect: tuple[SpanKind, ...] = Field(
        (), description="kinds of spans that are masked by reserved symbols, in training and in translating"
    )
    subwords: SubwordsConfig = SubwordsConfig()

    @model_validator(mode="after")
    def _protecting_needs_symbols(self) -> TextConfig:
        if self.protect and self.subwords.protected_symbols == 0:
            raise ValueError("protect needs subwords.protected_symbols > 0")
        return self


class TrainingConfig(StrictModel):
    """One training loop serves all systems; these are its settings."""

    seed: int = Field(1, ge=0, lt=2**63)
    steps: int = Field(ge=1, description="number of updates, counted from the start of the run")
    batch_tokens: int = Field(4096, ge=16, description="padded tokens per side, batch and device")
    accumulate: int = Field(
        1, ge=1, description="batches per update; several devices share them, with at least one each"
    )
    learning_rate: float = Field(gt=0.0, description="its peak, reached at the end of the warm-up")
    schedule: Literal["inverse_sqrt", "linear", "constant"] = "inverse_sqrt"
    warmup_steps: int = Field(4000, ge=1)
    adam_betas: tuple[Decay, Decay] = (0.9, 0.98)
    adam_epsilon: float = Field(1e-9, ge=0.0)
    weight_decay: float = Field(0.0, ge=0.0)
    clip_norm: float = Field(1.0, gt=0.0)
    label_smoothing: float = Field(0.1, ge=0.0, lt=1.0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    bf16_modules: tuple[str, ...] = Field((), description="parts of the model that run in bf16 autocast, or all")
    compile: bool = Field(False, description="torch.compile the model: takes minutes at the start; measure before")
    validate_every: int = Field(500, ge=1, description="updates between validations")
    validate_sentences: int = Field(500, ge=0, description="first sentences of valid that get a BLEU; 0 = loss only")
    checkpoint_every: int | None = Field(500, ge=1, description="updates between checkpoints")
    checkpoint_minutes: float | None = Field(None, gt=0.0, description="or minutes between them")
    keep_last: int = Field(5, ge=1)
    average_last: int = Field(1, ge=1, description="checkpoints averaged into the final weights; 1 = the best one")
    stop_metric: Literal["loss", "bleu"] = "loss"
    patience: int | None = Field(None, ge=1, description="validations without a better one before stopping early")
    start_from: str | None = Field(None, description="model folder to fine-tune from")
    log_every: int = Field(50, ge=1)

    @model_validator(mode="after")
    def _checkpoints_are_kept_for_averaging(self) -> TrainingConfig:
        if self.average_last > self.keep_last:
            raise ValueError(f"average_last: {self.average_last} needs keep_last >= {self.average_last}")
        if self.stop_metric == "bleu" and self.validate_sentences == 0:
            raise ValueError("stop_metric: bleu needs validate_sentences > 0")
        return self


class DecodingConfig(StrictModel):
    """Search settings; `translate` takes them as defaults."""

    beam: int = Field(8, ge=1, le=1000)
    length_penalty: float = Field(0.8, ge=0.0, le=10.0, description="the exponent alpha")
    length_penalty_type: LengthPenaltyType = "wu"
    coverage_penalty: float = Field(0.0, ge=0.0, le=10.0, description="the factor beta (gnmt); 0 turns it off")
    max_length_ratio: float = Field(2.0, gt=0.0, le=100.0, description="output tokens <= ratio * source tokens + extra")
    max_length_extra: int = Field(20, ge=1, le=10_000)
    max_source_tokens: int = Field(256, ge=8, le=100_000, description="a longer sentence is cut, and flagged")
    fit_shape: bool = Field(
        False, description="ALL CAPS and sentences without a full stop are given to the model in ordinary form"
    )


class RunConfig(StrictModel):
    """A recipe."""

    languages: LanguagesConfig
    data: DataConfig
    text: TextConfig
    model: dict[str, Any] = Field(description="`system` and its settings; see models/<system>.py")
    training: TrainingConfig
    decoding: DecodingConfig = DecodingConfig()
    output: str = Field(description="the model folder of this run")

    @model_validator(mode="after")
    def _model_names_its_system(self) -> RunConfig:
        if "system" not in self.model:
            raise ValueError("model: the key `system` is missing")
        if not isinstance(self.model["system"], str):
            raise ValueError(f"model.system: {self.model['system']!r} is not a name")
        return self

    @model_validator(mode="after")
    def _sizes_are_possible(self) -> RunConfig:
        for key, value in flatten(self.model, "model.").items():
            sizes = value if isinstance(value, list) else [value]
            most = _MOST_LAYERS if key.endswith("layers") else _LARGEST_SIZE
            if len(sizes) > _MOST_LAYERS:
                raise ValueError(f"{key}: a list of {len(sizes)}, which is more than {_MOST_LAYERS}")
            for size in sizes:
                if isinstance(size, int) and size > most:
                    raise ValueError(f"{key}: {size} is more than {most}, the most that any model may have")
        return self


class VocabularyRecord(StrictModel):
    """Written into the model folder, so that models that share a vocabulary can be told from those that do not."""

    source_size: int = Field(ge=1, le=_LARGEST_VOCABULARY)
    target_size: int = Field(ge=1, le=_LARGEST_VOCABULARY)
    fingerprint: str


class FolderConfig(RunConfig):
    """`config.yaml` of a model folder: the recipe as it ran, the format and the vocabulary."""

    format_version: int = Field(ge=1, strict=True)
    vocabulary: VocabularyRecord


Section = TypeVar("Section", bound=BaseModel)


def parse(section: type[Section], values: Any, where: str) -> Section:
    """Validates `values`, or raises one error that names key, value and fix for each fault."""
    if not isinstance(values, dict):
        raise CapsNMTError(f"{where}: expected a mapping of settings, got {type(values).__name__}")
    try:
        return section.model_validate(values)
    except ValidationError as error:
        faults = "\n".join(f"  {_explain(section, fault)}" for fault in error.errors())
        raise CapsNMTError(f"{where}:\n{faults}") from None


def load_yaml(path: str | Path) -> Any:
    """Reads one YAML file of plain values; nothing in it can run, and what it asks for is bounded by its size."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_YAML_BYTES + 1)
    except OSError as error:
        raise CapsNMTError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > _MOST_YAML_BYTES:
        raise CapsNMTError(f"{path} has more than {_MOST_YAML_BYTES} bytes: this is no file of settings")
    try:
        return parse_yaml(content.decode("utf-8"))
    except ValueError as error:
        raise CapsNMTError(f"{path} is not valid YAML: {error}") from None


def load_recipe(path: str | Path, overrides: list[str] | None = None) -> RunConfig:
    """Reads a recipe; each override is `dotted.key=value` with the value in YAML."""
    values = load_yaml(path)
    if isinstance(values, dict):
        for override in overrides or []:
            _apply_override(values, override)
    return parse(RunConfig, values, str(path))


def dump_yaml(config: BaseModel, path: str | Path) -> None:
    """Writes a config so that `load_recipe` or `parse` read it back."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    Path(path).write_text(text, encoding="utf-8")


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a.b": 1}: what error messages and comparisons of settings speak of."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def changed_settings(old: dict[str, Any], new: dict[str, Any], *, free: set[str]) -> list[str]:
    """A line for every setting that differs, but for those that may, by their dotted keys."""
    old_values, new_values = flatten(old), flatten(new)
    return [
        f"  {key}: {old_values.get(key)!r} -> {new_values.get(key)!r}"
        for key in sorted(old_values.keys() | new_values.keys())
        if old_values.get(key) != new_values.get(key) and key not in free
    ]


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals:
        raise CapsNMTError(f"--set {override}: expected key=value, for example training.steps=1000")
    *sections, last = key.strip().split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise CapsNMTError(f"--set {override}: {section} is not a section")
    try:
        values[last] = parse_yaml(text)
    except ValueError as error:
        raise CapsNMTError(f"--set {override}: the value is not valid YAML ({error})") from None


def _explain(section: type[BaseModel], fault: Any) -> str:
    """One line for one of pydantic's faults."""
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        known = _keys_of(section, fault["loc"][:-1])
        near = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(known)}"
        return f"{key}: unknown key; {hint}"
    if fault["type"] == "missing":
        return f"{key}: required key is missing"
    shown = "" if isinstance(fault["input"], dict) else f" (got {fault['input']!r})"
    text = f"{fault['msg'].removeprefix('Value error, ')}{shown}"
    return f"{key}: {text}" if key else text  # a fault of the whole names its keys itself


def _keys_of(section: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    for part in location:
        if isinstance(part, int):  # a place in a list of sections
            continue
        field = section.model_fields.get(str(part))
        kinds = [] if field is None else [field.annotation, *getattr(field.annotation, "__args__", ())]
        nested = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not nested:
            return []
        section = nested[0]
    return list(section.model_fields)
