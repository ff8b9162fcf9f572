"""Validation of parameters: specs that are checked on construction, and calls that reject unknown keywords."""

import difflib
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import fields
from functools import cache, wraps
from itertools import islice
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Self, TypeVar, Unpack, get_args, get_origin

from engine.errors import ConfigError, quoted

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Spec")


class Refusing(type):
    """Metaclass that turns an unknown keyword into a ConfigError that suggests the nearest known name."""

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        if "__init__" in namespace:
            namespace["__init__"].__signature__ = _signature(namespace["__init__"])

    @property
    def __signature__(cls) -> inspect.Signature:
        """Signature of the constructor, for help() and editors; `__call__` below would hide it."""
        return _constructor(cls)

    if not TYPE_CHECKING:  # type checkers read __init__

        def __call__(cls, *args: Any, **options: Any) -> Any:
            _refuse_unknown(cls.__name__, options, cls.__signature__)
            return super().__call__(*args, **options)


def refusing(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function, as `Refusing` does for classes: an unknown keyword is a ConfigError with a hint."""
    signature = _signature(function)
    function.__signature__ = signature  # type: ignore[attr-defined]  # help() and pdoc unwrap `checked`

    @wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> T:
        _refuse_unknown(f"{function.__name__}()", options, signature)
        return function(*args, **options)

    return checked


@cache
def _constructor(cls: type) -> inspect.Signature:
    """Return the signature of a class's constructor, without `self`."""
    signature = _signature(vars(cls)["__init__"])
    return signature.replace(parameters=list(signature.parameters.values())[1:], return_annotation=cls)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function, with the fields of the specs in place of `**options: Unpack[...Options]`.

    Options that inherit from those of several specs stand for the fields of all of them.
    """
    signature = inspect.signature(function)
    parameters = dict(signature.parameters)
    last = parameters.popitem()[1] if parameters else None
    if last is None or last.kind != inspect.Parameter.VAR_KEYWORD or get_origin(last.annotation) is not Unpack:
        return signature
    options = get_args(last.annotation)[0]
    names = options.__annotations__.keys()
    specs: list[Any] = [spec for spec in Spec.__subclasses__() if spec.options and spec.option_names() <= names]
    added = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for spec in specs
        for field in fields(spec)
        if field.name in names
    ]
    return signature.replace(parameters=[*parameters.values(), *added])


def _refuse_unknown(called: str, options: Mapping[str, Any], signature: inspect.Signature) -> None:
    known = signature.parameters
    for name in options:
        if name not in known:
            raise ConfigError(f"{called} has no parameter {quoted(name)}; {_hint(name, list(known))}")


def _hint(name: str, known: Sequence[str]) -> str:
    """Return a hint for an unknown parameter: where it belongs, else the nearest known name, else all known names."""
    homes = [spec.goes_into for spec in Spec.__subclasses__() if spec.goes_into and name in spec.option_names()]
    if homes:
        return f"it belongs in {' or in '.join(homes)}"
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(one for one in known if one != 'self')}"


class Spec(metaclass=Refusing):
    """Base of the frozen specs.

    goes_into: where callers pass the spec's parameters, for error messages. options: the same parameters as a
    TypedDict, for functions that take them as keywords.
    """

    goes_into = ""
    options: ClassVar[Any] = None

    @classmethod
    def option_names(cls) -> frozenset[str]:
        """Return the names of the parameters that callers pass as keywords: those of `options`, else all."""
        return frozenset(cls.options.__annotations__ if cls.options else cls.__dataclass_fields__)  # type: ignore[attr-defined]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Create the spec from plain values; raises ConfigError for unknown names and values out of range."""
        made: Self = cls(**values)
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return plain values by name, only those that differ from the defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)  # type: ignore[arg-type]
            if getattr(self, field.name) != field.default
        }

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _whole(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        whole = whole_number(value)
        if whole is None or not low <= whole <= high:
            raise ConfigError(f"{name} = {quoted(value)}: must be a whole number from {low:,} to {high:,}")
        self._set(name, whole)

    def _real(self, name: str, low: float, high: float = math.inf) -> None:
        value = getattr(self, name)
        if not is_real(value) or not low <= value <= high:
            top = "upwards" if high == math.inf else f"to {high:g}"
            raise ConfigError(f"{name} = {quoted(value)}: must be a number from {low:g} {top}")
        if type(value) not in (int, float):
            self._set(name, int(value) if isinstance(value, int) else float(value))

    def _one_of(self, name: str, allowed: tuple[Any, ...]) -> None:
        value = getattr(self, name)
        for known in allowed:
            if isinstance(value, type(known)) and value == known:
                self._set(name, known)
                return
        raise ConfigError(f"{name} = {quoted(value)}: must be one of {', '.join(map(str, allowed))}")

    def _texts(self, name: str, most: int, most_characters: int) -> None:
        value = getattr(self, name)
        if value is getattr(type(self), name, None):
            return  # the default
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise ConfigError(f"{name} = {quoted(value)}: must be a list of texts")
        texts = at_most(most, f"{name}: {{}} texts", value)
        self._set(name, tuple(plain_text(name, text, most_characters) for text in texts))


def whole_number(value: object) -> int | None:
    """Convert an integer of any type to int; return None for anything else, also for True and False."""
    if type(value) is int:
        return value
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def is_real(value: object) -> bool:
    """Return True for real numbers of any type, but not for True and False."""
    return type(value) in (int, float) or (isinstance(value, Real) and not isinstance(value, bool))


def at_most(most: int, what: str, given: Iterable[Any]) -> list[Any]:
    """Return all given items as a list. Raises ConfigError for more than `most`, without reading the rest."""
    taken = list(islice(given, most + 1))
    if len(taken) > most:
        number = f"{len(given):,}" if isinstance(given, Sized) else f"more than {most:,}"
        raise ConfigError(f"{what.format(number)}; at most {most:,} are allowed: remove some")
    return taken


def plain_text(name: str, text: object, most_characters: int | None = None) -> str:
    """Return `text` as a plain str.

    Raises ConfigError where it is not text, is too long, or cannot be encoded as UTF-8 (half of a surrogate pair).
    """
    if not isinstance(text, str):
        raise ConfigError(f"{name} = {quoted(text)}: must be text")
    if most_characters is not None and len(text) > most_characters:
        raise ConfigError(f"{name}: {len(text):,} characters; at most {most_characters:,} are allowed: shorten it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{name}: character {error.start + 1:,} is half of a surrogate pair, not text: remove it"
        ) from error
    return str(text)


def given_spec(name: str, value: S | None, kind: type[S]) -> S:
    """Return the spec that was passed as the parameter `name`, the default for None. Raises ConfigError otherwise."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ConfigError(f"{name} = {value!r}: must be {article} {kind.__name__}; {kind.__name__}.from_dict makes one")
    return value
