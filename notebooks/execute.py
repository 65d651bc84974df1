"""Executes the notebooks, and stores their outputs in them: python notebooks/execute.py.

Data are read from the folder that SIFTBACK_DATA names. What was executed is noted in a notebook's
metadata, with the seconds of a processor that it took, so that a test finds outputs of other code.
"""

import argparse
import base64
import hashlib
import io
import resource
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).parent
KEPT = {"tags"}  # of a cell's metadata; the rest says when and where it ran


def digest(notebook: nbformat.NotebookNode) -> str:
    """Returns a digest of the code cells."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()[:16]


def smaller(png: str) -> str:
    """Returns a picture of 128 colours, in base64; it takes a third of the bytes."""
    picture, file = Image.open(io.BytesIO(base64.b64decode(png))), io.BytesIO()
    picture.convert("RGB").quantize(128).save(file, "png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def execute(path: Path) -> float:
    """Executes a notebook, stores its outputs, and returns the seconds of a processor."""
    notebook = nbformat.read(path, as_version=4)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    NotebookClient(notebook, timeout=1200, kernel_name="python3").execute(cwd=str(FOLDER))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    for cell in notebook.cells:
        cell.metadata = {name: cell.metadata[name] for name in KEPT if name in cell.metadata}
        for output in cell.get("outputs", []):
            if png := output.get("data", {}).get("image/png"):
                output.data["image/png"] = smaller(png)
    notebook.metadata = {name: notebook.metadata[name] for name in ("kernelspec", "language_info")}
    notebook.metadata["language_info"] = {"name": "python"}  # without the version at hand
    notebook.metadata["executed"] = {"code": digest(notebook), "seconds": round(seconds)}
    nbformat.write(notebook, path)
    return seconds


def main() -> None:
    """Executes those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="such as does_selection_pay; all by default")
    names = parser.parse_args().names or sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    for name in names:
        print(f"{name}: {execute(FOLDER / f'{name}.ipynb'):.0f} seconds", flush=True)


if __name__ == "__main__":
    main()
