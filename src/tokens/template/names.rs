//! Names that Jinja2 3.1.6 and Python 3.11 know.

/// Takes the place of an unknown filter that is not reached at once.
pub const NO_FILTER: &str = "__no_filter";

/// The same for a test.
pub const NO_TEST: &str = "__no_test";

/// Jinja2's filters (`filters.py` `FILTERS`).
pub const FILTERS: [&str; 54] = [
    "abs", "attr", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape", "filesizeformat", "first", "float", "forceescape", "format", "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "pprint", "random", "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "slice", "sort", "string", "striptags", "sum", "title", "tojson", "trim", "truncate", "unique", "upper", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr",
];

/// Jinja2's tests that have a name (`tests.py` `TESTS`).
pub const TESTS: [&str; 33] = [
    "boolean", "callable", "defined", "divisibleby", "eq", "equalto", "escaped", "even", "false", "filter", "float", "ge", "greaterthan", "gt", "in", "integer", "iterable", "le", "lessthan", "lower", "lt", "mapping", "ne", "none", "number", "odd", "sameas", "sequence", "string", "test", "true", "undefined", "upper",
];

/// Methods of Python's `dict`, `list` and `str`: an attribute that names one is the method.
pub const METHODS: [&str; 64] = [
    "append", "capitalize", "casefold", "center", "clear", "copy", "count", "encode", "endswith", "expandtabs", "extend", "find", "format", "format_map", "fromkeys", "get", "index", "insert", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "items", "join", "keys", "ljust", "lower", "lstrip", "maketrans", "partition", "pop", "popitem", "remove", "removeprefix", "removesuffix", "replace", "reverse", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "setdefault", "sort", "split", "splitlines", "startswith", "strip", "swapcase", "title", "translate", "update", "upper", "values", "zfill",
];

/// Methods of `dict`.
pub const OF_DICT: [&str; 11] = [
    "clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values",
];

/// Methods of `list`.
pub const OF_LIST: [&str; 11] = [
    "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort",
];

/// Methods of `str`.
pub const OF_STR: [&str; 47] = [
    "capitalize", "casefold", "center", "count", "encode", "endswith", "expandtabs", "find", "format", "format_map", "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip", "maketrans", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "translate", "upper", "zfill",
];
