"""An agent that lives through crashes: it repeats what was not answered, and keeps what it was told.

One agent runs one transaction after the other, each a random program drawn from a seed. What it does depends on the answers it
gets, which depend on when servers died; so a seed repeats the programs, the kills, and nearly always the failure.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from typing import Any

import grpc
from tests.crash.fleet import Fleet, Refused
from tests.crash.told import Call, Exchange, LiveStep, Told
from tests.crash.world import World

from agenttx.v1 import transaction_pb2 as pb

__all__ = ["COUNTERS", "Agent", "Surprise"]

COUNTERS = tuple(f"counter-{number}" for number in range(6))
_CHANNELS = ("mail", "hook", "audit")
_MOST_MOVES = 40
# A rewind whose server died is finished once its lease has run out; and a lone server may be gone more often than it is there.
_REST_SECONDS = 300.0
_REST_PAUSE_SECONDS = 0.05
# How often each tool is called, and whether it may be part of a group.
_TOOLS = {"crash.look": 2, "crash.write": 5, "crash.set": 4, "crash.book": 5, "crash.send": 1.5}
_SUCCESS, _ROLLED_BACK, _FAILED, _IN_DOUBT = (
    pb.STEP_STATUS_SUCCESS,
    pb.STEP_STATUS_ROLLBACK_TRIGGERED,
    pb.STEP_STATUS_FAILED,
    pb.STEP_STATUS_IN_DOUBT,
)
# Why a step can't be cancelled, and why a rewind asked for while one runs may be refused.
_NOT_CANCELLED = (
    "STEP_NOT_EXECUTING",
    "STEP_NOT_FOUND",
    "STALE_GENERATION",
    "ROLLBACK_INCOMPLETE",
    "STEP_IN_DOUBT",
    "TRANSACTION_ENDED",
)
_UNSETTLED = ("STEP_IN_DOUBT", "STEP_EXECUTING")


class Surprise(AssertionError):
    """An answer that breaks a promise."""


class Agent:
    """Runs transactions, one at a time; ``told`` has all of them."""

    def __init__(self, name: str, seed: str, fleet: Fleet, world: World) -> None:
        self.told: list[Told] = []
        self.steps = 0
        self._name = name
        self._fleet = fleet
        self._world = world
        self._chance = random.Random(f"{seed} {name}")
        # What is drawn while repeating must not shift what is drawn for the program.
        self._route = random.Random(f"{seed} {name} route")

    async def run_one(self, leaving: asyncio.Event) -> None:
        """Run one transaction to wherever its program takes it; once ``leaving`` is set it comes to its end."""
        name = f"{self._name}-{len(self.told)}"
        told = Told(name, resumes=self._chance.random() > 0.08)
        self.told.append(told)
        await _Program(told, self._chance, self._call, self._world).run(leaving)

    async def end_all(self) -> None:
        """Roll back what was left open, and settle what is held."""
        for told in self.told:
            program = _Program(told, self._chance, self._call, self._world)
            if told.status == "OPEN":
                await program.roll_back()
            await program.settle_held()

    async def _call(self, method: str, request: Any) -> Any:
        return await self._fleet.call(method, request, self._route)


class _Program:
    def __init__(self, told: Told, chance: random.Random, call: Any, world: World) -> None:
        self._told = told
        self._chance = chance
        self._call = call
        self._world = world
        self._made = 0

    async def run(self, leaving: asyncio.Event) -> None:
        await self._begin()
        target = self._chance.randint(2, 8)
        for _ in range(_MOST_MOVES):
            if self._told.status != "OPEN":
                return
            if len(self._told.live) < target and not leaving.is_set():
                await self._move()
                continue
            ending = self._chance.random()
            if ending < 0.75:
                await self._commit()  # a conflict may take it back, and then it goes on
            elif ending < 0.93:
                await self.roll_back()
            else:
                return

    async def _move(self) -> None:
        dice = self._chance.random()
        if dice < 0.66:
            await self._step()
        elif dice < 0.72:
            await self._interrupted_step()
        elif dice < 0.88:
            await self._group()
        elif dice < 0.95:
            await self._rewind(self._chance.randint(1, self._told.next_step))
        else:
            await self._repeat_something()

    # --- begin and end --------------------------------------------------------------------

    async def _begin(self) -> None:
        request = pb.BeginTransactionRequest(
            agent_id="crash",
            metadata={"name": self._told.name},
            request_id=self._new_id("begin"),
            crash_policy=pb.CRASH_POLICY_RESUME if self._told.resumes else pb.CRASH_POLICY_ABORT,
            isolation=self._chance.choice((pb.ISOLATION_READ_COMMITTED, pb.ISOLATION_SERIALIZABLE)),
            policy=pb.RollbackPolicy(
                on_conflict=self._chance.choice((pb.ON_CONFLICT_ABORT, pb.ON_CONFLICT_REWIND))
            ),
        )
        answer = await self._call("BeginTransaction", request)
        self._told.transaction_id = answer.transaction_id
        self._told.exchanges.append(Exchange("BeginTransaction", request, answer))

    async def _commit(self) -> None:
        request = pb.CommitTransactionRequest(
            transaction_id=self._told.transaction_id, request_id=self._new_id("commit")
        )
        try:
            answer = await self._call("CommitTransaction", request)
        except Refused as refused:
            if refused.reason != "COMMIT_CONFLICT":
                await self._look_again(refused)
                return
            self._told.words["conflict"] += 1
            self._told.exchanges.append(Exchange("CommitTransaction", request, refusal=refused.reason))
            await self._see_conflict()
            return
        if answer.steps_committed != len(self._told.live):
            raise Surprise(
                f"{self._told.name}: {answer.steps_committed} steps committed of {len(self._told.live)}"
            )
        self._told.status = "COMMITTED"
        self._told.exchanges.append(Exchange("CommitTransaction", request, answer))

    async def _see_conflict(self) -> None:
        """Take note of what a conflict did: ended the transaction, or took it back to where it used the key."""
        told = self._told
        view = await self._view_at_rest()
        if view.status in ("ROLLED_BACK", "FAILED"):
            if view.status != "FAILED" and told.resumes:
                raise Surprise(f"{told.name}: a conflict ended it as {view.status}")
            self._end(view.status)
            return
        if view.generation <= told.generation or view.next_step_id > len(told.live):
            raise Surprise(f"{told.name}: after a conflict it is {view}")
        told.truncate(view.next_step_id)
        told.generation = view.generation

    async def roll_back(self) -> None:
        """Abort, whatever is in the way."""
        request = pb.RollbackTransactionRequest(
            transaction_id=self._told.transaction_id,
            reason="enough",
            accept_irreversible=True,
            request_id=self._new_id("rollback"),
        )
        try:
            answer = await self._settled("RollbackTransaction", request)
        except Refused as refused:
            await self._look_again(refused)
            return
        self._end("ROLLED_BACK")
        self._told.exchanges.append(Exchange("RollbackTransaction", request, answer))

    async def _rewind(self, to_step: int, running: Call | None = None) -> bool:
        """Rewind, perhaps while a step runs; return whether that step is gone (True where none ran)."""
        told = self._told
        request = pb.RewindRequest(
            transaction_id=told.transaction_id,
            to_step=to_step,
            reason="a better idea",
            generation=told.generation,
            accept_irreversible=self._chance.random() < 0.3,
            request_id=self._new_id("rewind"),
        )
        passed = [step.call.tool for step in told.live[to_step - 1 :]]
        passes_pivot = "crash.send" in passed
        may_be_refused = passes_pivot or (running is not None and running.tool == "crash.send")
        try:
            answer = await self._settled("Rewind", request)
        except Refused as refused:
            known = refused.reason == "IRREVERSIBLE_STEP" or (running and refused.reason in _UNSETTLED)
            if not (known and (may_be_refused or running) and not request.accept_irreversible):
                # A step that failed meanwhile was answered by a rewind of its own, or ended it all.
                allowed = ("STALE_GENERATION", "ROLLBACK_INCOMPLETE", "TRANSACTION_ENDED") if running else ()
                if refused.reason in allowed:
                    return False
                await self._look_again(refused)
            return False
        if not told.resumes and not answer.next_step_id:
            await self._see_end()  # it was aborted in the midst of the rewind
            return True
        # A step that failed meanwhile may have had its own rewind held, at a lower step: this one went on with that.
        went_on = running is not None and 0 < answer.next_step_id < to_step
        if (answer.next_step_id != to_step and not went_on) or (
            passes_pivot and not request.accept_irreversible
        ):
            raise Surprise(f"{told.name}: rewind to {to_step} answered {answer}")
        told.exchanges.append(Exchange("Rewind", request, answer))
        if answer.generation == told.generation:
            return False  # there was nothing yet to undo
        told.truncate(answer.next_step_id)
        told.generation = answer.generation
        return True

    async def _repeat_something(self) -> None:
        """Send a request again that was answered for good."""
        exchange = self._chance.choice(self._told.exchanges)
        try:
            answer = await self._call(exchange.method, exchange.request)
        except Refused as refused:
            if refused.reason != exchange.refusal:
                raise Surprise(f"{self._told.name}: {exchange.method} is refused now: {refused}") from None
            return
        difference = "it was refused" if exchange.refusal else differs(exchange, answer)
        if difference:
            raise Surprise(f"{self._told.name}: {exchange.method} answered anew: {difference}")

    # --- steps ------------------------------------------------------------------------------

    async def _step(self) -> None:
        call = self._draw_call(tuple(_TOOLS))
        await self._execute("ExecuteStep", self._step_request(call), [call])

    def _step_request(self, call: Call) -> pb.ExecuteStepRequest:
        return pb.ExecuteStepRequest(
            transaction_id=self._told.transaction_id,
            step_id=self._told.next_step,
            generation=self._told.generation,
            tool_name=call.tool,
            arguments_json=json.dumps(call.arguments),
            request_id=call.request_id,
        )

    async def _interrupted_step(self) -> None:
        """Send a step, and rewind or cancel it before it is answered."""
        told = self._told
        call = self._draw_call(tuple(_TOOLS), seconds=self._chance.random() * 0.1)
        told.calls[call.entry] = call
        request = self._step_request(call)
        sent = asyncio.create_task(self._answer_of(request))
        await asyncio.sleep(self._chance.random() * 0.05)
        if self._chance.random() < 0.5:
            passed = await self._rewind(self._chance.randint(1, told.next_step), running=call)
        else:
            await self._cancel()
            passed = False
        await sent
        if not passed and told.status == "OPEN":
            # It is not gone: what became of it is what the same request is answered now.
            await self._execute("ExecuteStep", request, [call])

    async def _answer_of(self, request: Any) -> None:
        with suppress(Refused):
            await self._call("ExecuteStep", request)

    async def _cancel(self) -> None:
        request = pb.CancelStepRequest(
            transaction_id=self._told.transaction_id,
            step_id=self._told.next_step,
            reason="it takes too long",
            generation=self._told.generation,
            request_id=self._new_id("cancel"),
        )
        try:
            await self._call("CancelStep", request)
        except Refused as refused:
            # It has ended (and perhaps all with it), never began, or its undo holds it: the step's own answer says.
            if refused.reason not in _NOT_CANCELLED and self._told.resumes:
                raise Surprise(f"{self._told.name}: {refused}") from None

    async def _group(self) -> None:
        tools = tuple(name for name in _TOOLS if name != "crash.send")
        calls = [self._draw_call(tools) for _ in range(self._chance.randint(2, 4))]
        request = pb.ExecuteStepGroupRequest(
            transaction_id=self._told.transaction_id,
            step_id=self._told.next_step,
            generation=self._told.generation,
            members=[
                pb.GroupMember(
                    tool_name=call.tool, arguments_json=json.dumps(call.arguments), request_id=call.request_id
                )
                for call in calls
            ],
        )
        await self._execute("ExecuteStepGroup", request, calls)

    async def _execute(self, method: str, request: Any, calls: list[Call]) -> None:
        told = self._told
        told.calls |= {call.entry: call for call in calls}
        first = told.next_step
        succeeded_by_word: set[int] = set()
        while True:
            try:
                answer = await self._call(method, request)
            except Refused as refused:
                if refused.reason != "STEP_IN_DOUBT":
                    await self._look_again(refused, allowed=("STALE_GENERATION", "ROLLBACK_INCOMPLETE"))
                    return
                # One of a group, of which others were lost: they are run once it is settled.
                answers = []
            else:
                answers = list(answer.responses) if method == "ExecuteStepGroup" else [answer]
            if any(item.rollback_incomplete for item in answers):
                await self.settle_held()
            elif not answers or any(item.status == _IN_DOUBT for item in answers):
                # One, and then again: it may have been the last, and what is answered then is another thing.
                step_id = await self._doubtful_step()
                if step_id and await self._resolve(step_id, calls[step_id - first]):
                    succeeded_by_word.add(step_id)
                if told.status != "OPEN":
                    return
            else:
                break
        told.exchanges.append(Exchange(method, request, answer))
        told.steps += len(calls)
        if not told.resumes and any(item.rewound or item.status == _FAILED for item in answers):
            await self._see_end()  # perhaps it was aborted with all the rest before it was answered
        else:
            self._take(first, calls, answers, succeeded_by_word)

    def _take(self, first: int, calls: list[Call], answers: list[Any], by_word: set[int]) -> None:
        told = self._told
        statuses = {item.status for item in answers}
        if statuses == {_SUCCESS} and not any(item.rewound for item in answers):
            for number, (call, item) in enumerate(zip(calls, answers, strict=True), start=first):
                output = json.loads(item.output_json)
                self._check_output(call, output, number in by_word, len(calls) > 1)
                edges = tuple(
                    (edge.from_step, number, edge.source_key, edge.target_key, edge.kind)
                    for edge in item.dependencies
                )
                told.live.append(
                    LiveStep(number, first, call, item.attempt, output, edges, number in by_word)
                )
            if answers[-1].next_step_id != told.next_step or answers[-1].generation != told.generation:
                raise Surprise(
                    f"{told.name}: after step {told.next_step - 1} the next is {answers[-1].next_step_id}"
                )
            return
        if _FAILED in statuses:
            self._end("FAILED")
            return
        if _ROLLED_BACK not in statuses:
            raise Surprise(f"{told.name}: step {first} was answered {answers}")
        decision = next(item for item in answers if item.status == _ROLLED_BACK)
        pivots = [step.number for step in told.live if step.call.tool == "crash.send"]
        if decision.next_step_id > told.next_step or decision.next_step_id <= max(pivots, default=0):
            raise Surprise(f"{told.name}: step {first} failed and the next is {decision.next_step_id}")
        told.truncate(decision.next_step_id)
        told.generation = decision.generation

    def _check_output(self, call: Call, output: Any, by_word: bool, in_group: bool) -> None:
        """See that the step saw the state that the live steps before it left."""
        if output.get("entry") != call.entry:
            raise Surprise(f"{self._told.name}: {call.entry} was answered with {output}")
        before = output.get("before", output.get("found"))
        if by_word or before is None or in_group:
            return
        state = self._told.state()
        if before != {key: state.get(key) for key in before}:
            raise Surprise(f"{self._told.name}: {call.entry} saw {before} and not {state}")

    def _draw_call(self, tools: tuple[str, ...], seconds: float = 0.0) -> Call:
        chance, told = self._chance, self._told
        self._made += 1
        entry = f"{told.name}.{self._made}"
        tool = chance.choices(tools, [_TOOLS[name] for name in tools])[0]
        arguments: dict[str, Any] = {"entry": entry}
        if told.live and chance.random() < 0.4:
            source = chance.choice(told.live).number
            arguments["ref"] = f"${{steps.{source}.entry}}"
        if tool == "crash.look":
            arguments["keys"] = [self._key() for _ in range(2)]
        elif tool != "crash.send":
            self._draw_changes(arguments)
        if tool == "crash.write" and chance.random() < 0.2:
            arguments["counter"] = chance.choice(COUNTERS)
        dice = chance.random()
        if seconds:
            arguments["seconds"] = round(seconds, 3)
        elif dice < 0.25:
            arguments["seconds"] = round(chance.random() * 0.05, 3)
        elif dice < 0.26:
            arguments["seconds"] = 1.1  # longer than a step may take without a row of its own
        self._draw_failure(tool, arguments)
        return Call(tool, entry, self._new_id("step"), arguments)

    def _draw_changes(self, arguments: dict[str, Any]) -> None:
        chance = self._chance
        if chance.random() < 0.7:
            arguments["puts"] = {
                self._key(): None if chance.random() < 0.1 else arguments["entry"]
                for _ in range(chance.randint(1, 2))
            }
        if chance.random() < 0.35:
            arguments["stage"] = [
                [chance.choice(_CHANNELS), {"entry": arguments["entry"], "part": part}]
                for part in range(chance.randint(1, 3))
            ]

    def _draw_failure(self, tool: str, arguments: dict[str, Any]) -> None:
        chance = self._chance
        dice = chance.random()
        if dice < 0.09:
            arguments["fail"] = "no such user"
            if "ref" in arguments and chance.random() < 0.5:
                arguments["fail_keys"] = ["ref"]
        elif dice < 0.16:
            if tool == "crash.set":
                arguments["unknown"] = 9 if chance.random() < 0.3 else 1
            elif tool == "crash.book":
                arguments["unknown"] = True
            elif tool == "crash.send":
                arguments["unknown"] = chance.choice(("before", "after"))
        if arguments.get("unknown") == 9:
            # It may be settled by word, and then its state and effects were never heard of.
            arguments.pop("puts", None)
            arguments.pop("stage", None)
        if tool == "crash.book" and chance.random() < 0.2:
            arguments["undo_failures"] = chance.choice((1, 4))

    def _key(self) -> str:
        return f"{self._told.name}/{self._chance.choice('abcde')}"

    # --- what only a person settles -----------------------------------------------------------

    async def _doubtful_step(self) -> int:
        """Return the first step in doubt; 0 if there is none any more."""
        view = await self._view()
        doubtful = (
            step.step_id for step in view.running_steps if step.state == pb.STEP_ATTEMPT_STATE_IN_DOUBT
        )
        return min(doubtful, default=0)

    async def _resolve(self, step_id: int, call: Call) -> bool:
        """Say what became of a step in doubt, as the world has it; return whether it was said to have succeeded."""
        happened = self._world.has_happened(call.entry)
        request = pb.ResolveStepRequest(
            transaction_id=self._told.transaction_id,
            step_id=step_id,
            generation=self._told.generation,
            request_id=self._new_id("resolve"),
        )
        if happened:
            request.resolution = pb.STEP_RESOLUTION_SUCCEEDED
            request.output_json = json.dumps({"entry": call.entry})
        elif self._chance.random() < 0.6:
            request.resolution = pb.STEP_RESOLUTION_RETRY
        else:
            request.resolution = pb.STEP_RESOLUTION_FAILED
            request.error = "it never arrived"
        self._told.words[pb.StepResolution.Name(request.resolution)] += 1
        try:
            await self._call("ResolveStep", request)
        except Refused as refused:
            await self._look_again(refused, allowed=("ROLLBACK_INCOMPLETE",))
        return happened

    async def _settled(self, method: str, request: Any) -> Any:
        """Make a rewind or an abort, and see its undo through."""
        while True:
            answer = await self._call(method, request)
            if not answer.rollback_incomplete:
                return answer
            await self.settle_held()

    async def settle_held(self) -> None:
        """Run the undo actions that failed until none holds the transaction."""
        told = self._told
        while True:
            found = await self._call(
                "ListCompensations", pb.ListCompensationsRequest(transaction_id=told.transaction_id)
            )
            if not found.compensations:
                return
            for compensation in found.compensations:
                await self._settle_compensation(compensation)

    async def _settle_compensation(self, compensation: Any) -> None:
        told = self._told
        request: Any
        if not compensation.action:  # of an effect that came late and has no undo: there is only to see it
            told.seen_late.add((compensation.step_id, compensation.attempt))
            method, request = (
                "ResolveCompensation",
                pb.ResolveCompensationRequest(resolution=pb.COMPENSATION_RESOLUTION_KEPT, note="seen"),
            )
        elif self._chance.random() < 0.15:
            told.kept.add(json.loads(compensation.arguments_json)["entry"])
            told.words["KEPT"] += 1
            method, request = (
                "ResolveCompensation",
                pb.ResolveCompensationRequest(
                    resolution=pb.COMPENSATION_RESOLUTION_KEPT, note="let it stand"
                ),
            )
        else:
            method, request = "RetryCompensation", pb.RetryCompensationRequest()
        request.transaction_id = told.transaction_id
        request.compensation_id = compensation.compensation_id
        request.request_id = self._new_id("undo")
        try:
            await self._call(method, request)
        except Refused as refused:
            # An abort after a crash may have run it in between, and so may the server that goes on with a rewind
            # which was cut off: it runs again what had failed by then. In either case it is owed no longer.
            if not refused.reason.startswith("COMPENSATION_NOT_"):
                raise Surprise(f"{told.name}: {refused}") from None
            if told.resumes and compensation.compensation_id in await self._owed():
                raise Surprise(f"{told.name}: {refused}, and yet it is listed") from None

    async def _owed(self) -> set[str]:
        found = await self._call(
            "ListCompensations", pb.ListCompensationsRequest(transaction_id=self._told.transaction_id)
        )
        return {compensation.compensation_id for compensation in found.compensations}

    async def _look_again(self, refused: Refused, allowed: tuple[str, ...] = ()) -> None:
        """Go on from where a transaction stands that moved by itself, where it may have."""
        told = self._told
        if refused.code is not grpc.StatusCode.FAILED_PRECONDITION:
            raise Surprise(f"{told.name}: {refused}")
        if refused.reason == "TRANSACTION_ENDED":
            if told.resumes:
                raise Surprise(f"{told.name}: {refused}")
        elif refused.reason not in allowed and told.resumes:
            raise Surprise(f"{told.name}: {refused}")
        before = told.next_step
        view = await self._see_end()
        if told.status == "OPEN" and view.next_step_id != before:
            raise Surprise(f"{told.name}: the next step is {view.next_step_id} and not {before}")

    async def _see_end(self) -> Any:
        """Read the transaction, and take note if it ended."""
        view = await self._view_at_rest()
        if view.status in ("ROLLED_BACK", "FAILED"):
            if self._told.resumes:
                raise Surprise(f"{self._told.name}: it ended as {view.status}: {view.abort_reason}")
            self._end(view.status)
        else:
            self._told.truncate(view.next_step_id)
            self._told.generation = view.generation
        return view

    async def _view_at_rest(self) -> Any:
        """Read the transaction once nothing is held and no server, perhaps a dead one, is still taking it back."""
        async with asyncio.timeout(_REST_SECONDS):
            while True:
                await self.settle_held()
                view = await self._view()
                if view.status != "ROLLING_BACK":
                    return view
                await asyncio.sleep(_REST_PAUSE_SECONDS)

    async def _view(self) -> Any:
        return await self._call(
            "GetTransaction", pb.GetTransactionRequest(transaction_id=self._told.transaction_id)
        )

    def _end(self, status: str) -> None:
        self._told.status = status
        self._told.truncate(0)

    def _new_id(self, what: str) -> str:
        self._made += 1
        return f"{self._told.name}:{what}:{self._made}:{self._chance.getrandbits(32):08x}"


def differs(exchange: Exchange, answer: Any) -> str:
    """Return in what an answer differs from the one first given; empty if in nothing that may not."""
    first, again = exchange.response, answer
    pairs = (
        zip(first.responses, again.responses, strict=True)
        if hasattr(first, "responses")
        else [(first, again)]
    )
    for before, after in pairs:
        copies = []
        for item in (before, after):
            copy = type(item)()
            copy.CopyFrom(item)
            for name in ("replayed", "rewound"):
                if name in copy.DESCRIPTOR.fields_by_name:
                    copy.ClearField(name)
            copies.append(copy)
        if copies[0] != copies[1]:
            return f"{copies[0]} then {copies[1]}"
    return ""
