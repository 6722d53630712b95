"""``onnxmem fit MODEL... --device NAME|SIZE``: whether it fits, and how far it goes."""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from onnxmem.cli.chosen import (
    device_catalog,
    fit_request_of,
    refuse_contradictions,
    refuse_unused_of_fit,
    step_settings,
    target_memory,
    verdict_settings,
)
from onnxmem.cli.observing import add_observing_options, observed_runs
from onnxmem.cli.options import (
    add_compared_runtime,
    add_devices_file,
    add_model_options,
    add_most,
    add_reserve,
    add_session_options,
    add_text_result_options,
    add_training_options,
    add_verdict_options,
)
from onnxmem.cli.output import check_output, in_color, report_fault, settle_json, write_result
from onnxmem.cli.parsing import Parser, dim, named_dim
from onnxmem.errors import (
    EXIT_GATE_FAILED,
    EXIT_OK,
    EXIT_UNANALYZED,
    UsageError,
    fault_of,
    printable,
    shortened,
)
from onnxmem.settings import RANKS, Settings

if TYPE_CHECKING:
    from onnxmem.analysis.fitting.footprints import Deployment
    from onnxmem.analysis.fitting.verdicts import Verdict
    from onnxmem.analysis.json_rows import JsonDict
    from onnxmem.analysis.request import AnalysisRequest
    from onnxmem.decisions.devices import Catalog
    from onnxmem.report.fit import ComparedMemory

_EPILOG: Final = """\
exit codes: 0 it fits, perhaps tightly; 1 it does not fit; 2 wrong usage or no
such file; 3 it is unknown: a figure is missing, incomplete or too low
"""
_COUNTED: Final = re.compile(r"([1-9]\d{0,3}) ?[x\u00d7*] ?(.*\S)")
"""Several cards, as the ranking of devices names them: ``4 x A100``."""
SCHEMA: Final = "onnxmem.fit"
SCHEMA_VERSION: Final = "1.0"
_TWICE_COUNTED: Final = "--cards counts the ranks: leave out --world"


def fit_parser() -> ArgumentParser:
    """The flags of ``onnxmem fit``."""
    parser = Parser(
        "fit",
        "MODEL... --device NAME|SIZE|auto [options]",
        "Say whether models fit a device, how far they go on it, and what limits them.",
        run,
        epilog=_EPILOG,
    )
    _add_device(parser)
    model = add_model_options(parser, named_dim_or_free)
    add_most(model)
    add_observing_options(parser)
    _add_context(parser)
    _add_runtime(parser)
    add_training_options(parser)
    add_text_result_options(parser)
    return parser


def run(arguments: Namespace) -> int:
    """Compare the models, all together, with one device or with every device."""
    from onnxmem.analysis.fitting.footprints import request_of
    from onnxmem.analysis.fitting.verdicts import Verdict
    from onnxmem.collection.sources import model_names

    # All that can be refused is refused first: an analysis may take minutes.
    arguments.models = list(model_names(arguments.models))
    check_output(arguments.output, arguments.models, force=arguments.force)
    refuse_contradictions(arguments)
    settle_json(arguments)
    _settle_cards(arguments)
    _refuse_unused_choice(arguments)
    target = None if arguments.which_device else target_memory(arguments)
    known = device_catalog(arguments) if target is None else None
    settings, free = _settings(arguments), _free_dim(arguments)
    refuse_unused_of_fit(arguments, None if target is None else target.device)
    path = None
    try:
        requests, observed = [], observed_runs(arguments, arguments.models)
        for path in arguments.models:
            request = request_of(path, settings, observed)
            requests.append(request)
        path = arguments.models[0] if len(arguments.models) == 1 else None
        if target is None:
            verdict, text, row = _ranked(requests, known or device_catalog(arguments), arguments)
        else:
            verdict, text, row = _fitted(requests, target, free, arguments)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the fault of a model, reported as such
        fault = fault_of(error)
        if arguments.json:
            error_row: JsonDict = {"code": fault.code, "message": printable(fault.message)}
            write_result(_document(arguments, {"status": "error", "error": error_row}), arguments)
        return report_fault(fault, error, path)
    text = _document(arguments, row) if arguments.json else in_color(text, arguments)
    write_result(text, arguments)
    codes = {Verdict.OVER: EXIT_GATE_FAILED, Verdict.UNKNOWN: EXIT_UNANALYZED}
    return codes.get(verdict, EXIT_OK)


