"""The device: one client of a federation, with its own rows, its own state and its own folder.

It answers letters: ``hello`` (who are you), ``welcome`` (you are client k of this run), ``train``, ``evaluate``,
``weigh`` (how much better is your own model) and ``end``. What it gets is checked before anything is done with it, what
it sends is checked on the bytes that leave.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from moiety import tree
from moiety.clients import Store
from moiety.data import FederatedData, Preprocessing
from moiety.deploy.choice import as_table, choose_model, gather_evidence, keep_choice, read_population, read_turns
from moiety.deploy.journal import NOISE, RESTORE, Journal, device_token
from moiety.deploy.letters import Letter, blame_letter, read_noise
from moiety.deploy.offline import make_own_run, open_own_run
from moiety.deploy.plan import Plan, digest_of
from moiety.deploy.roster import MOST
from moiety.deploy.scores import share_row
from moiety.deploy.site import describe_rows, load_function, place_client
from moiety.deploy.tables import Table, describe_table, load_table
from moiety.deploy.wire import Wiring
from moiety.engines.base import RoundInfo
from moiety.engines.problem import Problem
from moiety.engines.sequential import Sequential
from moiety.errors import is_whole, must
from moiety.evaluation.safeguard import Evidence, summarise
from moiety.files import lock_folder, make_folder
from moiety.loop.divergence import explain_drop
from moiety.loop.evaluate import client_functions, evaluate
from moiety.run.identity import check_identity
from moiety.run.privacy import check_draws
from moiety.run.result import Run, one_thread
from moiety.run.settings import Options
from moiety.seals import digest
from moiety.transport.privacy import PrivacyState, privatise_update
from moiety.types import Algorithm, ClientUpdate, Params, Tree

KINDS = ("hello", "welcome", "train", "evaluate", "weigh", "end")


@dataclass(frozen=True)
class Ready:
    """A device that has joined a run: the problem with its rows at its position, and how messages are packed."""

    position: int
    problem: Problem
    algorithm: Algorithm
    wiring: Wiring
    engine: Sequential
    options: Options
    description: dict[str, Any]

    @property
    def digest(self) -> str:
        """Of what both sides agree on."""
        return digest_of(self.description)


class Device:
    """One client, as its node's configuration describes it. The folder is locked while a letter is answered.

    >>> import moiety as mo
    >>> def load_site(config):
    ...     return {"x": [[-1.0], [1.0]] * 8, "y": [0, 1] * 8}
    >>> federation = mo.deploy.app(mo.models.linear(1, 2), mo.fedavg(shared=0.5), data=load_site, rounds=10)
    >>> device = federation.device({"name": "north", "folder": "devices/north"})
    >>> device.load(None)
    FederatedData(1 clients, 16 rows; x float64 [1], y int64)
    """

    def __init__(self, plan: Plan, name: str, folder: Path, config: Mapping[str, Any]) -> None:
        self.plan, self.name, self.folder, self.config = plan, name, folder, config
        self._ready: dict[str, Ready] = {}
        self._evidence: dict[str, Evidence] = {}

    def answer(self, kind: str, letter: Letter) -> Letter:
        """Answer a letter; one that cannot be right is refused with moiety's error."""
        with blame_letter():
            must(kind in KINDS, "message", f"one of {', '.join(KINDS)}", repr(kind)[:80])
        make_folder(self.folder)
        with lock_folder(self.folder), one_thread():
            answer: Letter = getattr(self, kind)(letter)
            return answer

    def hello(self, letter: Letter) -> Letter:
        """Who the device is, and what its data look like: names, sizes and sums, no rows."""
        if isinstance(self.plan.data, Table):
            description = describe_table(self.plan.data, self.config, self.name)
        else:
            description = describe_rows(load_function(self.plan.data, self.config, self.name))
        return Letter({"name": self.name, "token": device_token(self.folder), **description})

    def welcome(self, letter: Letter) -> Letter:
        """Join a run at a position, if both sides have the same plan."""
        head = letter.head
        position, recipe, terms = head.get("position"), head.get("preprocessing"), head.get("agreed")
        journal = self._journal(letter)
        with blame_letter():
            must(is_whole(position) and 0 <= int(str(position)) < MOST, "position", "that of a client", position)
            must(isinstance(terms, dict), "message", "one that says what both sides agree on", "none")
        member = {"name": self.name, "position": position, "preprocessing": recipe}
        ready = self._prepare(member)
        with blame_letter():
            check_identity(terms, ready.description, Path(journal.run))  # type: ignore[arg-type]
        journal.join(member)
        self._ready[journal.run] = ready
        return Letter({"digest": ready.digest, "turns": journal.list_turns()})

    def train(self, letter: Letter) -> Letter:
        """A turn: local work with what the server sent, and the upload."""
        head, journal, ready = letter.head, self._journal(letter), self._check(letter)
        t, rounds, used = (self._number(head, key) for key in ("round", "rounds", "used"))
        with blame_letter():
            must(used < t < rounds, "round", f"after {used}, the last that was used, and below {rounds}", t)
        self._refuse_old(journal, t, used)
        question = digest(json.dumps(head, sort_keys=True).encode() + letter.body)
        turn = journal.read_turn(t)
        if turn is not None and turn.asked == question:
            return Letter(turn.head, journal.read_upload(turn))
        state = self._state(journal, ready, used)
        received = self._receive(letter, ready, state)
        journal.note_received(t, used, received)
        answer, new = self._work(journal, ready, received, state, RoundInfo(*self._pace(ready, t, rounds)), head)
        if new is not None:
            journal.write_turn(t, question, answer.head, answer.body, new[0])
            journal.keep_turns({used, t})
        return answer

    def evaluate(self, letter: Letter) -> Letter:
        """Scores of the device's own model and of the shared model, as far as the plan lets them leave."""
        head, journal, ready = letter.head, self._journal(letter), self._check(letter)
        t, used = self._number(head, "round"), self._number(head, "used")
        self._refuse_old(journal, t, used)
        part = head.get("part")
        with blame_letter():
            must(part in ("train", "validation", "test"), "part", "train, validation or test", repr(part)[:40])
        state = self._state(journal, ready, used)
        received = self._receive(letter, ready, state)
        # The server writes its checkpoint after it has evaluated.
        journal.note_received(t, used, received, settled=False)
        row = self._score(ready, received, state if used >= 0 else None, str(part), t)
        return Letter({"round": t, "scores": share_row(row, self.plan.share_metrics)})

    def weigh(self, letter: Letter) -> Letter:
        """What the device knows of its candidates, as eleven numbers, for the population of all devices."""
        may_weigh = self.plan.safeguard and self.plan.share_metrics == "per_client"
        with blame_letter():
            must(may_weigh, "message", "one that the plan allows", "a question for evidence")
        t, _, ready, received, state, used = self._read_end(letter)
        evidence = self._gather(letter, ready, received, state, t, used)
        return Letter({"round": t, "evidence": as_table(summarise(evidence))})

    def end(self, letter: Letter) -> Letter:
        """The run is over: keep the shared model as it ended and the state that goes with it, and choose a model."""
        t, journal, ready, received, state, used = self._read_end(letter)
        journal.note_received(t, used, received)
        if self.plan.safeguard:
            evidence = self._gather(letter, ready, received, state, t, used)
            own = make_own_run(self.plan.model, ready, journal.run, received, state, t, used)
            with blame_letter():
                population = read_population(letter.head.get("population"))
            guard = choose_model(own, ready.position, evidence, population)
            keep_choice(journal.folder, journal.run, guard)
            self._evidence.clear()
        journal.keep_turns({used})
        return Letter({"round": t})

    def _read_end(self, letter: Letter) -> tuple[int, Journal, Ready, Params, Tree, int]:
        """What a letter after the last round says: its round, the models of the device, the last turn that was used."""
        journal, ready = self._journal(letter), self._check(letter)
        t, used = self._number(letter.head, "round"), self._number(letter.head, "used")
        self._refuse_old(journal, t, used)
        state = self._state(journal, ready, used)
        received = self._receive(letter, ready, state)
        return t, journal, ready, received, state, used

    def _gather(self, letter: Letter, ready: Ready, received: Params, state: Tree, t: int, used: int) -> Evidence:
        """The evidence for models that the letter says, computed once."""
        with blame_letter():
            turns = read_turns(letter.head)
        key = digest(json.dumps([letter.head.get("run"), t, used, turns]).encode() + letter.body)
        if key not in self._evidence:
            own = make_own_run(self.plan.model, ready, str(letter.head["run"]), received, state, t, used)
            self._evidence = {key: gather_evidence(own, ready.position, turns)}
        return self._evidence[key]

    def own_run(self, run: str | None = None) -> Run:
        """The device's own model, without the server: a run of one client, whose name is the device's.

        ``device.own_run().predict(device.name, x)`` predicts, ``export(device.name)`` gives the model to take away.
        """
        with lock_folder(self.folder):
            return open_own_run(self, run)

    def ready(self, run: str) -> Ready:
        """The device as a member of a run, made once in a process."""
        if run not in self._ready:
            self._ready[run] = self._prepare(Journal(self.folder, run).read_member())
        return self._ready[run]

    def load(self, preprocessing: Mapping[str, Any] | None) -> FederatedData:
        """The device's own rows, as its model takes them."""
        if isinstance(self.plan.data, Table):
            must(preprocessing is not None, "message", "one with the recipe for the table", "none")
            return load_table(self.plan.data, self.config, self.name, Preprocessing.from_dict(preprocessing or {}))
        return load_function(self.plan.data, self.config, self.name)

    def _prepare(self, member: Mapping[str, Any]) -> Ready:
        data = self.load(member["preprocessing"])
        options = self.plan.device_options(data)
        problem, algorithm = self.plan.make_problem(data, options)
        description = self.plan.describe(problem, algorithm, options)
        position = int(member["position"])
        problem = replace(problem, data=place_client(data, position))
        wiring = Wiring(problem, algorithm, self.plan.exchange(problem, algorithm))
        engine = Sequential(problem, client_functions(problem, algorithm))
        return Ready(position, problem, algorithm, wiring, engine, options, description)

    def _journal(self, letter: Letter) -> Journal:
        with blame_letter():
            return Journal(self.folder, str(letter.head.get("run", "")))

    def _check(self, letter: Letter) -> Ready:
        """The device as a member of the letter's run, if the letter was meant for it and its plan."""
        head, journal = letter.head, self._journal(letter)
        with blame_letter():
            must(journal.is_member(), "run", "one that the device has joined", journal.run)
        ready = self.ready(journal.run)
        with blame_letter():
            must(head.get("position") == ready.position, "position", str(ready.position), head.get("position"))
            hint = "Server and device need the same file."
            must(head.get("digest") == ready.digest, "plan", "the same on both sides", "another", hint)
        return ready

    def _receive(self, letter: Letter, ready: Ready, state: Tree) -> Params:
        """The shared model that a letter brings."""
        with blame_letter():
            return ready.wiring.unpack_down(letter.body, ready.position, ready.wiring.first_known(state))

    def _number(self, head: Mapping[str, Any], key: str) -> int:
        value = head.get(key)
        with blame_letter():
            must(is_whole(value) and -1 <= int(str(value)) < 1 << 40, key, "a whole number from -1", repr(value)[:40])
        return int(str(value))

    def _refuse_old(self, journal: Journal, t: int, used: int) -> None:
        """A server never takes back that it used a turn, so a letter that does is an old one."""
        last = journal.last_settled()
        with blame_letter():
            must(used >= last, "round", f"after turn {last}, which was used", f"{t}, from before it")

    def _state(self, journal: Journal, ready: Ready, used: int) -> Tree:
        first = ready.problem.first_state(ready.algorithm)
        if used < 0:
            return first
        with blame_letter():
            journal.check_turn(used)
        return journal.read_state(used, first)

    def _pace(self, ready: Ready, t: int, rounds: int) -> tuple[int, float, float]:
        return t, ready.algorithm.schedule.factor(t, rounds), t / max(rounds - 1, 1)

    def _work(
        self,
        journal: Journal,
        ready: Ready,
        received: Params,
        state: Tree,
        info: RoundInfo,
        head: Mapping[str, Any],
    ) -> tuple[Letter, tuple[Tree] | None]:
        """The answer to a broadcast, and the new state; none where something is not finite."""
        t, client, wiring = info.round, ready.position, ready.wiring
        jobs = ready.problem.make_jobs(ready.algorithm.phases, [client], [state], "train", t, part="train")
        ((update, new, largest),) = ready.engine.map("train", jobs, received, info)
        wiring.exchange.check_upload(update, client, t)
        if not bool(np.isfinite(float(largest))):
            return Letter({"round": t, "why": explain_drop(update, new)}), None
        update = self._add_noise(journal, update, client, head)
        parcel = wiring.pack_up(update.upload, client, t, wiring.first_known(state), wiring.first_known(new))
        shared = self.plan.share_metrics == "per_client"
        numbers = {name: float(value) for name, value in update.info.items()} if shared else {}
        return Letter({"round": t, "weight": float(update.weight), "info": numbers}, parcel.body), (new,)

    def _add_noise(self, journal: Journal, update: ClientUpdate, client: int, head: Mapping[str, Any]) -> ClientUpdate:
        """With local privacy, the upload clipped and with noise.

        Where the plan names an epsilon, the server computes the noise for all rounds, once, and every letter says it.
        The device trusts it no further: it adds up its own draws, all with the same noise, and keeps to its epsilon.
        """
        privacy = self.plan.settings.privacy
        if privacy is None or not privacy.local:
            return update
        drawn, before = journal.read_noise()
        must(before is not None or not journal.list_turns(), NOISE, "there", f"none in {journal.folder}", RESTORE)
        with blame_letter():
            noise = read_noise(head) if privacy.noise is None else float(privacy.noise)
            must(before in (None, noise), "noise", f"{before}, as in earlier rounds of the run", noise)
            check_draws(privacy, noise, drawn + 1)
        journal.count_noise(drawn + 1, noise)
        return privatise_update(privacy, PrivacyState(noise, privacy.clip), update, drawn + 1, client)

    def _score(self, ready: Ready, received: Params, state: Tree | None, part: str, t: int) -> dict[str, Any]:
        """The device's row, as a simulation has it for a client."""
        store = Store(lambda: ready.problem.first_state(ready.algorithm))
        if state is not None and ready.algorithm.stateful and tree.leaves(state):
            store.put([ready.position], [state])
        clients = np.array([ready.position])
        evaluation = evaluate(
            ready.problem, ready.algorithm, ready.engine, received, store, part=part, round=t, clients=clients
        )
        return evaluation.rows[0]
