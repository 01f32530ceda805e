"""Write docs/api-reference.md from the comments of the protos.

    python scripts/generate_api_reference.py           write it
    python scripts/generate_api_reference.py --check   exit 1 if it is stale

The comments are the one place where the wire contract is described; this page only lays
them out. ``buf build`` gives descriptors with their source comments.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api-reference.md"
PACKAGE = "agenttx.v1"

# Numbers of the fields of FileDescriptorProto and DescriptorProto, which source paths are made of.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _NESTED_ENUMS = 2, 3, 4
_METHODS = _VALUES = 2

_TYPES = {number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()}

Path_ = tuple[int, ...]


class Comments:
    """The leading comment of each element of one file, by source path."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._texts = {
            tuple(location.path): location.leading_comments
            for location in file.source_code_info.location
            if location.leading_comments
        }

    def of(self, path: Path_) -> list[str]:
        """Return the paragraphs of a comment, each on one line where it was wrapped text."""
        paragraphs: list[list[str]] = [[]]
        for line in self._texts.get(path, "").splitlines():
            text = line[1:] if line.startswith(" ") else line
            if not text.strip():
                paragraphs.append([])
            elif text.startswith((" ", "-", "*")) or paragraphs[-1][-1:] == [""]:
                paragraphs[-1].append("\n" + text)
            else:
                paragraphs[-1].append(text)
        return [" ".join(paragraph).replace(" \n", "\n") for paragraph in paragraphs if paragraph]


def _cell(paragraphs: Sequence[str]) -> str:
    text = "<br>".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return text.replace("|", "\\|")


def _type(field: FieldDescriptorProto, maps: dict[str, str]) -> str:
    if field.type_name in maps:
        return maps[field.type_name]
    name = field.type_name.removeprefix(f".{PACKAGE}.").removeprefix(".") or _TYPES[field.type]
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def _map_types(message: DescriptorProto, full_name: str) -> dict[str, str]:
    found = {}
    for nested in message.nested_type:
        if nested.options.map_entry:
            key, value = (_type(field, {}) for field in nested.field)
            found[f".{full_name}.{nested.name}"] = f"map<{key}, {value}>"
    return found


def _service(service: ServiceDescriptorProto, path: Path_, comments: Comments) -> Iterator[str]:
    yield f"## Service `{PACKAGE}.{service.name}`\n"
    yield from (paragraph + "\n" for paragraph in comments.of(path))
    for index, method in enumerate(service.method):
        request, response = (
            f"{'stream ' if streams else ''}{name.removeprefix(f'.{PACKAGE}.')}"
            for streams, name in (
                (method.client_streaming, method.input_type),
                (method.server_streaming, method.output_type),
            )
        )
        yield f"### {method.name}\n"
        yield f"`{method.name}({request}) → {response}`\n"
        yield from (paragraph + "\n" for paragraph in comments.of((*path, _METHODS, index)))


def _message(message: DescriptorProto, path: Path_, comments: Comments, name: str) -> Iterator[str]:
    yield f"### {name}\n"
    yield from (paragraph + "\n" for paragraph in comments.of(path))
    if message.field:
        maps = _map_types(message, f"{PACKAGE}.{name}")
        yield "| no. | field | type | meaning |\n| --- | --- | --- | --- |"
        for index, field in enumerate(message.field):
            meaning = _cell(comments.of((*path, _FIELDS, index)))
            yield f"| {field.number} | `{field.name}` | {_type(field, maps)} | {meaning} |"
        yield ""
    for index, enum in enumerate(message.enum_type):
        yield from _enum(enum, (*path, _NESTED_ENUMS, index), comments, f"{name}.{enum.name}")
    for index, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from _message(nested, (*path, _NESTED, index), comments, f"{name}.{nested.name}")


def _enum(enum: EnumDescriptorProto, path: Path_, comments: Comments, name: str) -> Iterator[str]:
    yield f"### {name}\n"
    yield from (paragraph + "\n" for paragraph in comments.of(path))
    yield "| no. | value | meaning |\n| --- | --- | --- |"
    for index, value in enumerate(enum.value):
        yield f"| {value.number} | `{value.name}` | {_cell(comments.of((*path, _VALUES, index)))} |"
    yield ""


def _page(files: Sequence[FileDescriptorProto]) -> str:
    lines = [
        "# API reference\n",
        "Package `agenttx.v1`. Generated from the comments in `protos/` by `make docs`; edit those.\n",
    ]
    for file in files:
        for index, service in enumerate(file.service):
            lines += _service(service, (_SERVICES, index), Comments(file))
    lines.append("## Messages\n")
    for file in files:
        for index, message in enumerate(file.message_type):
            lines += _message(message, (_MESSAGES, index), Comments(file), message.name)
    lines.append("## Enumerations\n")
    for file in files:
        for index, enum in enumerate(file.enum_type):
            lines += _enum(enum, (_ENUMS, index), Comments(file), enum.name)
    return "\n".join(lines).rstrip() + "\n"


def _descriptors() -> list[FileDescriptorProto]:
    buf = Path(sys.executable).with_name("buf")
    built = subprocess.run([buf, "build", "-o", "-"], cwd=ROOT, check=True, stdout=subprocess.PIPE)
    files = FileDescriptorSet.FromString(built.stdout).file
    ours = [file for file in files if file.package == PACKAGE]
    return sorted(ours, key=lambda file: (file.name != "agenttx/v1/transaction.proto", file.name))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is stale")
    arguments = parser.parse_args()
    page = _page(_descriptors())
    if not arguments.check:
        PAGE.write_text(page)
        return 0
    if PAGE.exists() and PAGE.read_text() == page:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is stale; run `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
