"""_core.pyi says what the module has: the same names, parameters and defaults. So does eval/_core.pyi
of its submodule."""

import ast
import inspect
import re

import pytest

import topkv
from topkv import _core


#: What the package re-exports, and what topkv.eval alone uses.
STUBS = {"_core.pyi": _core, "eval/_core.pyi": _core._eval}


def parsed(repository, name):
    return ast.parse((repository / "bindings" / "topkv" / name).read_text())


@pytest.fixture(scope="module")
def stub(repository):
    return parsed(repository, "_core.pyi")


def parameters(function):
    """What a call may look like: names, kinds and defaults of an ast.FunctionDef."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    listed = [(a.arg, "positional", d) for a, d in zip(positional, defaults)]
    listed += [(a.arg, "keyword", d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults)]
    return [(n, kind, None if d is None else ast.literal_eval(d)) for n, kind, d in listed]


def overloads(docstring, name):
    """Parameters of each overload, out of the signatures that pybind11 writes."""
    signatures = re.findall(rf"^(?:\d+\. )?({name}\(.*\)) -> ", docstring, re.MULTILINE)
    return [parameters(ast.parse(f"def {signature}: ...").body[0]) for signature in signatures]


def check_function(functions, made, where):
    if inspect.isfunction(made):  # of Python
        wanted = [parameters(ast.parse(f"def made{inspect.signature(made)}: ...").body[0])]
    else:
        wanted = overloads(made.__doc__, functions[0].name)
    written = []
    for function in functions:
        if parameters(function) not in written:  # overloads that differ in types alone
            written.append(parameters(function))
    assert written == wanted, where


def members(cls):
    """Functions of a class body by name, overloads together."""
    functions = {}
    for item in cls.body:
        if isinstance(item, ast.FunctionDef):
            functions.setdefault(item.name, []).append(item)
    return functions


def decorated(function, name):
    return any(isinstance(d, ast.Name) and d.id == name for d in function.decorator_list)


def public(names):
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("name", STUBS)
def test_the_stub_has_the_names_of_the_module(name, repository):
    stub = parsed(repository, name)
    written = {item.name for item in stub.body if isinstance(item, (ast.ClassDef, ast.FunctionDef))}
    written |= {item.target.id for item in stub.body if isinstance(item, ast.AnnAssign)}
    assert public(written) == public(dir(STUBS[name]))


def test_the_package_has_the_names_of_the_module():
    assert public(topkv.__all__) == public(dir(_core))
    assert all(getattr(topkv, name) is getattr(_core, name) for name in topkv.__all__)


@pytest.mark.parametrize("name", STUBS)
def test_classes_have_the_members_the_stub_says(name, repository):
    stub = parsed(repository, name)
    classes = [item for item in stub.body if isinstance(item, ast.ClassDef)]
    checked = 0
    for cls in classes:
        made = getattr(STUBS[name], cls.name, None)
        if made is None or issubclass(made, BaseException):
            continue
        functions = members(cls)
        assert public(functions) == public(vars(made)), cls.name
        for member, written in functions.items():
            where = f"{cls.name}.{member}"
            is_property = isinstance(vars(made)[member], property)
            assert is_property == decorated(written[0], "property"), where
            if not is_property:
                check_function(written, getattr(made, member), where)
                checked += 1
    assert checked > (30 if name == "_core.pyi" else 5)


@pytest.mark.parametrize("name", STUBS)
def test_functions_have_the_parameters_the_stub_says(name, repository):
    stub, module = parsed(repository, name), STUBS[name]
    functions = [item for item in stub.body if isinstance(item, ast.FunctionDef)]
    made = {x for x in public(dir(module)) if inspect.isbuiltin(getattr(module, x))}
    assert {f.name for f in functions} == made
    for function in functions:
        check_function([function], getattr(module, function.name), function.name)


def test_exceptions_have_the_bases_the_stub_says(stub):
    for cls in stub.body:
        made = isinstance(cls, ast.ClassDef) and getattr(_core, cls.name, None)
        if made and issubclass(made, BaseException):
            assert [base.id for base in cls.bases] == [base.__name__ for base in made.__bases__]
