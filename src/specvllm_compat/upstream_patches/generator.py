"""Codemods for the module of VllmHiddenStatesGenerator."""

from __future__ import annotations

import re

import libcst as cst
import libcst.matchers as m
from specvllm_compat.upstream_patches.edit import (
    MissingAnchor,
    assigned,
    body,
    call,
    changed,
    check_known,
    function,
    imported,
    one,
    required,
    template,
    the_class,
    with_body,
    without_constant,
    without_names,
)

CLASS = "VllmHiddenStatesGenerator"
_PLANNING = (
    "_get_kv_cache_groups_uniform_spec",
    "get_kv_cache_config_from_groups",
    "unify_hybrid_kv_cache_specs",
)
_COUNTER = m.Attribute(attr=m.Name("_request_counter"))
# The code that is replaced, as speculators 0.3.0, and 0.4.0 with 0.4.0.1, have it
_KNOWN = {
    "_create_vllm_config": ("638947d9ba61", "0b9b8174b5cf"),
    "__init__": ("0bac83586bfa", "f506f722bde9"),
    "generate": ("653f8d9e1980", "d443b839ccd1"),
}


def load_every_model_file(module: cst.Module) -> cst.Module:
    """Trust the tokenizer's own code, too; find the layers in nested configs."""
    statements = body(function(module, f"{CLASS}.__init__"))
    loads = m.Call(
        func=m.Attribute(m.Name("AutoTokenizer"), m.Name("from_pretrained")),
        args=[m.Arg(m.Name("model_path"))],
    )
    tokenizer = one(statements, loads, "AutoTokenizer.from_pretrained(model_path)")
    config = one(statements, assigned("config"), "assignment to config")
    ours, *descend = body(function(template("model_files"), f"{CLASS}.__init__"))
    assert isinstance(tokenizer, cst.SimpleStatementLine)
    ours = ours.with_changes(leading_lines=tokenizer.leading_lines)
    return changed(module, {tokenizer: [ours], config: [config, *descend]})


def build_the_config_as_vllm_does(module: cst.Module) -> cst.Module:
    """``EngineArgs`` in place of config classes filled by hand."""
    create = function(module, f"{CLASS}._create_vllm_config")
    check_known(body(create), _KNOWN["_create_vllm_config"], f"{CLASS}._create_vllm_config")
    parameters = [parameter.name.value for parameter in create.params.params]
    tokens = "max(MIN_MAX_BATCHED_TOKENS, max_model_len)"
    if "max_num_batched_tokens" in parameters:
        tokens = f"max_num_batched_tokens\n            or {tokens}"
    ours = template("config_fields", MAX_NUM_BATCHED_TOKENS=tokens)
    checks = body(function(ours, f"{CLASS}.__init__"))
    builds = with_body(create, body(function(ours, f"{CLASS}._create_vllm_config")))
    statements = body(function(module, f"{CLASS}.__init__"))
    loop = one(statements, m.For(target=m.Name("layer_id")), "loop over layer ids")
    os_module, config, arguments = (
        statement for statement in ours.body if isinstance(statement, cst.SimpleStatementLine)
    )
    old = required(imported(module, "vllm.config"), "import from vllm.config")
    first = next(s for s in module.body[1:] if m.matches(s, m.SimpleStatementLine()))
    assert isinstance(first, cst.SimpleStatementLine)
    return changed(
        module,
        {
            first: [os_module.with_changes(leading_lines=first.leading_lines), first],
            old: [config.with_changes(leading_lines=old.leading_lines), arguments],
            loop: [*checks, loop],
            create: [builds],
            **without_constant(module, "MAX_NUM_SEQS"),
        },
    )


def let_vllm_assemble_the_engine(module: cst.Module) -> cst.Module:
    """Executor, KV cache plan and scheduler of an ``EngineCore`` in place of ones by hand."""
    statements = body(function(module, f"{CLASS}.__init__"))
    first = one(statements, assigned("executor"), "assignment to self.executor")
    capture = one(statements, call("_setup_capture"), "call of self._setup_capture()")
    last = one(statements, call("initialize_from_config"), "call of initialize_from_config()")
    start, middle, end = (statements.index(one) for one in (first, capture, last))
    check_known(statements[start : end + 1], _KNOWN["__init__"], f"{CLASS}.__init__")
    ours = template("assembled_engine")
    engine = next(s for s in ours.body if isinstance(s, cst.SimpleStatementLine))
    executor = required(
        imported(module, "vllm.v1.executor.multiproc_executor"), "import of MultiprocExecutor"
    )
    planning = required(
        imported(module, "vllm.v1.core.kv_cache_utils"), "import from vllm.v1.core.kv_cache_utils"
    )
    manager = required(
        imported(module, "vllm.v1.structured_output"), "import of StructuredOutputManager"
    )
    changes: dict[cst.CSTNode, list[cst.CSTNode]] = {
        first: [*body(function(ours, f"{CLASS}.__init__"))],
        **{statement: [] for statement in statements[middle + 1 : end + 1]},
        planning: [*without_names(planning, _PLANNING)],
        executor: [engine, executor],
        manager: [],
        **without_constant(module, "CACHE_MEMORY_FRACTION"),
    }
    memory = imported(module, "speculators.utils.util")
    if memory is not None and m.findall(memory, m.Name("mem_get_info")):
        changes[memory] = [*without_names(memory, ["mem_get_info"])]
    return changed(module, changes)


