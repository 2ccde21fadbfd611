"""The server's side of a run on devices: who is there, how letters to them are written, who may join."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from moiety.data import Preprocessing
from moiety.deploy.letters import Letter
from moiety.deploy.mailbox import Mailbox
from moiety.deploy.plan import Plan, digest_of
from moiety.deploy.questions import Questions
from moiety.deploy.roster import MOST_NUMBERS, Member, Roster, find_layout, read_hello, sort_members, sort_odd_members
from moiety.deploy.site import describe_layout
from moiety.deploy.tables import Table, fit_recipe
from moiety.deploy.wire import Wiring, count_most
from moiety.engines.rows import count_rows
from moiety.errors import MoietyError, must, tell_error

log = logging.getLogger("moiety")

PAUSE = 0.25
"""Seconds between two looks at who is connected."""
SILENT = 2
"""After how many rounds without an answer a device must say that it is there before it is asked again."""


class Federation:
    """The devices of one run, and the way to them."""

    def __init__(self, plan: Plan, mailbox: Mailbox, roster: Roster) -> None:
        self.plan, self.mailbox, self.roster = plan, mailbox, roster
        mailbox.largest = 0  # those who say hello send no body
        self.folder: Path | None = None
        self.run = ""
        self.agreed: dict[str, Any] = {}
        self.digest = ""
        self.wiring: Wiring
        self.hellos = Questions(mailbox, "hello", plan.ttl)
        self.welcomes = Questions(mailbox, "welcome", plan.ttl)
        self.waiting: dict[int, Member] = {}
        """Who said hello before the run began, by node."""
        self.silent: Counter[int] = Counter()
        """In how many rounds running a client has not answered."""

    def start(self, folder: Path, run: str, terms: dict[str, Any], wiring: Wiring) -> None:
        """The run is known: its id, and what both sides must agree on."""
        self.folder, self.run, self.agreed, self.wiring = folder, run, terms, wiring
        self.digest = digest_of(terms)
        self.mailbox.largest = min(self.plan.largest_message, count_most(wiring.up))
        self.roster.save(folder, run)

    def node_of(self, client: int) -> int:
        """The node of a client; -1 for one that has not joined."""
        member = self.roster.members[client]
        return member.node if member.joined else -1

    def head(self, client: int, t: int, used: int) -> dict[str, Any]:
        """What every letter to a client says."""
        return {"run": self.run, "position": client, "digest": self.digest, "round": t, "used": used}

    def gather(self, count: int) -> None:
        """Wait until so many devices have said who they are, for the first round of a run."""
        began = time.monotonic()
        while len(self.roster) < count:
            self.greet()
            # Names decide about positions, so nobody gets one before all are there.
            self.waiting |= {member.node: member for member in self._read_hellos(PAUSE)}
            names = {member.name for member in (*self.waiting.values(), *self.roster.members)}
            if len(names) >= count and not self.hellos.expects_answers():
                self._admit(self.waiting.values())
                self.waiting = {}
            elif not self.hellos.pending:
                time.sleep(PAUSE)
            if time.monotonic() - began > 60:
                began = time.monotonic()
                log.info("waiting for devices: %d of %d are here", len(names), count)

    def agree_on_recipe(self) -> None:
        """Fit the recipe that all devices apply to their tables, from their sums and names.

        Where no run can be made with it, devices whose categories or classes nobody else has are refused, those with
        the most such names first, until one can be made. Others are waited for in their place.
        """
        roster = self.roster
        while roster.preprocessing is None and isinstance(self.plan.data, Table):
            odd, first_error = sort_odd_members(roster.members), None
            most = min(len(odd), len(roster.members) - 1)  # somebody must be left
            for count in range(most + 1):
                members = [each for each in roster.members if each not in odd[:count]]
                try:
                    recipe = self._try_together(members)
                except MoietyError as error:
                    first_error = first_error or error
                    continue
                break
            else:
                assert first_error is not None
                raise first_error
            for member in odd[:count]:
                self.hellos.put_off(
                    member.node, f"it alone has some categories or classes, and with them {first_error}"
                )
            roster.members = members
            if len(members) >= self.plan.clients:
                roster.preprocessing = recipe
            else:
                self.gather(self.plan.clients)
                roster.members = sort_members(roster.members)

    def _try_together(self, members: list[Member]) -> Preprocessing | None:
        """The recipe of these devices. Raises where no run can be made with them."""
        recipe = fit_recipe(self.plan.data, [each.described for each in members])
        data = Roster(members, recipe).as_data()
        self.plan.make_problem(data, self.plan.server_options(data))
        return recipe

    def greet(self) -> None:
        """Ask all connected nodes that are not known who they are."""
        members = {*self.waiting, *(each.node for each in self.roster.members)}
        nodes = [node for node in self.mailbox.online() if node not in members and self.hellos.may_ask(node)]
        self.hellos.ask([(node, Letter({})) for node in nodes])

    def _admit(self, members: Iterable[Member]) -> None:
        """Put devices on the list, in the order of their names; one that cannot be put there is refused.

        The layout of the data is that of most devices, so that no single one decides it.
        """
        each = sort_members(members)
        layout = None if self.roster.members or not each else find_layout(each)
        for member in each:
            with self._refuse_for_errors(member.node):
                fits = layout in (None, describe_layout(member.described))
                must(fits, "data", "laid out as on most devices", f"others of {member.name}")
                self.roster.add(member)

    def _read_hellos(self, wait: float) -> list[Member]:
        """The devices that say hello within so many seconds and that the plan can take, each tried by itself."""
        members = []
        for node, answer in self.hellos.collect(wait):
            with self._refuse_for_errors(node):
                member = read_hello(node, answer.head)
                self._try(member)
                members.append(member)
        return members

    def _try(self, member: Member) -> None:
        """Raise where no run can be made with a device, as far as that can be told of one alone."""
        recipe = self.roster.preprocessing
        if recipe is None and isinstance(self.plan.data, Table):  # what its columns become depends on all devices
            fit_recipe(self.plan.data, [member.described])
            return
        data = Roster([member], recipe).as_data()
        _, algorithm = self.plan.make_problem(data, self.plan.device_options(data))
        rows = max(count_rows(phase, member.described["sizes"][0]) for phase in algorithm.phases.values())
        must(rows < MOST_NUMBERS, "sizes", f"such that a turn has fewer than {MOST_NUMBERS} rows", rows)

    @contextlib.contextmanager
    def _refuse_for_errors(self, node: int) -> Iterator[None]:
        """Refuse a device within the block for whatever goes wrong; the others go on."""
        try:
            yield
        except Exception as error:
            self.hellos.put_off(node, tell_error(error))

    def admit_newcomers(self, wait: float = 0.0) -> bool:
        """Let devices join that have come since; whether there are more clients than before."""
        before = len(self.roster)
        self.greet()
        members = self._read_hellos(wait)
        if members:
            self._admit(members)
            if self.folder is not None:
                self.roster.save(self.folder, self.run)
        self.welcome()
        for node, answer in self.welcomes.collect(wait):
            self._join(node, answer)
        return len(self.roster) > before

    def welcome(self) -> None:
        """Tell devices that have not joined their positions."""
        online, recipe = self.mailbox.online(), self.roster.preprocessing
        letters = []
        for position, member in enumerate(self.roster.members):
            if not member.joined and member.node in online and self.welcomes.may_ask(member.node):
                head = {"run": self.run, "position": position, "agreed": self.agreed}
                head["preprocessing"] = None if recipe is None else recipe.as_dict()
                letters.append((member.node, Letter(head)))
        self.welcomes.ask(letters)

    def _join(self, node: int, answer: Letter) -> None:
        """A device has answered that it takes part."""
        member = next((each for each in self.roster.members if each.node == node), None)
        if answer.head.get("digest") != self.digest:
            self.welcomes.put_off(node, "it has another plan")
        elif member is not None:
            member.joined = True
            log.info("%s takes part as client %d", member.name, self.roster.position(member))

    def note_answers(self, answers: Mapping[int, bool]) -> None:
        """Note who answered in a round, by client; no round waits for long for a device that is connected but deaf."""
        for client, well in answers.items():
            self.silent[client] = 0 if well else self.silent[client] + 1
            if self.silent[client] >= SILENT:
                member = self.roster.members[client]
                member.joined, self.silent[client] = False, 0
                log.info("%s has not answered for %d rounds: it is asked whether it is there", member.name, SILENT)

    def list_joined(self) -> set[int]:
        """The clients whose devices take part and are connected."""
        online = self.mailbox.online()
        return {i for i, each in enumerate(self.roster.members) if each.joined and each.node in online}

    def wait_for(self, count: int, patience: float | None = None) -> None:
        """Wait until so many devices take part, or, with ``patience``, so many seconds."""
        until = None if patience is None else time.monotonic() + patience
        while len(self.list_joined()) < count and (until is None or time.monotonic() < until):
            self.admit_newcomers(PAUSE)
            if not self.hellos.pending and not self.welcomes.pending:
                time.sleep(PAUSE)
