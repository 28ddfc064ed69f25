"""Format "johannsson-xml": Johannsson's XML, read as a stream.

    <MDP domain=.. author=..>
      <Description>..</Description>  <Actions> <Action id=.. description=../> .. </Actions>   (both optional)
      <States>
        <State id="0">
          <AvailableActions>
            <Action id="0"> <ResultingState id="1" probability="1" actionReward="0"/> .. </Action> ..
          </AvailableActions>
        </State> ..
      </States>
    </MDP>

    V(s) = opt_a sum_s' p(s'|s,a) [ r(s,a,s') + gamma V(s') ],    V(s) = 0 where no action is available.

States are numbered 0, 1, 2, ... in the order of the file; action ids are kept as labels. The XML has no
initial values (the text form has). An element or attribute that the format does not define is an error, not
ignored; so is any document type declaration or entity, before it is expanded.
Source: Johannsson, "GPU-Based Markov Decision Process Solver", M.Sc. thesis, Reykjavik University, 2009,
appendix A.1.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from typing import Any
from xml.sax import SAXException, SAXParseException
from xml.sax.handler import ContentHandler, property_lexical_handler

import numpy as np
from defusedxml.common import DefusedXmlException
from defusedxml.sax import make_parser

from ooc_mdp.errors import InputError
from ooc_mdp.io.annotations import SourceAnnotations
from ooc_mdp.io.checked_rows import check_block
from ooc_mdp.io.compressed import Decompressed
from ooc_mdp.io.left_out import ACTION_NAMES, LeftOut
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.source import BlockReader, ReadOptions, Source
from ooc_mdp.io.text.errors import Field, number_error
from ooc_mdp.io.text.numbers import nearest_double
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.quoting import printable, quote, shorten

__all__ = ["JOHANNSSON_XML", "JohannssonXmlFormat"]

_PIECE = 1 << 16
_LONGEST_TAG = 1 << 20
"""Bytes without a tag or text after which a file is an error, which bounds the parser's buffer."""
_INSIDE: dict[str, tuple[str, ...]] = {
    "": ("MDP",),
    "MDP": ("Description", "Actions", "States"),
    "Actions": ("Action",),
    "States": ("State",),
    "State": ("AvailableActions",),
    "AvailableActions": ("Action",),
    "Action": ("ResultingState",),
}
_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "States": (),
    "AvailableActions": (),
    "State": ("id",),
    "Action": ("id",),
    "ResultingState": ("id", "probability", "actionReward"),
}
_ROOT = ("domain", "author")
_ID = Field("id", True)
_FIELDS = {"probability": Field("probability", False), "actionReward": Field("actionReward", False)}
_FREE_TEXT = "Description"
_LIST_OF_NAMES = ["MDP", "Actions", "Action"]
"""The descriptions of actions, whose attributes are not checked and not kept."""


class _RowBuilder:
    """Rows of consecutive states as they are parsed, with their lines."""

    def __init__(self, first_state: int) -> None:
        self.first_state = first_state
        self.action_ptr = array("q", [0])
        self.successor_ptr = array("q", [0])
        self.successors = array("q")
        self.probabilities = array("d")
        self.rewards = array("d")
        self.labels = array("q")
        self.row_positions = array("q")
        self.transition_positions = array("q")

    def raw(self) -> RawRows:
        return RawRows(
            action_ptr=_integers(self.action_ptr),
            successor_ptr=_integers(self.successor_ptr),
            successors=_integers(self.successors),
            probabilities=_floats(self.probabilities),
            transition_rewards=_floats(self.rewards),
            action_labels=_integers(self.labels),
            row_positions=_integers(self.row_positions),
            transition_positions=_integers(self.transition_positions),
        )


def _integers(values: array[int]) -> IntArray:
    return np.array(values, np.int64)


def _floats(values: array[float]) -> FloatArray:
    return np.array(values, np.float64)


