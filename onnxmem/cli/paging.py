"""The HTML page that is written beside a result: of one model its own, of several one of all."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onnxmem.analysis.json_rows import Row
from onnxmem.cli.output import check_output, write_file
from onnxmem.collection.task import Outcome, Render
from onnxmem.errors import UsageError, shortened

if TYPE_CHECKING:
    from onnxmem.collection.summary import Accuracies, Summary, Target


@dataclass(slots=True)
class Pages:
    """Mutable: what a page needs of the models so far; nothing where none is asked for."""

    path: str | None
    is_of_one: bool
    accuracies: "Accuracies | None" = None
    _page: str | None = field(default=None, init=False)
    _rows: list[Row] = field(default_factory=list, init=False)

    @property
    def render(self) -> Render | None:
        """What a worker makes of a model."""
        if self.path is None or not self.is_of_one:
            return None
        from onnxmem.report.page.model_page import render_page

        return render_page

    def keep(self, outcome: Outcome) -> None:
        """Keep the part of the page that an outcome has."""
        if self.path is not None:
            self._page = outcome["page"]
            # One page cannot show the nodes of thousands of models.
            self._rows.append({**outcome["row"], "layers": None})

    def write(
        self, summary: "Callable[[], Summary]", places: "Sequence[Target]", *, quiet: bool
    ) -> None:
        """Write the page; of a model that failed there is one that says why.

        :raises UsageError: the place cannot be written to.
        """
        if self.path is None:
            return
        page = self._page
        if page is None:
            from onnxmem.report.page.registry_page import render_registry_page

            page = render_registry_page(self._rows, summary, places, self.accuracies)
        write_file(page, self.path, quiet=quiet)


def pages(arguments: Namespace, names: Sequence[str]) -> Pages:
    """What ``--html`` asks for.

    :raises UsageError: the file is asked for twice, exists or is a model; a table cannot be read.
    """
    path: str | None = arguments.html
    check_output(path, names, force=arguments.force)
    if path is not None and path == arguments.output:
        message = f"{shortened(path)}: is asked for twice; name another file with -o"
        raise UsageError(message)
    if arguments.accuracy is not None and path is None:
        message = "--accuracy is for the page of several models; see --html"
        raise UsageError(message)
    table = None
    if arguments.accuracy is not None:
        from onnxmem.collection.summary import read_accuracies

        table = read_accuracies(arguments.accuracy)
    return Pages(path, len(names) == 1, table)
