"""What Python makes of every template and conversation.  Run by itself, in the
environment that has transformers and Jinja2:

    python reference.py TEMPLATES_DIR CONVERSATIONS.json

One line of JSON on stdout for each template, in the order of the files' names:
{"name": …, "rendered": [text, or null where Python refuses, …], "errors": [type name or null, …]}
"""
import datetime
import json
import pathlib
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

NOW = datetime.datetime(2026, 3, 7, 9, 5, 3)


def main(folder, conversations):
    with open(conversations, encoding="utf-8") as file:
        contexts = json.load(file)
    for path in sorted(pathlib.Path(folder).glob("*.jinja")):
        with open(path, encoding="utf-8", newline="") as file:
            source = file.read()
        rendered, errors = [], []
        try:
            template = _compile_jinja_template(source)
        except Exception as error:  # noqa: BLE001: whatever it is, no conversation is rendered
            rendered, errors = [None] * len(contexts), [type(error).__name__] * len(contexts)
        else:
            for context in contexts:
                try:
                    text = template.render(strftime_now=NOW.strftime, **context)
                    text.encode()
                    rendered.append(text)
                    errors.append(None)
                except Exception as error:  # noqa: BLE001: the engine answers any of them with 400
                    rendered.append(None)
                    errors.append(f"{type(error).__name__}: {error}"[:200])
        print(json.dumps({"name": path.stem, "rendered": rendered, "errors": errors}))


if __name__ == "__main__":
    main(*sys.argv[1:])
