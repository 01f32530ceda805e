"""Edges by reference and by equal values, the walk to the root cause, and forgetting."""

import pytest

from agenttx_server.engine.dependency_graph import DependencyGraph
from agenttx_server.engine.json_values import MISSING
from agenttx_server.engine.records import DependencyKind, Edge, PathElement, PathSource
from agenttx_server.engine.references import resolve
from agenttx_server.engine.requests import RootCause

EXPLICIT, IMPLICIT = DependencyKind.EXPLICIT, DependencyKind.IMPLICIT


class Agent:
    """Runs steps against a graph as the coordinator does."""

    def __init__(self) -> None:
        self.graph = DependencyGraph()
        self.outputs: dict[int, object] = {}
        self.next_step = 1

    def run(self, arguments, output=MISSING) -> tuple[Edge, ...]:
        step_id = self.next_step
        resolution = resolve(
            arguments,
            step_id=step_id,
            first_invisible_step=step_id,
            output_of=lambda step: self.outputs.get(step, MISSING),
        )
        edges = self.graph.add_step(
            step_id, arguments=resolution.value, explicit=resolution.edges, before_step=step_id
        )
        if output is not MISSING:
            self.graph.record_output(step_id, output)
            self.outputs[step_id] = output
            self.next_step += 1
        return edges

    def skip_to(self, step_id: int) -> None:
        while self.next_step < step_id:
            self.run({}, {})

    def rewind(self, to_step: int) -> None:
        self.graph.rewind(to_step)
        self.outputs = {step: output for step, output in self.outputs.items() if step < to_step}
        self.next_step = to_step


@pytest.fixture
def agent() -> Agent:
    return Agent()


def path(*stops: tuple[int, str]) -> tuple[PathElement, ...]:
    return tuple(PathElement(step_id, key) for step_id, key in stops)


def links(given: object, taken: object) -> tuple[Edge, ...]:
    """The edges of a step with the input ``taken`` after one with the output ``given``."""
    agent = Agent()
    agent.run({}, given)
    return agent.run(taken)


# --- the root cause -----------------------------------------------------------------------


def test_the_example_is_traced_to_the_step_that_created_the_user(agent):
    agent.skip_to(2)
    agent.run({"name": "Ann"}, {"id": "u-7"})
    agent.skip_to(5)
    agent.run({"user": "${steps.2.id}"}, {"owner_id": "u-7"})
    agent.skip_to(9)
    assert agent.run({"user_id": "${steps.5.owner_id}"}) == (Edge(5, 9, "owner_id", "user_id", EXPLICIT),)

    root = agent.graph.find_root_cause(9, "user_id")

    assert root == RootCause(2, path((9, "user_id"), (5, "owner_id"), (5, "user"), (2, "id")))


@pytest.mark.parametrize("key", ["USER_ID", "User_Id", "user_id"])
def test_the_case_of_the_key_does_not_matter(agent, key):
    agent.run({}, {"Id": "u-7"})
    agent.run({"User_ID": "${steps.1.Id}"})
    assert agent.graph.find_root_cause(2, key) == RootCause(1, path((2, key), (1, "Id")))


def test_a_rename_at_each_hop_is_followed(agent):
    agent.run({}, {"a": 71})
    agent.run({"b": "${steps.1.a}"}, {"c": "other"})
    agent.run({"d": "${steps.2.c}"})
    # Step 2 neither passed 71 through nor took it under the name it gave away.
    assert agent.graph.find_root_cause(3, "d").step_id == 2

    agent = Agent()
    agent.run({}, {"a": 71})
    agent.run({"c": "${steps.1.a}"}, {"c": "other"})
    agent.run({"d": "${steps.2.c}"})
    assert agent.graph.find_root_cause(3, "d") == RootCause(1, path((3, "d"), (2, "c"), (1, "a")))


def test_a_value_passed_through_leads_on_under_the_name_it_came_in_by(agent):
    agent.run({}, {"total": 12})
    agent.run({"amount": "${steps.1.total}", "other": 5}, {"sum": 12.0})
    agent.run({"price": "${steps.2.sum}"})
    assert agent.graph.find_root_cause(3, "price") == RootCause(
        1, path((3, "price"), (2, "sum"), (2, "amount"), (1, "total"))
    )


def test_the_path_tells_how_each_stop_was_found(agent):
    agent.run({}, {"total": 12})
    agent.run({"total": 12}, {"sum": 12})
    agent.run({"price": "${steps.2.sum}"})
    assert [
        (stop.step_id, stop.key, stop.source) for stop in agent.graph.find_root_cause(3, "PRICE").path
    ] == [
        (3, "PRICE", PathSource.ERROR_KEY),
        (2, "sum", PathSource.EXPLICIT_EDGE),
        (2, "total", PathSource.PASS_THROUGH),
        (1, "total", PathSource.IMPLICIT_EDGE),
    ]


