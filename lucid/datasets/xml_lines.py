"""XML files whose elements know their line."""

from pathlib import Path
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

LINE = '{}line'
"""Attribute under which an element keeps its line; no XML attribute can be called so."""


class XmlError(ValueError):
    """A file that is no XML; ``place`` is its path, with the line where it is known."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(message)
        self.place = place


def parse_xml(path: Path) -> Element:
    """Read an XML file.

    Args:
        path: The file.

    Returns:
        Its root; ``line_of`` tells the line of each element.

    Raises:
        FileNotFoundError: There is none.
        XmlError: It cannot be read, or is no XML.
    """
    builder = TreeBuilder()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = lambda tag, attributes: builder.start(
        tag, {**attributes, LINE: str(parser.CurrentLineNumber)}
    )
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(path.read_bytes(), True)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise XmlError(str(path), f'cannot be read ({error.strerror}); restore it') from error
    except expat.ExpatError as error:
        what = expat.ErrorString(error.code)
        raise XmlError(f'{path}:{error.lineno}', f'is no XML ({what}); restore it') from error
    return builder.close()


def line_of(element: Element) -> int:
    """The line in which an element of ``parse_xml`` begins, from 1."""
    return int(element.get(LINE, 0))