def named_dim_or_free(text: str) -> tuple[str, int | None]:
    """Read ``NAME=N``, or ``NAME=?`` for the dim whose largest number is sought."""
    name, equals, number = text.rpartition("=")
    if name and equals and number == "?":
        return name, None
    return named_dim(text)


def _add_device(parser: ArgumentParser) -> None:
    device = parser.add_argument_group("device")
    device.add_argument(
        "--device",
        metavar="NAME|SIZE|auto",
        help="as in 'RTX 4090', STM32H743, 24GiB, or ram=512KiB,flash=2MiB for a microcontroller "
        "whose flash holds the weights; auto: what is free on this machine's GPU, or of its RAM",
    )
    device.add_argument(
        "--which-device", action="store_true", help="rank all devices, the smallest that fits first"
    )
    device.add_argument(
        "--rank",
        choices=RANKS,
        metavar="NAME",
        help=f"{', '.join(RANKS)}: what --which-device ranks by, among those that fit (default: "
        "memory, and price with --prices)",
    )
    device.add_argument(
        "--prices",
        metavar="FILE",
        help="what you pay, in place of launch prices: a CSV whose first line is "
        "device,price_per_hour or device,price_per_card, where date, source and currency are "
        "optional columns; or a TOML file of tables [[price]] with these keys",
    )
    device.add_argument(
        "--cards",
        type=contexts,
        metavar="N[,N...]",
        help="so many cards, of which each runs a batch of --batch (training: --shard, by default "
        "ddp; zero3 is FSDP); --device '4 x A100' is four, --which-device ranks several numbers",
    )
    add_devices_file(device)
    add_reserve(device)
    device.add_argument(
        "--instances", type=dim, default=1, metavar="N", help="of each model (default: 1)"
    )
    device.add_argument(
        "--share-weights", action="store_true", help="instances of a model have its weights once"
    )


def _add_context(parser: ArgumentParser) -> None:
    cache = parser.add_argument_group("language models")
    cache.add_argument(
        "--context",
        dest="contexts",
        type=contexts,
        action="extend",
        default=[],
        metavar="N[,N...]",
        help="tokens that the cache holds: the largest batch at each, to decode and to prefill",
    )


def contexts(text: str) -> list[int]:
    """Read positive numbers with commas between them."""
    return [dim(each.strip()) for each in text.split(",")]


def _add_runtime(parser: ArgumentParser) -> None:
    runtime = parser.add_argument_group("runtime")
    add_compared_runtime(runtime)
    runtime.add_argument(
        "--ask-onnxruntime",
        action="store_true",
        help="ask it for its graph, which takes seconds; else its graph optimizer is emulated",
    )
    add_session_options(runtime)
    add_verdict_options(runtime)


def _fitted(
    requests: list[AnalysisRequest], target: ComparedMemory, free: str | None, arguments: Namespace
) -> tuple[Verdict, str, JsonDict]:
    from onnxmem.analysis.fitting.assessing import fit
    from onnxmem.analysis.fitting.footprints import on_device
    from onnxmem.decisions.fit import fit_at
    from onnxmem.report.fit import fit_row, render_fit

    device = target.device
    setup = replace(fit_request_of(arguments, target), deployment=_deployment(arguments), dim=free)
    requests = [on_device(request, device, setup.basis) for request in requests]
    if arguments.contexts:
        result, contexts = fit_at(requests, setup, arguments.contexts)
    else:
        result, contexts = fit(requests, setup), None
    text = render_fit(result, target, requests, contexts)
    return result.verdict, text, {"error": None, **fit_row(result, target, contexts)}


