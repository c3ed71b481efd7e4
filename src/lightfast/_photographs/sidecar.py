"""White balance of a raw file as an XMP sidecar: programs that develop it then change nothing but the white balance."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from io import BytesIO
from pathlib import Path

from lightfast._atomic import write_whole
from lightfast._photographs.photo import PhotoError

__all__ = ["sidecar_path", "write_sidecar"]

_RDF, _CRS, _META = (
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "http://ns.adobe.com/camera-raw-settings/1.0/",
    "adobe:ns:meta/",
)
# What programs that read sidecars have sliders for.
_KELVIN, _TINT = (2000, 50000), (-150, 150)


def sidecar_path(source: Path) -> Path:
    """Where programs look for the sidecar of a raw file.

    >>> sidecar_path(Path("holiday/one.NEF")).name
    'one.xmp'
    """
    return source.with_suffix(".xmp")


def write_sidecar(path: Path, temperature: float, tint: float) -> None:
    """Write `crs:WhiteBalance`, `crs:Temperature` and `crs:Tint`, the whole file or nothing.

    A sidecar that is there keeps everything else that it says.

    Raises:
        PhotoError: what is there is no XMP, or nothing can be written.
    """
    settings = {
        "WhiteBalance": "Custom",
        "Temperature": f"{min(max(round(temperature), _KELVIN[0]), _KELVIN[1])}",
        "Tint": f"{min(max(round(tint), _TINT[0]), _TINT[1]):+d}",
    }
    try:
        tree = _read(path.read_bytes() if path.exists() else None)
        description = tree.find(f".//{{{_RDF}}}Description")
        if description is None:
            raise PhotoError(f"{path} says nothing in the way of XMP: move it away, and try again")
        for name, value in settings.items():
            for old in description.findall(f"{{{_CRS}}}{name}"):
                description.remove(old)
            description.set(f"{{{_CRS}}}{name}", value)
        write_whole(path, ET.tostring(tree, encoding="utf-8") + b"\n")
    except ET.ParseError as error:
        raise PhotoError(f"{path} is no XMP file ({error}): move it away, and try again") from error
    except OSError as error:
        raise PhotoError(f"{path} cannot be written ({error.strerror})") from error


def _read(content: bytes | None) -> ET.Element:
    """The XMP of a sidecar, with the prefixes that it has; an empty one for none."""
    for prefix, name in (("x", _META), ("rdf", _RDF), ("crs", _CRS)):
        ET.register_namespace(prefix, name)
    if content is None:
        tree = ET.Element(f"{{{_META}}}xmpmeta")
        description = ET.SubElement(ET.SubElement(tree, f"{{{_RDF}}}RDF"), f"{{{_RDF}}}Description")
        description.set(f"{{{_RDF}}}about", "")
        return tree
    for _, (prefix, name) in ET.iterparse(BytesIO(content), ["start-ns"]):
        if not prefix.startswith("ns"):
            ET.register_namespace(prefix, name)
    return ET.fromstring(content, ET.XMLParser(target=ET.TreeBuilder(insert_comments=True)))
