"""Make the files of `models/` again: `python tools/export_models.py [NAME...]`.

Each model is built with random weights, exported, stripped of them and written; `expected.json`
takes what torch says of it, and the table of `models/README.md` follows.
"""

import argparse
import json
import logging
from collections.abc import Iterable
from pathlib import Path

import torch
from catalog import RECIPES
from exporting import export
from figures import torch_figures
from model_table import update_table
from recipe import Recipe
from stripping import drop_annotations, strip_weights

MODELS = Path(__file__).resolve().parent.parent / "models"


def write_model(recipe: Recipe, folder: Path) -> Path:
    """The path of the model file of `recipe`, just written."""
    model = export(recipe)
    drop_annotations(model)
    strip_weights(model, f"{recipe.name}.weights")
    path = folder / f"{recipe.name}.onnx"
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def write_expected(recipes: Iterable[Recipe], folder: Path) -> Path:
    """The path of `expected.json`, in which the rows of `recipes` are new."""
    path = folder / "expected.json"
    rows = json.loads(path.read_text()) if path.exists() else {}
    rows |= {f"{recipe.name}.onnx": torch_figures(recipe) for recipe in recipes}
    path.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
    return path


def main() -> None:
    """Write the models named on the command line, or all of them."""
    names = [recipe.name for recipe in RECIPES]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: every model")
    parser.add_argument("--out", type=Path, default=MODELS, help="folder to write to")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    logging.disable(logging.WARNING)  # of torchvision's absence, of calibration data
    torch.set_num_threads(1)  # sums in one order: the same file each time
    chosen = [recipe for recipe in RECIPES if recipe.name in (arguments.names or names)]
    for recipe in chosen:
        path = write_model(recipe, arguments.out)
        print(f"Wrote {path} ({path.stat().st_size:,} bytes)")
    print(f"Wrote {write_expected(chosen, arguments.out)}")
    readme = arguments.out / "README.md"
    if readme.exists():
        update_table(readme, RECIPES)
        print(f"Wrote {readme}")


if __name__ == "__main__":
    main()