def test_an_edge_of_both_kinds_is_told_as_explicit():
    graph = DependencyGraph()
    graph.restore(1, arguments={}, edges=(), output={"id": 1})
    graph.restore(2, arguments={}, edges=[Edge(1, 2, "id", "id", kind) for kind in (IMPLICIT, EXPLICIT)])
    assert graph.find_root_cause(2, "id").path[1].source is PathSource.EXPLICIT_EDGE


def test_the_case_of_keys_does_not_matter_where_a_value_is_passed_through(agent):
    agent.run({}, {"Total": 12})
    agent.run({"AMOUNT": "${steps.1.Total}"}, {"Sum": 12})
    agent.run({"price": "${steps.2.Sum}"})
    assert agent.graph.find_root_cause(3, "Price") == RootCause(
        1, path((3, "Price"), (2, "Sum"), (2, "AMOUNT"), (1, "Total"))
    )


@pytest.mark.parametrize("common", [True, None, ""])
def test_values_too_common_to_say_anything_are_not_passed_through(agent, common):
    agent.run({}, {"flag": common})
    agent.run({"flag": "${steps.1.flag}"}, {"result": common})
    agent.run({"answer": "${steps.2.result}"})
    assert agent.graph.find_root_cause(3, "answer").step_id == 2


def test_what_a_failed_step_would_give_is_not_what_it_took(agent):
    agent.run({}, {"a": "x"})
    agent.run({"in": "${steps.1.a}"}, {"out": "x"})
    # The question is about step 2's input "out"; it has none, though its output of that name came from step 1.
    assert agent.graph.find_root_cause(2, "out") == RootCause(None)


def test_of_two_ways_the_earliest_producer_wins_and_the_shortest_path_is_shown(agent):
    agent.run({}, {"id": "u-7"})
    agent.run({"left": "${steps.1.id}"}, {"l": "u-7"})
    agent.run({"right": "${steps.1.id}"}, {"r": "u-7"})
    agent.run({"r": "${steps.3.r}"}, {"far": "u-7"})
    agent.run({"key": "${steps.2.l} ${steps.4.far}"})
    assert agent.graph.find_root_cause(5, "key") == RootCause(
        1, path((5, "key"), (2, "l"), (2, "left"), (1, "id"))
    )


def test_the_shortest_of_two_ways_through_one_input_is_shown(agent):
    agent.run({}, {"id": "u-7"})
    agent.run({"in": "${steps.1.id}"}, {"a": "u-7", "b": "u-7"})
    agent.run({"x": "${steps.2.b}"}, {"near": "u-7"})
    agent.run({"x": "${steps.2.a}"}, {"far": "u-7"})
    agent.run({"x": "${steps.4.far}"}, {"farther": "u-7"})
    agent.run({"key": "${steps.3.near} ${steps.5.farther}"})
    # Step 2 is reached by the long way first: step 4 comes before step 3 on the walk back.
    assert agent.graph.find_root_cause(6, "key") == RootCause(
        1, path((6, "key"), (3, "near"), (3, "x"), (2, "b"), (2, "in"), (1, "id"))
    )


def test_a_way_that_ends_later_does_not_win(agent):
    agent.run({}, {"x": "1a"})
    agent.run({}, {"y": "2b"})
    agent.run({"k": "${steps.2.y} ${steps.1.x}"})
    assert agent.graph.find_root_cause(3, "k").step_id == 1


def test_a_key_that_no_edge_carries_has_no_root(agent):
    agent.run({}, {"id": "u-7"})
    agent.run({"user": "${steps.1.id}"})
    assert agent.graph.find_root_cause(2, "name") == RootCause(None)
    assert agent.graph.find_root_cause(1, "id") == RootCause(None)
    assert agent.graph.find_root_cause(77, "id") == RootCause(None)


def test_a_step_rewound_and_run_again_leaves_no_edge_of_its_first_life(agent):
    agent.skip_to(2)
    agent.run({}, {"id": "u-7"})
    agent.run({"user": "${steps.2.id}"}, {"owner_id": "u-7"})
    agent.run({"user_id": "${steps.3.owner_id}"})
    assert agent.graph.find_root_cause(4, "user_id").step_id == 2

    agent.rewind(2)
    agent.run({}, {"id": "u-8"})
    agent.run({"user": "someone"}, {"owner_id": "u-8"})
    agent.run({"user_id": "${steps.3.owner_id}"})

    assert agent.graph.edges() == (Edge(3, 4, "owner_id", "user_id", EXPLICIT),)
    assert agent.graph.find_root_cause(4, "user_id").step_id == 3