def _ranked(
    requests: list[AnalysisRequest], devices: Catalog, arguments: Namespace
) -> tuple[Verdict, str, JsonDict]:
    from onnxmem.analysis.fitting.assessing import FitRequest
    from onnxmem.analysis.fitting.verdicts import Verdict
    from onnxmem.decisions.fit import at_context
    from onnxmem.decisions.offers import Choice, offers
    from onnxmem.decisions.prices import launch_prices, read_prices
    from onnxmem.kv_cache.steps import Step
    from onnxmem.report.devices import ranking_doubts, ranking_rows, render_ranking

    setup = FitRequest(
        memory_bytes=0,
        reserve_bytes=arguments.reserve_bytes,
        accepted=frozenset(arguments.accepted),
        deployment=_deployment(arguments),
    )
    if arguments.contexts:
        requests = at_context(requests, arguments.contexts[0], Step.DECODE)
    choice = Choice(
        prices=launch_prices(devices.devices)
        if arguments.prices is None
        else read_prices(arguments.prices, devices),
        order=arguments.rank or (RANKS[0] if arguments.prices is None else "price"),
        cards=tuple(dict.fromkeys(arguments.cards or (1,))),
        is_priced=arguments.prices is not None,
    )
    found = offers(requests, devices.devices, setup, arguments.runtime, choice)
    verdicts = {each.ranked.verdict for each in found}
    order = (Verdict.FITS, Verdict.TIGHT, Verdict.UNKNOWN, Verdict.OVER)
    verdict = next((each for each in order if each in verdicts), Verdict.OVER)
    status = "partial" if Verdict.UNKNOWN in verdicts else "ok"
    row: JsonDict = {
        "status": status,
        "error": None,
        "fits": verdict.fits,
        "verdict": verdict.value,
        "doubts": [each.text for each in ranking_doubts(found)],
        "rank": choice.order,
        "devices": ranking_rows(found, choice.prices),
    }
    context = arguments.contexts[0] if arguments.contexts else None
    return verdict, render_ranking(found, choice, requests, setup, context), row


def _settle_cards(arguments: Namespace) -> None:
    """Of one device, a number of cards is that of the ranks, data parallel unless ``--shard`` says.

    :raises UsageError: several numbers, or cards that nothing is shared by.
    """
    counted = _COUNTED.fullmatch(arguments.device or "")
    if counted is not None and arguments.cards is None:
        arguments.device, arguments.cards = counted[2], [int(counted[1])]
    if arguments.cards is None or arguments.device is None:
        return
    if arguments.world is not None:
        raise UsageError(_TWICE_COUNTED)
    if len(arguments.cards) > 1:
        message = "--cards: several numbers are ranked: --which-device in place of --device"
        raise UsageError(message)
    if not arguments.train:
        message = "--cards: no effect without --train: for inference each card has the whole model"
        raise UsageError(message)
    (arguments.world,), arguments.cards = arguments.cards, None
    arguments.shard = arguments.shard or "ddp"


def _refuse_unused_choice(arguments: Namespace) -> None:
    """Refuse what ranks devices where none are ranked, or counts cards twice.

    :raises UsageError: with the flag.
    """
    for flag, given in (
        ("--rank", arguments.rank),
        ("--prices", arguments.prices),
        ("--cards", arguments.cards),
    ):
        if given is not None and not arguments.which_device:
            message = f"{flag}: no effect without --which-device"
            raise UsageError(message)
    if arguments.cards is not None and arguments.world is not None:
        raise UsageError(_TWICE_COUNTED)


def _free_dim(arguments: Namespace) -> str | None:
    """The one dim whose largest number is sought, where it is not the batch.

    :raises UsageError: there are several, or one on every device.
    """
    free = [name for name, number in arguments.dims if number is None]
    if len(set(free)) > 1:
        message = f"one dim at a time can be free: --dim {shortened(free[0])}=? is given already"
        raise UsageError(message)
    if free and arguments.which_device:
        message = "--which-device ranks at one size: give the dim a number"
        raise UsageError(message)
    return free[0] if free else None


def _deployment(arguments: Namespace) -> Deployment:
    from onnxmem.analysis.fitting.footprints import Deployment

    if arguments.train and arguments.share_weights:
        message = "--share-weights: trainings share no weights"
        raise UsageError(message)
    return Deployment(instances=arguments.instances, shares_weights=arguments.share_weights)


def _settings(arguments: Namespace) -> Settings:
    return Settings(
        **step_settings(arguments),
        **verdict_settings(arguments),
        fixed_dims=arguments.fixed_dims,
        asks_onnxruntime=arguments.ask_onnxruntime,
        one_of_several=len(arguments.models) > 1,
    )


def _document(arguments: Namespace, row: JsonDict) -> str:
    from onnxmem.analysis.json_rows import document, document_text

    content: JsonDict = {
        "models": [printable(path) for path in arguments.models],
        **row,
    }
    return document_text(document(SCHEMA, SCHEMA_VERSION, content))
