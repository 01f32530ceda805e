"""git: pushes, merges, remotes, paths."""

from __future__ import annotations

from typing import Final

from agenttx_server.engine.records import HintCategory as C

from ..rule import Rule, rule

__all__ = ["RULES"]

RULES: Final[tuple[Rule, ...]] = (
    rule(
        "git.remote_rejected",
        "rejected",
        r"! \[remote rejected\] (?P<from>[^\s]{1,200}) -> (?P<to>[^\s]{1,200}) \((?P<why>[^)\n]{1,200})\)",
        C.PERMISSION_DENIED,
        "the remote rejected {from} -> {to}: {why}",
        "Push to another branch and open a request for it.",
    ),
    rule(
        "git.push_rejected",
        "rejected",
        r"! \[rejected\] {1,12}(?P<from>[^\s]{1,200}) {1,4}-> {1,4}(?P<to>[^\s]{1,200}) "
        r"\((?P<why>[^)\n]{1,120})\)",
        C.CONFLICT,
        "push of {from} to {to} was rejected ({why})",
        "Pull or rebase on the remote branch first, then push again.",
    ),
    rule(
        "git.merge_conflict",
        "conflict",
        r"CONFLICT \((?P<kind>[^)\n]{1,60})\): (?P<detail>[^\n]{1,300})",
        C.CONFLICT,
        "CONFLICT ({kind}): {detail}",
        "Resolve the conflict and commit.",
    ),
    rule(
        "git.would_be_overwritten",
        "overwritten",
        r"Your local changes to the following files would be overwritten by "
        r"(?P<what>\w{1,20}):\s{1,8}(?P<path>[^\n]{1,300})",
        C.CONFLICT,
        "local changes to {path} would be overwritten by {what}",
        "Commit or stash them first.",
    ),
    rule(
        "git.untracked_overwritten",
        "untracked",
        r"The following untracked working tree files would be overwritten by "
        r"(?P<what>\w{1,20}):\s{1,8}(?P<path>[^\n]{1,300})",
        C.CONFLICT,
        "untracked {path} would be overwritten by {what}",
        "Move or remove it first.",
    ),
    rule(
        "git.authentication",
        "authentication username credentials password",
        r"Authentication failed for '(?P<url>[^'\n]{1,300})'|could not read (?:Username|Password) for "
        r"'(?P<url2>[^'\n]{1,300})'",
        C.AUTHENTICATION,
        ("authentication failed for {url}", "git has no credentials for {url2}"),
        "Correct the git credentials.",
    ),
    rule(
        "git.not_found",
        "repository",
        r"repository '(?P<url>[^'\n]{1,300})' not found|ERROR: Repository not found|"
        r"'(?P<path>[^'\n]{1,300})' does not appear to be a git repository",
        C.MISSING_RECORD,
        (
            "repository {url} not found",
            "{path} does not appear to be a git repository",
            "repository not found",
        ),
        "Check the repository's name and your access to it.",
    ),
    rule(
        "git.pathspec",
        "pathspec",
        r"pathspec '(?P<target>[^'\n]{1,200})' did not match any",
        C.MISSING_RECORD,
        "pathspec '{target}' did not match any file or branch known to git",
        "Check the name, or fetch first.",
    ),
    rule(
        "git.remote_ref",
        "ref revision refspec branch remote",
        r"(?P<detail>(?:couldn't find remote ref|bad revision|unknown revision|ambiguous argument|src "
        r"refspec|Remote branch|invalid reference|not a valid (?:ref|object name|branch)|no such "
        r"ref)[^\n]{1,200})",
        C.MISSING_RECORD,
        "{detail}",
        "Check the name, or fetch first.",
    ),
    rule(
        "git.not_a_repository",
        "repository",
        r"not a git repository(?: \(or any[^)\n]{0,80}\))?(?:: (?P<path>[^\n]{1,200}))?",
        C.FILE_NOT_FOUND,
        "not a git repository",
        "Run it inside a repository, or clone one first.",
    ),
    rule(
        "git.lock",
        "lock",
        r"Unable to create '(?P<path>[^'\n]{1,300}\.lock)': File exists",
        C.CONFLICT,
        "git lock {path} exists",
        "Wait for the other git process, then retry.",
    ),
    rule(
        "git.branch_exists",
        "branch exists",
        r"(?P<detail>[Aa] branch named '[^'\n]{1,200}' already exists|destination path '[^'\n]{1,300}' "
        r"already exists and is not an empty directory|tag '[^'\n]{1,200}' already exists|remote "
        r"\S{1,80} already exists)",
        C.CONFLICT,
        "{detail}",
        "Use the existing one, or another name.",
    ),
    rule(
        "git.diverged",
        "forward divergent unmerged unrelated",
        r"(?P<detail>Not possible to fast-forward|Need to specify how to reconcile divergent branches|"
        r"refusing to merge unrelated histories|you need to resolve your current index first|have "
        r"unmerged files|Exiting because of an unresolved conflict)[^\n]{0,80}",
        C.CONFLICT,
        "{detail}",
        "Merge or rebase first.",
    ),
    rule(
        "git.patch",
        "patch",
        r"(?:error: )?patch failed: (?P<path>[^\n]{1,200})|(?<!\S)(?P<path2>[^\s]{1,200}): patch does "
        r"not apply",
        C.CONFLICT,
        ("patch failed: {path}", "{path2}: patch does not apply"),
        "Make the patch against the current file.",
    ),
    rule(
        "git.nothing",
        "nothing",
        r"nothing to commit, working tree clean|nothing added to commit",
        C.UNKNOWN,
        "{detail}",
        "Change and add a file first.",
        read=lambda match, cause: {"detail": match[0]},
    ),
)