def build_requests_as_vllm_wants_them(module: cst.Module) -> cst.Module:
    """``eos_token_id`` only where ``Request`` takes it."""
    generate = function(module, f"{CLASS}.generate")
    argument = m.Arg(keyword=m.Name("eos_token_id"))
    found = [c for c in m.findall(generate, call("Request")) if m.findall(c, argument)]
    if len(found) != 1:
        raise MissingAnchor("Request(eos_token_id=…)")
    [old] = m.findall(found[0], argument)
    [new] = m.findall(template("request"), m.Arg(star="**"))
    assert isinstance(old, cst.Arg)
    assert isinstance(new, cst.Arg)
    return changed(module, {old: [new.with_changes(comma=old.comma)]})


def describe_the_capture(module: cst.Module) -> cst.Module:
    """The class's docstring says how states are captured."""
    documented = the_class(module, CLASS).body.body[0]
    strings = m.findall(documented, m.SimpleString())
    if not strings or not isinstance(strings[0], cst.SimpleString):
        return module
    text = re.sub(
        r"(?m)^( *)- Patches .*$",
        r"\1- Puts hooks on decoder layers to capture their hidden states",
        strings[0].value,
    )
    return changed(module, {strings[0]: [strings[0].with_changes(value=text)]})


def run_the_schedulers_loop(module: cst.Module) -> cst.Module:
    """A ``generate()`` that runs the engine until it is empty and cannot mix up rows."""
    generate = function(module, f"{CLASS}.generate")
    statements = body(generate)
    check_known(statements, _KNOWN["generate"], f"{CLASS}.generate")
    ours = template("generate")
    requests = one(statements, call("Request"), "loop that builds requests")
    before, loop, after = _around_the_loop(body(function(ours, f"{CLASS}.generate")))
    assert isinstance(requests, cst.For)
    kept = [s for s in body(requests) if _is_about_the_request(s)]
    merged = with_body(requests, [*kept, *body(loop)])
    merged = merged.with_changes(target=loop.target, leading_lines=loop.leading_lines)
    counts = one(statements, m.AugAssign(target=_COUNTER), "increment of self._request_counter")
    frees = one(statements, call("empty_cache"), "call of empty_cache()")
    new = with_body(generate, [*before, merged, counts, *after, frees, statements[-1]])
    helpers = body(the_class(ours, CLASS))[1:]
    return changed(module, {generate: [_without_remark(new), *helpers]})


def let_with_end_the_workers(module: cst.Module) -> cst.Module:
    """The class becomes a context manager."""
    last = function(module, f"{CLASS}.__del__")
    methods = the_class(template("context_manager"), CLASS).body.body
    blank = cst.EmptyLine(indent=False)
    ours = [method.with_changes(leading_lines=[blank]) for method in methods]
    return changed(module, {last: [last, *ours]})


def _around_the_loop(
    statements: list[cst.BaseStatement],
) -> tuple[list[cst.BaseStatement], cst.For, list[cst.BaseStatement]]:
    index = next(i for i, s in enumerate(statements) if isinstance(s, cst.For))
    loop = statements[index]
    assert isinstance(loop, cst.For)
    return statements[:index], loop, statements[index + 1 :]


def _is_about_the_request(statement: cst.BaseStatement) -> bool:
    """It builds or adds the request, or names its id."""
    about = m.OneOf(call("Request"), call("add_request"), assigned("req_id"))
    return bool(m.findall(statement, about))


def _without_remark(generate: cst.FunctionDef) -> cst.FunctionDef:
    """Without the linter's remark about a long function, which it no longer is."""
    remark = m.TrailingWhitespace(
        comment=m.Comment(m.MatchIfTrue(lambda text: "noqa: PLR" in text))
    )
    if not m.matches(generate.body, m.IndentedBlock(header=remark)):
        return generate
    return generate.with_changes(body=generate.body.with_changes(header=cst.TrailingWhitespace()))