def test_a_chain_of_ten_thousand_steps_needs_no_stack(agent):
    graph = DependencyGraph()
    for step_id in range(1, 10_001):
        explicit = () if step_id == 1 else (Edge(step_id - 1, step_id, "out", "in", EXPLICIT),)
        graph.add_step(step_id, arguments={"in": "v"}, explicit=explicit, before_step=step_id)
        graph.record_output(step_id, {"out": "v"})
    root = graph.find_root_cause(10_000, "in")
    assert root.step_id == 1


def test_a_long_path_is_told_by_its_ends():
    graph = DependencyGraph()
    for step_id in range(1, 1_001):
        explicit = () if step_id == 1 else (Edge(step_id - 1, step_id, "out", "in", EXPLICIT),)
        graph.add_step(step_id, arguments={"in": "v"}, explicit=explicit, before_step=step_id)
        graph.record_output(step_id, {"out": "v"})

    path = graph.find_root_cause(1_000, "in").path

    assert 199 <= len(path) <= 200
    assert [(stop.step_id, stop.key) for stop in path[:3]] == [(1_000, "in"), (999, "out"), (999, "in")]
    assert [(stop.step_id, stop.key) for stop in path[-3:]] == [(2, "out"), (2, "in"), (1, "out")]
    assert [stop.step_id for stop in path] == sorted((stop.step_id for stop in path), reverse=True)


# --- implicit edges -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output_key", "input_key"),
    [
        ("user_id", "user_id"),
        ("id", "user_id"),
        ("user_id", "billing_user_id"),
        ("ID", "user_Id"),
        ("id", "_id"),
        ("_id", "user__id"),
        ("", "user_"),
    ],
)
def test_equal_values_link_under_the_same_key_or_a_suffix_of_it(output_key, input_key):
    assert links({output_key: "u-7"}, {input_key: "u-7"}) == (Edge(1, 2, output_key, input_key, IMPLICIT),)


@pytest.mark.parametrize(
    ("output_key", "input_key"),
    [
        ("id", "userid"),
        ("user_id", "id"),
        ("id", "user_id_"),
        ("id", "id_user"),
        ("ID", "ıd"),
        ("k", "user_\u212a"),
    ],
)
def test_other_keys_do_not_link(output_key, input_key):
    assert links({output_key: "u-7"}, {input_key: "u-7"}) == ()


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (1, 1),
        (1, 1.0),
        (1.0, 1),
        (0, -0.0),
        (2**53, 2.0**53),
        (10**15, 1e15),
        (0.1, 0.1),
        (-5, -5.0),
        (2**64 - 1, 2**64 - 1),
    ],
)
def test_numbers_link_by_their_value(given, taken):
    assert len(links({"n": given}, {"n": taken})) == 1


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (2**53 + 1, 2.0**53),
        (2**64 - 1, 2.0**64),
        (1, True),
        (True, 1),
        (0, False),
        (True, True),
        (None, None),
        ("", ""),
        ("1", 1),
        (1.5, "1.5"),
        ("a", "A"),
        ("n1", 1),
        ("true", True),
        ("a", "ä"),
        (["a"], "b"),
        ({}, {}),
    ],
)
def test_other_values_do_not(given, taken):
    assert links({"k": given}, {"k": taken}) == ()


def test_long_texts_link_though_they_are_not_kept():
    text = "x" * 100_000
    assert len(links({"k": text}, {"k": text})) == 1
    assert links({"k": text}, {"k": text[:-1] + "y"}) == ()


def test_no_text_can_be_taken_for_a_digest_or_for_another_key():
    text = "x" * 1000
    agent = Agent()
    agent.run({}, {"k": text})
    ((leaf, _),) = agent.graph.snapshot().outputs
    _, _, digest = leaf.partition("k")
    assert agent.run({"k": digest, "other_k": digest[1:]}) == ()
    assert links({"a": "sb"}, {"as": "b"}) == ()


def test_keys_of_any_length_link():
    key = "k" * 5000
    assert links({key: 1}, {key: 1}) == (Edge(1, 2, key, key, IMPLICIT),)
    assert links({key.upper(): 1}, {key: 1}) == (Edge(1, 2, key.upper(), key, IMPLICIT),)
    assert len(links({"b": 1}, {"a_" * 5000 + "b": 1})) == 1


