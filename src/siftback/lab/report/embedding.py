"""Contents that a page carries within itself, so that it needs no other file."""

import base64
import gzip
import io
from dataclasses import asdict
from importlib.resources import files

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.tables import as_csv

# Of one file, compressed: above this many bytes a browser may refuse to save what a page carries.
CARRIED_MOST = 1_500_000
_THUMBNAIL = 96  # pixels, the longer side


def data_link(content: bytes, kind: str) -> str:
    """Writes content as an address that carries it.

    >>> data_link(b"a,b", "text/csv")
    'data:text/csv;base64,YSxi'
    """
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def compressed_link(content: bytes) -> str:
    """Writes content as an address that carries it compressed, the same for the same content."""
    return data_link(gzip.compress(content, mtime=0), "application/gzip")


def picture_link(image: NDArray[np.uint8]) -> str:
    """Writes an image, uint8 [H, W, C], as the address of a PNG of at most 96 pixels a side."""
    picture = Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image)
    picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, "png", optimize=True)
    return data_link(file.getvalue(), "image/png")


def evaluations_csv(comparison: Comparison) -> str:
    """Writes each evaluation of a comparison as a line, with the run's configuration and seed."""
    lines: list[dict[str, object]] = []
    for run in comparison.runs:
        for evaluation in comparison.evaluations(run):
            line: dict[str, object] = {
                "configuration": run.label,
                "seed": run.seed,
                "data": run.data,
                "model": run.model,
            }
            line |= asdict(evaluation)
            phases = line.pop("phases")
            assert isinstance(phases, dict)
            lines.append(line | {f"seconds_{phase}": spent for phase, spent in phases.items()})
    return as_csv(lines)


def read_template() -> Environment:
    """Reads the page's template, which escapes whatever records say."""
    return Environment(
        loader=PackageLoader(__package__, "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def read_script(package: str, *path: str) -> Markup:
    """Reads a script or style sheet of an installed package, as it may stand within its element."""
    text = files(package).joinpath(*path).read_text(encoding="utf-8")
    return Markup(text.replace("</script", "<\\/script"))
