"""``app``: one declaration, from which Flower gets both of its sides."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import platformdirs
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from moiety import task as tasks
from moiety.deploy.device import Device
from moiety.deploy.flower_private import shorten_waits
from moiety.deploy.letters import blame_letter, read_message, refuse_message, tell_sender, write_record
from moiety.deploy.mailbox import Mailbox, outlive_trouble
from moiety.deploy.plan import FLOOR, Plan
from moiety.deploy.server import serve
from moiety.deploy.site import name_node
from moiety.deploy.tables import Table
from moiety.errors import MoietyError, kind
from moiety.run.result import Run
from moiety.run.settings import Settings
from moiety.split import Split
from moiety.types import Algorithm, Task

log = logging.getLogger("moiety")


class App:
    """Both sides of a federation: ``client`` is Flower's ClientApp, ``server`` its ServerApp.

    ``run`` is the run on the server's side, once it has ended.

    >>> import moiety as mo
    >>> rows = mo.deploy.table(target="outcome")
    >>> federation = mo.deploy.app(mo.models.linear(4, 2), mo.fedavg(shared=0.5), data=rows, rounds=10)
    >>> type(federation.client).__name__, type(federation.server).__name__
    ('ClientApp', 'ServerApp')
    >>> federation.device({"name": "north", "folder": "devices/north"}).name
    'north'
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.run: Run | None = None
        self._devices: dict[tuple[str, str], Device] = {}
        self.client, self.server = self._make_client(), self._make_server()

    def device(self, config: Mapping[str, Any], node: int = 0) -> Device:
        """The device that a node's configuration describes: its ``name``, and the ``folder`` that it keeps."""
        name = name_node(config, node)
        folder = Path(str(config.get("folder") or default_folder(name)))
        key = (name, str(folder))
        if key not in self._devices:
            self._devices[key] = Device(self.plan, name, folder, dict(config))
        return self._devices[key]

    def _make_client(self) -> ClientApp:
        client = ClientApp()

        def answer(kind: str) -> Callable[[Message, Context], Message]:
            def handle(message: Message, context: Context) -> Message:
                show_log()
                try:
                    with blame_letter():
                        letter = read_message(message, self.plan.largest_message)
                    device = self.device(context.node_config, context.node_id)
                    return Message(write_record(device.answer(kind, letter)), reply_to=message)
                except MoietyError as error:
                    log.warning("refused: %s", error)
                    return refuse_message(message, tell_sender(error))
                except Exception as error:  # from the user's code; Flower would send its text to the server
                    log.exception("refused")
                    return refuse_message(message, tell_sender(error))

            return handle

        client.train()(answer("train"))
        client.evaluate()(answer("evaluate"))
        for each in ("hello", "welcome", "weigh", "end"):
            client.query(each)(answer(each))
        return client

    def _make_server(self) -> ServerApp:
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            show_log()
            shorten_waits()
            outlive_trouble(grid)
            plan = read_run_config(self.plan, context.run_config)
            self.run = serve(plan, Mailbox(grid, plan.largest_message))

        return server


def show_log() -> None:
    """Let what moiety logs appear in the output of Flower's process, unless the user has said where it goes."""
    handlers = [*log.handlers, *logging.getLogger().handlers]
    if all(isinstance(each, logging.NullHandler) for each in handlers):
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)


def default_folder(name: str) -> Path:
    """Where a device keeps its things if its node's configuration does not say it."""
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
    return Path(platformdirs.user_data_dir("moiety")) / "devices" / safe


def read_run_config(plan: Plan, config: Mapping[str, Any]) -> Plan:
    """The plan with what ``flwr run -c "rounds=3"`` changes."""
    types = {"rounds": int, "clients": int, "least": int, "deadline": (int, float), "out": str}
    values = {}
    for name, type_ in types.items():
        if name in config:
            kind(name, config[name], type_, "as in the file")  # type: ignore[arg-type]
            values[name] = config[name]
    return replace(plan, **values)


def app(
    model: nn.Module | Task,
    algorithm: Algorithm,
    *,
    split: Split | None = None,
    rounds: int,
    cohort: int | None = None,
    data: Callable[[Mapping[str, Any]], Any] | Table,
    clients: int = 2,
    seed: int = 0,
    out: str | os.PathLike[str] = "federation",
    loss: tasks.Loss | None = None,
    metric: tasks.Metrics | None = None,
    deadline: float = 600.0,
    least: int = 1,
    share_metrics: str = "none",
    floor: int = FLOOR,
    largest_message: int = 1 << 31,
    safeguard: bool = False,
    settings: Settings | None = None,
) -> App:
    """A federation on devices: the same training as ``moiety.fit``, between processes that share nothing else.

    Server and devices run the same file. Personal parameters and rows stay on their device, in a folder of its own.

    Args:
        model: as for ``fit``; both sides must begin with the same values, so seed it.
        algorithm: as for ``fit``.
        split: as for ``fit``.
        rounds: how many rounds to train; with an asynchronous clock, how many arrivals.
        cohort: how many devices are asked in a round; all by default.
        data: a function that is called on the device with its node's configuration (a table of texts and numbers), and
            gives its rows as columns or as ``FederatedData`` of one client; or ``moiety.deploy.table(...)``.
        clients: how many devices must have come before the first round; later ones join as newcomers.
        seed: everything random derives from it, but for keys and noise that must be secret.
        out: the server's folder: configuration, history, ledger and checkpoints, as of any run.
        loss: as for ``fit``.
        metric: as for ``fit``.
        deadline: seconds that the server waits for the answers of a round.
        least: a round with fewer uploads than this is left out; and none begins before so many devices are connected.
        share_metrics: what devices tell of their scores: ``none``; ``histogram``, of which the server records counts
            alone; or ``per_client``. The training loss leaves with ``per_client`` only.
        floor: how many devices a histogram needs.
        largest_message: the most bytes that either side accepts.
        safeguard: in the end, let each device choose between its personal model, the shared one, and mixtures of both.
            The choice stays on the device. It is the simulation's where ``share_metrics`` is ``per_client``; else each
            device tests by itself, and sends nothing.
        settings: as for ``fit``, without what only a simulation has. Devices have no virtual clock: with
            ``moiety.clock.asynchronous(active=...)`` the server steps at each real arrival.

    Returns:
        An object with ``client`` and ``server``, for the ``[tool.flwr.app.components]`` of a Flower app.

    >>> import moiety as mo
    >>> from moiety import deploy
    >>> data = deploy.table(target="outcome", standardise=True)
    >>> method, model = mo.fedavg(shared=0.5), mo.models.linear(4, 2)
    >>> federation = deploy.app(model, method, data=data, rounds=10, clients=4)
    >>> client, server = federation.client, federation.server
    """
    return App(
        Plan(
            model,
            algorithm,
            data,
            rounds,
            split=split,
            cohort=cohort,
            clients=clients,
            seed=seed,
            out=out,
            loss=loss,
            metric=metric,
            deadline=deadline,
            least=least,
            share_metrics=share_metrics,
            floor=floor,
            largest_message=largest_message,
            safeguard=safeguard,
            settings=Settings() if settings is None else settings,
        )
    )