def test_leaves_of_nested_objects_and_arrays_carry_the_key_of_their_field():
    output = {"user": {"id": 7, "tags": ["red", ["blue"]]}, "rows": [{"sku": "A"}, {"sku": "B"}]}
    assert links(output, {"order": {"user_id": 7}, "tags": "blue", "sku": ["B", "A"], "rows": "A"}) == (
        Edge(1, 2, "id", "user_id", IMPLICIT),
        Edge(1, 2, "sku", "sku", IMPLICIT),
        Edge(1, 2, "tags", "tags", IMPLICIT),
    )


def test_scalars_without_a_field_never_link():
    assert links("u-7", {"id": "u-7"}) == ()
    assert links({"id": "u-7"}, "u-7") == ()
    assert links(["u-7", ["u-7"]], {"id": "u-7"}) == ()
    assert links([{"id": "u-7"}], [{"id": "u-7"}]) == (Edge(1, 2, "id", "id", IMPLICIT),)


def test_the_most_recent_earlier_step_is_linked_to_and_of_its_keys_the_longest(agent):
    agent.run({}, {"user_id": 7})
    agent.run({}, {"id": 7, "user_id": 8})
    agent.run({}, {"id": 9})
    assert agent.run({"user_id": 7}, {"x": 1}) == (Edge(2, 4, "id", "user_id", IMPLICIT),)
    agent.run({}, {"id": 7, "user_id": 7})
    assert agent.run({"user_id": 7}) == (Edge(5, 6, "user_id", "user_id", IMPLICIT),)


def test_an_output_key_is_shown_as_the_step_spelled_it_and_of_two_spellings_the_first_in_order():
    assert links({"userId": 7, "USERID": 8}, {"userid": [8, 7]}) == (
        Edge(1, 2, "USERID", "userid", IMPLICIT),
        Edge(1, 2, "userId", "userid", IMPLICIT),
    )
    for output in ({"ID": 7, "id": 7, "iD": 7}, {"iD": 7, "id": 7, "ID": 7}):
        assert links(output, {"id": 7}) == (Edge(1, 2, "ID", "id", IMPLICIT),)


def test_a_field_with_a_reference_gets_no_implicit_edge(agent):
    agent.run({}, {"id": "u-7"})
    agent.run({}, {"id": "u-7", "name": "Ann"})
    assert agent.run({"ID": "${steps.1.id}", "id": "u-7", "name": "Ann"}) == (
        Edge(1, 3, "id", "ID", EXPLICIT),
        Edge(2, 3, "name", "name", IMPLICIT),
    )


def test_a_failed_step_gives_nothing(agent):
    agent.run({}, {"id": 1})
    agent.run({"id": 1})
    assert agent.graph.edges_of(2) == (Edge(1, 2, "id", "id", IMPLICIT),)
    agent.rewind(2)
    agent.run({}, {})
    assert agent.run({"id": 1}) == (Edge(1, 3, "id", "id", IMPLICIT),)


def test_members_of_a_group_do_not_link_to_one_another():
    graph = DependencyGraph()
    graph.add_step(1, arguments={}, explicit=(), before_step=1)
    graph.record_output(1, {"id": "u-7"})
    graph.add_step(2, arguments={}, explicit=(), before_step=2)
    graph.record_output(2, {"id": "u-7"})
    assert graph.add_step(3, arguments={"id": "u-7"}, explicit=(), before_step=2) == (
        Edge(1, 3, "id", "id", IMPLICIT),
    )
    graph.record_output(3, {"id": "u-7"})
    assert graph.add_step(4, arguments={"id": "u-7"}, explicit=(), before_step=4) == (
        Edge(3, 4, "id", "id", IMPLICIT),
    )


def test_a_sibling_that_has_completed_is_not_linked_to_even_if_it_is_the_only_producer():
    graph = DependencyGraph()
    graph.add_step(1, arguments={}, explicit=(), before_step=1)
    graph.record_output(1, {"id": "u-7"})
    assert graph.add_step(2, arguments={"id": "u-7"}, explicit=(), before_step=1) == ()


def test_a_completed_member_that_is_run_again_leaves_the_outputs_of_its_siblings():
    graph = DependencyGraph()
    for step_id in (1, 2, 3):
        graph.add_step(step_id, arguments={}, explicit=(), before_step=1)
        graph.record_output(step_id, {"id": 5})
    graph.discard(2)
    graph.add_step(2, arguments={}, explicit=(), before_step=1)
    graph.record_output(2, {"id": 6})
    assert [
        edge.from_step for edge in graph.add_step(4, arguments={"id": [5, 6]}, explicit=(), before_step=4)
    ] == [2, 3]
    graph.discard(4)
    graph.rewind(3)
    assert [
        edge.from_step for edge in graph.add_step(3, arguments={"id": [5, 6]}, explicit=(), before_step=3)
    ] == [1, 2]