class _Handler(ContentHandler):
    """Builds rows from SAX events; what the format does not define is an error at its line."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self.action_names: set[str] = set()
        """What the list of actions says of them besides their ids."""
        self._stack: list[str] = []
        self._seen: set[str] = set()
        self.events = 0
        self.cut_due = False
        """Whether the next state that ends also ends a block."""
        self.blocks: list[_RowBuilder] = []
        """Complete blocks, which the feeder of the parser removes."""
        self.doctype_line: int | None = None
        self.rows = _RowBuilder(0)
        self.n_states = 0
        self.largest: tuple[int, int] = (-1, 0)
        """The largest successor and its line."""

    def setDocumentLocator(self, locator: Any) -> None:
        """Keep the object that knows the current line."""
        self._locator = locator

    def line(self) -> int:
        return int(self._locator.getLineNumber())

    def error(self, message: str) -> InputError:
        return InputError(self._path, message, self.line())

    def cut(self) -> None:
        """End the block with the states that are complete."""
        self.blocks.append(self.rows)
        self.rows = _RowBuilder(self.n_states)
        self.cut_due = False

    # Document type declarations: a lexical handler's methods, which SAX calls by these names.

    def startDTD(self, name: str, public_id: str | None, system_id: str | None) -> None:
        """Keep the line of a declaration; its first entity, or else its end, raises the error."""
        self.doctype_line = self.line()

    def endDTD(self) -> None:
        """Raise the error of a declaration without entities."""
        raise InputError(self._path, _DOCTYPE, self.doctype_line)

    def comment(self, content: str) -> None:
        """Count a comment as progress."""
        self.events += 1

    def startCDATA(self) -> None:
        """Do nothing."""

    def endCDATA(self) -> None:
        """Do nothing."""

    # Elements.

    def startElement(self, name: str, attributes: Any) -> None:
        """Open an element."""
        self.events += 1
        parent = self._stack[-1] if self._stack else ""
        if name not in _INSIDE.get(parent, ()) or (name == "ResultingState" and self._in_names()):
            self._raise_misplaced(name, parent)
        if name in ("States", "AvailableActions"):
            if name in self._seen:
                raise self.error(f"a second <{name}> in one <{parent}>; put everything into the first")
            self._seen.add(name)
        self._stack.append(name)
        if self._in_names():
            self.action_names.update(attributes[each] for each in attributes.getNames() if each != "id")
            return
        if name == "MDP" and not set(attributes.getNames()) <= set(_ROOT):
            raise self.error(
                f"<MDP> has the attributes {', '.join(attributes.getNames())}; it may have {' and '.join(_ROOT)}"
            )
        if name in _ATTRIBUTES:
            self._check_attributes(name, attributes)
        if name == "State":
            self._open_state(self._number("State", _ID, attributes["id"]))
        elif name == "Action":
            self._open_action(self._number("Action", _ID, attributes["id"]))
        elif name == "ResultingState":
            self._add_transition(attributes)

    def endElement(self, name: str) -> None:
        """Close an element."""
        self.events += 1
        named = self._in_names()
        self._stack.pop()
        if name == "State":
            self.rows.action_ptr.append(len(self.rows.labels))
            if self.cut_due:
                self.cut()
            self._seen.discard("AvailableActions")
        elif name == "Action" and not named:
            self.rows.successor_ptr.append(len(self.rows.successors))

    def characters(self, content: str) -> None:
        """Check that text is inside a description."""
        self.events += 1
        if self._stack[-1] != _FREE_TEXT and not content.isspace():
            shown = quote(content.strip())
            raise self.error(f"text {shown} inside <{self._stack[-1]}>; only <Description> holds text")

    def _in_names(self) -> bool:
        return self._stack[:3] == _LIST_OF_NAMES

    def _raise_misplaced(self, name: str, parent: str) -> None:
        if not parent:
            raise self.error(f"the root element is {_tag(name)}; Johannsson's XML has <MDP>")
        allowed = ", ".join(f"<{child}>" for child in _INSIDE.get(parent, ())) or "nothing"
        raise self.error(f"{_tag(name)} inside <{parent}>; only {allowed} may stand there")

    def _check_attributes(self, name: str, attributes: Any) -> None:
        wanted = _ATTRIBUTES[name]
        for attribute in wanted:
            if attribute not in attributes:
                raise self.error(f"<{name}> without {attribute}; it has {', '.join(wanted)}")
        for attribute in attributes.getNames():
            if attribute not in wanted:
                due = ", ".join(wanted) or "none"
                raise self.error(f"<{name}> has an attribute {quote(attribute)}; it has {due} only")

    def _number(self, name: str, field: Field, text: str) -> int:
        error = number_error(text, field)
        if error is not None:
            raise self.error(f"<{name}>: {error}")
        number = int(text)
        if number < 0 and name != "ResultingState":
            raise self.error(f"<{name}>: id {number} is negative; ids count from 0")
        return number

    def _open_state(self, state: int) -> None:
        if state != self.n_states:
            what = "is there already" if state < self.n_states else f"comes before state {self.n_states}"
            raise self.error(f"state {state} {what}; states are numbered 0, 1, 2, ... in the order of the file")
        self.n_states += 1

    def _open_action(self, action: int) -> None:
        self.rows.labels.append(action)
        self.rows.row_positions.append(self.line())

    def _add_transition(self, attributes: Any) -> None:
        successor = self._number("ResultingState", _ID, attributes["id"])
        for name, field in _FIELDS.items():
            error = number_error(attributes[name], field)
            if error is not None:
                raise self.error(f"<ResultingState>: {error}")
        line = self.line()
        if successor > self.largest[0]:
            self.largest = (successor, line)
        self.rows.successors.append(successor)
        self.rows.probabilities.append(nearest_double(attributes["probability"]))
        self.rows.rewards.append(nearest_double(attributes["actionReward"]))
        self.rows.transition_positions.append(line)


def _tag(name: str) -> str:
    return f"<{shorten(printable(name))}>"


_DOCTYPE = "has a document type declaration; remove it: nothing is expanded and no other file is read"
_ENTITY = (
    "declares an entity or refers to another file; remove the document type declaration: nothing is expanded "
    "and no other file is read"
)


def _events(path: str, handler: _Handler, segment_bytes: int = _PIECE) -> Generator[int, None, None]:
    """Feed a file to a parser in pieces; yield the size of each piece."""
    parser = make_parser()
    parser.forbid_entities = True
    parser.forbid_external = True
    parser.setContentHandler(handler)
    handler.setDocumentLocator(parser)
    parser.setProperty(property_lexical_handler, handler)
    quiet = 0
    events = 0
    try:
        with Decompressed(path) as file:
            while piece := file.read(min(_PIECE, segment_bytes)):
                parser.feed(piece)
                if handler.doctype_line is not None:
                    raise InputError(path, _DOCTYPE, handler.doctype_line)
                quiet = quiet + len(piece) if handler.events == events else 0
                events = handler.events
                if quiet > _LONGEST_TAG:
                    raise handler.error(f"no tag in more than {_LONGEST_TAG} bytes; this is no model")
                yield len(piece)
            end = parser.getLineNumber()
            parser.close()
        if handler.n_states == 0:
            raise InputError(path, "has no state; a model has at least one", end)
    except DefusedXmlException:
        raise InputError(path, _ENTITY, parser.getLineNumber()) from None
    except SAXParseException as error:
        raise InputError(path, f"not well-formed XML: {error.getMessage()}", error.getLineNumber()) from None
    except (SAXException, UnicodeError, LookupError) as error:
        why = shorten(printable(str(error)), 200)
        raise InputError(path, f"cannot be read as XML: {why}", parser.getLineNumber()) from None


class _XmlSource:
    """An open XML model; its number of states is known once the whole file was parsed."""

    format = "johannsson-xml"

    def __init__(self, path: str, options: ReadOptions) -> None:
        self.path = path
        self.n_states: int | None = None
        self.left_out = LeftOut()
        self.annotations = SourceAnnotations()
        self._options = options
        self._handler = _Handler(path)

    def blocks(self) -> Iterator[BlockReader]:
        """Readers of blocks of about options.segment_bytes of text, which is parsed here; rows are checked there."""
        handler = self._handler = _Handler(self.path)
        fed = 0
        for piece in _events(self.path, handler, self._options.segment_bytes):
            fed += piece
            if fed >= self._options.segment_bytes:
                handler.cut_due = True
                fed = 0
            while handler.blocks:
                yield self._block_reader(handler.blocks.pop(0))
        if handler.action_names:
            self.left_out.add(ACTION_NAMES, handler.action_names)
        if handler.rows.first_state < handler.n_states:
            handler.cut()
        while handler.blocks:
            yield self._block_reader(handler.blocks.pop(0))

    def _block_reader(self, rows: _RowBuilder) -> BlockReader:
        return partial(
            check_block,
            self.path,
            rows.first_state,
            rows.raw(),
            n_states=None,
            normalize=self._options.normalize,
        )

    def check_totals(self) -> None:
        """Compare the largest successor with the number of states; raises InputError."""
        n_states = self._handler.n_states
        successor, line = self._handler.largest
        if successor >= n_states:
            raise InputError(
                self.path,
                f"successor {successor} does not exist: the {n_states} states are 0..{n_states - 1}",
                line,
            )
        self.n_states = n_states

    def close(self) -> None:
        """Do nothing: no file stays open between blocks."""


class JohannssonXmlFormat:
    """Format "johannsson-xml": the XML form of Johannsson's thesis."""

    name = "johannsson-xml"
    description = "Johannsson's XML: MDP > States > State > AvailableActions > Action > ResultingState"
    reward_options: tuple[str, ...] = ()

    def detect(self, source: str, head: bytes) -> bool:
        """Whether the text begins as XML does."""
        return head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith((b"<?xml", b"<!DOCTYPE", b"<!--", b"<MDP"))

    def open(self, source: str, options: ReadOptions) -> Source:
        """Read up to the first state; raises InputError for another root element or a document type."""
        handler = _Handler(source)
        with closing(_events(source, handler)) as events:
            while handler.n_states == 0:
                next(events)
        return _XmlSource(source, options)


JOHANNSSON_XML = JohannssonXmlFormat()
