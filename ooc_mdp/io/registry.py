"""The formats that models are read from, and `open_source`, which opens a source in one of them.

`FORMATS` is in the order in which formats are tried on a source: those with magic bytes before those that examine
text, the most general last. Readers are imported when FORMATS is first used, so that this package is imported quickly.
"""

from __future__ import annotations

import difflib
import os
from importlib import import_module
from typing import TYPE_CHECKING

from ooc_mdp.errors import InputError, OptionsError
from ooc_mdp.io.source import BlockReader, Format, ReadOptions, Source
from ooc_mdp.quoting import listed, quote

__all__ = ["FORMATS", "FORMAT_NAMES", "BlockReader", "Format", "ReadOptions", "Source", "open_source"]

if TYPE_CHECKING:
    FORMATS: tuple[Format, ...]

_READERS = {
    "gymnasium": ("gymnasium", "GYMNASIUM"),
    "umb": ("umb.reader", "UMB"),
    "arrays": ("arrays.npz", "ARRAYS"),
    "mdptoolbox": ("arrays.mdptoolbox", "MDPTOOLBOX"),
    "quantecon": ("arrays.quantecon", "QUANTECON"),
    "johannsson-xml": ("johannsson.xml", "JOHANNSSON_XML"),
    "drn": ("storm.drn", "DRN"),
    "johannsson": ("johannsson.text", "JOHANNSSON"),
    "prism": ("prism.transitions", "PRISM"),
    "transition-list": ("transition_list", "TRANSITION_LIST"),
}
"""Module and instance of each format, by its name. To add one, see `ooc_mdp.io.source`."""
FORMAT_NAMES = tuple(_READERS)
"""In the order of FORMATS."""
_NEVER_COMPRESSED = ("gymnasium", "arrays", "mdptoolbox", "quantecon")
"""Formats that the contents of a file compressed with gzip, xz or bzip2 are not examined for."""
_HEAD = 4096


def __getattr__(name: str) -> tuple[Format, ...]:
    if name != "FORMATS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    formats = tuple(getattr(import_module(f"ooc_mdp.io.{module}"), own) for module, own in _READERS.values())
    globals()["FORMATS"] = formats
    return formats


def _formats() -> tuple[Format, ...]:
    return globals().get("FORMATS") or __getattr__("FORMATS")


def _named(name: str) -> Format:
    if name in FORMAT_NAMES:
        return _formats()[FORMAT_NAMES.index(name)]
    close = difflib.get_close_matches(name, FORMAT_NAMES, n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    raise OptionsError(f"unknown format {quote(name)}{meant}; the formats are {', '.join(FORMAT_NAMES)}")


def _detected(source: str) -> Format:
    """The format that a source is detected to have; raises InputError for an empty, special or unknown file."""
    head, compressed = b"", None
    if not (source.startswith("gymnasium:") or os.path.isdir(source)):
        head, compressed = _head(source)
    from ooc_mdp.io.compressed import plain_name

    name = source if compressed is None else plain_name(source)
    for known in _formats():
        if (compressed is None or known.name not in _NEVER_COMPRESSED) and known.detect(name, head):
            return known
    from ooc_mdp.io.unrecognised import diagnose

    raise diagnose(source, head, [known.name for known in _formats()], compressed)


def _head(source: str) -> tuple[bytes, str | None]:
    """The first bytes of a file, decompressed, and the program that compressed it; raises InputError if it is empty."""
    from ooc_mdp.io.compressed import Decompressed

    head = b""
    with Decompressed(source) as file:
        while len(head) < _HEAD and (piece := file.read(_HEAD - len(head))):
            head += piece
        if not head:
            raise InputError(source, "the file is empty; write the model to it again", 1)
        return head, file.kind


def open_source(source: str, format: str | None, options: ReadOptions) -> Source:
    """Open a model in a named format, or in the format detected from its contents.

    Parameters
    ----------
    source : a file, a folder (format "mdptoolbox"), or "gymnasium:ENV-ID".
    format : the name of one of FORMATS; None to detect it.
    options : the user's options for the source.

    Raises
    ------
    InputError : the source is missing, empty, not a regular file, of no known format, or not what its format
        promises.
    OptionsError : there is no format of that name, or an option does not apply to the format.
    """
    chosen = _detected(source) if format is None else _named(format)
    if format is not None and chosen.name != "gymnasium" and not os.path.isdir(source):
        _head(source)
    if options.rewards is not None and "rewards" not in chosen.reward_options:
        raise OptionsError(f"{source}: format {chosen.name} holds its own rewards; leave out --rewards")
    if options.named_rewards and "named_rewards" not in chosen.reward_options:
        names = listed([name for name, _ in options.named_rewards])
        raise OptionsError(f"{source}: format {chosen.name} has no reward files with names ({names}); leave them out")
    if options.reward_model is not None and "reward_model" not in chosen.reward_options:
        raise OptionsError(f"{source}: format {chosen.name} has no named rewards; leave out --reward-model")
    return chosen.open(source, options)