def test_outputs_may_be_recorded_in_any_order():
    graph = DependencyGraph()
    for step_id in (1, 2, 3):
        graph.add_step(step_id, arguments={}, explicit=(), before_step=1)
    for step_id in (3, 1, 2):
        graph.record_output(step_id, {"id": 5})
    assert graph.add_step(4, arguments={"id": 5}, explicit=(), before_step=3)[0].from_step == 2
    assert graph.add_step(5, arguments={"id": 5}, explicit=(), before_step=4)[0].from_step == 3


def test_a_table_of_a_million_numbers_leaves_room_for_the_fields_beside_it():
    table = {"a_row": list(range(60_000)), "z_row": list(range(60_000)), "user_id": "u-7", "Alone": 4}
    assert {edge.source_key for edge in links(table, {"user_id": "u-7", "alone": 4})} == {"user_id", "Alone"}
    graph = DependencyGraph()
    graph.add_step(1, arguments={}, explicit=(), before_step=1)
    graph.record_output(1, table)
    assert len(graph.snapshot().outputs) == 10_000


def test_what_is_kept_of_a_large_output_does_not_depend_on_its_order():
    values = [f"id-{number:05}" for number in range(12_000)] + [float(number) for number in range(3)]
    snapshots = []
    for order in (values, values[::-1]):
        graph = DependencyGraph()
        graph.add_step(1, arguments={}, explicit=(), before_step=1)
        graph.record_output(1, {"id": order})
        snapshots.append(graph.snapshot())
    assert snapshots[0] == snapshots[1]
    assert snapshots[0].outputs[-1][0] == "2:idsid-09996"


# --- one graph and another ----------------------------------------------------------------


def test_adding_a_step_twice_or_below_an_unknown_producer_changes_nothing(agent):
    agent.run({}, {"id": 1})
    before = agent.graph.snapshot()
    with pytest.raises(ValueError, match="step 1 is in the graph already"):
        agent.graph.add_step(1, arguments={}, explicit=(), before_step=1)
    with pytest.raises(KeyError):
        agent.graph.add_step(2, arguments={}, explicit=(Edge(9, 2, "a", "a", EXPLICIT),), before_step=2)
    with pytest.raises(ValueError, match="output of step 1 is recorded already"):
        agent.graph.record_output(1, {"id": 1})
    with pytest.raises(KeyError):
        agent.graph.record_output(2, {})
    assert agent.graph.snapshot() == before


def test_a_discarded_attempt_is_as_if_it_had_not_been(agent):
    agent.run({}, {"id": 1})
    before = agent.graph.snapshot()
    agent.run({"id": 1})
    agent.graph.discard(2)
    agent.graph.discard(2)
    assert agent.graph.snapshot() == before
    assert agent.run({"id": 1.0}) == (Edge(1, 2, "id", "id", IMPLICIT),)


def test_a_restored_graph_equals_the_one_that_grew(agent):
    agent.run({"n": 1}, {"id": "u-7", "userName": "Ann"})
    agent.run({"user": "${steps.1.id}", "user_name": "Ann"}, {"owner": "u-7", "n": 1})
    agent.run({"owner": "u-7"}, None)
    agent.run({"owner": "u-7"})
    arguments = [{"n": 1}, {"user": "u-7", "user_name": "Ann"}, {"owner": "u-7"}, {"owner": "u-7"}]

    restored = DependencyGraph()
    for step_id in agent.graph.step_ids():
        restored.restore(
            step_id,
            arguments=arguments[step_id - 1],
            edges=agent.graph.edges_of(step_id),
            output=agent.outputs.get(step_id, MISSING),
        )

    assert restored.snapshot() == agent.graph.snapshot()
    assert restored.find_root_cause(4, "owner") == agent.graph.find_root_cause(4, "owner")


def test_a_rewind_forgets_every_later_step_and_nothing_else(agent):
    snapshots = []
    for step_id in range(1, 30):
        snapshots.append(agent.graph.snapshot())
        agent.run({"prev_id": f"id-{step_id - 1}", "same": 1}, {"id": f"id-{step_id}", "same": 1})
    for to_step in (29, 20, 20, 7, 2, 1, 1):
        agent.graph.rewind(to_step)
        assert agent.graph.snapshot() == snapshots[to_step - 1]
    assert agent.graph.step_ids() == ()
    assert agent.graph.edges() == ()
