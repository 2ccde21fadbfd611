"""``moiety run FILE --seed 0,1,2``: a file run with several seeds, each in a folder of its own."""

from __future__ import annotations

from pathlib import Path

from moiety.cli.compare import read_groups, show_groups
from moiety.cli.folders import folder_for, holds_run, run_name
from moiety.cli.output import say
from moiety.cli.report import report_end
from moiety.cli.request import Request
from moiety.cli.run import OnFolder, run_target
from moiety.errors import must
from moiety.experiments.config import read_file
from moiety.experiments.registry import list_recipes
from moiety.seals import CONFIG, PIPELINE


def run_seeds(request: Request, on_folder: OnFolder) -> None:
    """Run the file once for each seed, in folders seed-0, seed-1, ..., and print means and intervals over seeds."""
    numbers = ",".join(map(str, request.several))
    if not request.target.endswith(".toml") and request.target in list_recipes():
        hint = "As in --seed 0 --seeds 3."
        must(False, "--seed", f"one number for the recipe {request.target}, the first of its seeds", numbers, hint)
    path = Path(request.target)
    staged = "stage" in read_file(path)
    folder = folder_for(run_name(path), request.out, resume=request.resume)
    single = any((folder / name).is_file() for name in (CONFIG, PIPELINE))
    must(not single, "out", "a folder with a run for each seed", f"{folder}, a single run")
    on_folder(folder)
    places = [folder / f"seed-{seed}" for seed in request.several]
    for seed, place in zip(request.several, places, strict=True):
        begun = request.resume and holds_run(place)
        one = request._replace(seed=seed, several=(), out=place, resume=begun)
        run_target(one, on_folder=lambda folder: None)
    if not (request.quiet or staged):
        say()
        show_groups(read_groups(places))
        say()
    report_end(folder, quiet=request.quiet)
    say(f"results in {folder}")
