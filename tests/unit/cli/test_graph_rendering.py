"""The dependency graph in the terminal."""

from tests.support.sample_records import edge, node, owner_graph

from agenttx.records import (
    AttemptState,
    DependencyGraph,
    DependencyKind,
    PathElement,
    PathSource,
    RootCause,
)
from agenttx_server.cli.rendering.graph import graph_tree

# As find_root_cause answers (9, "user_id"): 5 passed the value on, under other names than it took it.
OWNER_CAUSE = RootCause(
    2,
    (
        PathElement(9, "user_id", PathSource.ERROR_KEY),
        PathElement(5, "owner_id", PathSource.EXPLICIT_EDGE),
        PathElement(2, "id", PathSource.EXPLICIT_EDGE),
    ),
)


def test_each_step_is_followed_by_what_it_used(shown):
    assert shown(graph_tree(owner_graph())) == "\n".join(
        [
            "2 create_user",
            "5 lookup_owner",
            "  └─ 2.id → user",
            "9 insert_order",
            "  ├─ 5.owner_id → user_id",
            "  └─ 2.name → name",
        ]
    )


def test_the_way_to_the_root_cause_is_marked_also_without_colour(shown):
    assert shown(graph_tree(owner_graph(), OWNER_CAUSE)) == "\n".join(
        [
            "2 create_user  ◀ root cause",
            "5 lookup_owner",
            "  └─ 2.id → user  ◀",
            "9 insert_order",
            "  ├─ 5.owner_id → user_id  ◀",
            "  └─ 2.name → name",
            "",
            "root cause: 9.user_id ← 5.owner_id ← 2.id",
        ]
    )


def test_the_way_is_coloured_and_the_rest_is_not(coloured):
    lines = coloured(graph_tree(owner_graph(), OWNER_CAUSE)).splitlines()
    assert "\x1b[1;31m" in lines[0]
    assert "\x1b[1;33m" in lines[2]
    assert "\x1b[1;33m" not in lines[5]


def test_a_path_that_names_the_passed_through_inputs_marks_the_same(shown):
    path = (
        OWNER_CAUSE.path[0],
        OWNER_CAUSE.path[1],
        PathElement(5, "user", PathSource.PASS_THROUGH),
        OWNER_CAUSE.path[2],
    )
    lines = shown(graph_tree(owner_graph(), RootCause(2, path))).splitlines()
    assert [line for line in lines if line.endswith("◀")] == [
        "  └─ 2.id → user  ◀",
        "  ├─ 5.owner_id → user_id  ◀",
    ]


def test_keys_that_differ_in_case_are_the_same_way(shown):
    graph = DependencyGraph((node(1), node(2)), (edge(1, "UserId", 2, "userid"),))
    cause = RootCause(
        1,
        (PathElement(2, "USERID", PathSource.ERROR_KEY), PathElement(1, "userid", PathSource.EXPLICIT_EDGE)),
    )
    assert "1.UserId → userid  ◀" in shown(graph_tree(graph, cause))


def test_dependencies_by_value_have_an_arrow_of_their_own_which_is_explained(shown):
    graph = DependencyGraph((node(1), node(2)), (edge(1, "id", 2, "user_id", kind=DependencyKind.IMPLICIT),))
    text = shown(graph_tree(graph))
    assert "1.id ⇢ user_id" in text
    assert "⇢ found by equal values" in text


def test_attempts_and_unfinished_states_are_said(shown):
    graph = DependencyGraph((node(1, attempt=3), node(2, state=AttemptState.IN_DOUBT)), ())
    assert shown(graph_tree(graph)).splitlines() == ["1 kv.put (try 3)", "2 kv.put IN_DOUBT"]


def test_numbers_are_aligned_and_the_branches_with_them(shown):
    graph = DependencyGraph((node(9), node(10)), (edge(9, "a", 10, "b"),))
    assert shown(graph_tree(graph)).splitlines() == [" 9 kv.put", "10 kv.put", "   └─ 9.a → b"]


def test_nothing_in_a_name_reaches_the_terminal_as_a_command(shown):
    graph = DependencyGraph((node(1, "evil\x1b[2J[bold]"), node(2)), (edge(1, "k\r\n9 fake", 2, "x"),))
    text = shown(graph_tree(graph))
    assert "\x1b" not in text
    assert "evil\\x1b[2J[bold]" in text
    assert "1.k  9 fake → x" in text
