//! Whether a chat template wants message contents as lists of parts or as text.
//!
//! vLLM 0.32.0 (`renderers/hf.py` `_detect_content_format`) walks Jinja2's syntax tree: a loop over
//! `message.content`, over a macro's parameter that is given it, or over a variable named `content`
//! outside macros, means lists ("openai"). Where its walk fails, or the template does not parse, it
//! takes text. Here the same rules walk minijinja's tree.

use std::collections::{HashMap, HashSet};

use minijinja::machinery::ast::{Call, CallArg, Expr, ForLoop, Macro, Stmt};

use super::template::apart;
use super::template::rewrite::parsed;
use super::template::source::ready;

/// Whether contents reach this template as lists of parts.
pub fn wants_lists(source: &str) -> bool {
    let found = apart(|| {
        let source = ready(source).ok()?;
        let tree = parsed(&source).ok()?;
        let mut nodes = Nodes::default();
        nodes.statement(&tree);
        nodes.loops_over_contents()
    });
    found.ok().flatten().unwrap_or(false)
}

/// The nodes of a tree that matter, in its order.
#[derive(Default)]
struct Nodes<'t, 's> {
    /// Targets and values of assignments.
    sets: Vec<(&'t Expr<'s>, &'t Expr<'s>)>,
    /// Loops, with the macros around them, outermost first.
    loops: Vec<(&'t ForLoop<'s>, Vec<usize>)>,
    macros: Vec<&'t Macro<'s>>,
    /// Calls of a bare name.
    calls: HashMap<&'s str, Vec<&'t [CallArg<'s>]>>,
    /// The macros around the node at hand.
    within: Vec<usize>,
}

impl<'t, 's> Nodes<'t, 's> {
    /// `None` where vLLM's own walk fails.
    fn loops_over_contents(&self) -> Option<bool> {
        let lists = self.message_lists()?;
        let mut each = HashSet::new();
        for (one, _) in &self.loops {
            if variable(&one.iter).is_some_and(|over| lists.contains(over)) {
                each.insert(name(&one.target)?);
            }
        }
        let is_content = |expr: &Expr<'s>| field(expr, "content").is_some_and(|of| each.contains(of));
        let given: Vec<HashSet<&str>> = self.macros.iter().map(|one| self.given(one, &is_content)).collect();
        for (one, within) in &self.loops {
            let bare = name(&one.iter);
            // An inner macro's parameters hide the outer's where it is given contents at all.
            let params = within.iter().rev().map(|at| &given[*at]).find(|params| !params.is_empty());
            let found = is_content(&one.iter)
                || bare.is_some_and(|over| params.is_some_and(|params| params.contains(over)))
                || (within.is_empty() && bare == Some("content"));
            if found {
                return name(&one.target).map(|_| true);
            }
        }
        Some(false)
    }

    /// `messages` and the variables that are set to it or a part of it.
    fn message_lists(&self) -> Option<HashSet<&'s str>> {
        let mut from: HashMap<&str, Vec<&'t Expr<'s>>> = HashMap::new();
        for (target, value) in &self.sets {
            if let Some(of) = variable(value) {
                from.entry(of).or_default().push(*target);
            }
        }
        let mut lists = HashSet::from(["messages"]);
        let mut open = vec!["messages"];
        while let Some(list) = open.pop() {
            for target in from.get(list).into_iter().flatten() {
                let target = name(target)?;
                if lists.insert(target) {
                    open.push(target);
                }
            }
        }
        Some(lists)
    }

    /// The parameters of a macro that some call gives a message's content.
    fn given(&self, declared: &Macro<'s>, is_content: &impl Fn(&Expr<'s>) -> bool) -> HashSet<&'s str> {
        let params: Vec<&str> = declared.args.iter().filter_map(name).collect();
        let mut given = HashSet::new();
        for args in self.calls.get(declared.name).into_iter().flatten() {
            let mut at = 0;
            for arg in *args {
                match arg {
                    CallArg::Pos(value) => {
                        given.extend(params.get(at).filter(|_| is_content(value)));
                        at += 1;
                    }
                    CallArg::Kwarg(key, value) => {
                        given.extend(params.iter().find(|param| *param == key).filter(|_| is_content(value)));
                    }
                    CallArg::PosSplat(_) | CallArg::KwargSplat(_) => {}
                }
            }
        }
        given
    }
}

/// A bare variable.
fn name<'s>(expr: &Expr<'s>) -> Option<&'s str> {
    match expr {
        Expr::Var(name) => Some(name.id),
        _ => None,
    }
}

/// What an expression is behind any slices, filters and tests.
fn behind<'t, 's>(mut expr: &'t Expr<'s>) -> Option<&'t Expr<'s>> {
    loop {
        expr = match expr {
            Expr::Filter(filter) => filter.expr.as_ref()?,
            Expr::Test(test) => &test.expr,
            Expr::Slice(slice) => &slice.expr,
            other => return Some(other),
        };
    }
}

/// The variable that an expression is, or is a part of.
fn variable<'s>(expr: &Expr<'s>) -> Option<&'s str> {
    behind(expr).and_then(name)
}

/// The variable whose field of that name an expression is, or is a part of.
fn field<'s>(expr: &Expr<'s>, key: &str) -> Option<&'s str> {
    match behind(expr)? {
        Expr::GetAttr(field) if field.name == key => name(&field.expr),
        Expr::GetItem(item) => match &item.subscript_expr {
            Expr::Const(constant) if constant.value.as_str() == Some(key) => name(&item.expr),
            _ => None,
        },
        _ => None,
    }
}

impl<'t, 's> Nodes<'t, 's> {
    fn body(&mut self, body: &'t [Stmt<'s>]) {
        body.iter().for_each(|one| self.statement(one));
    }

    fn expressions(&mut self, all: impl IntoIterator<Item = &'t Expr<'s>>) {
        all.into_iter().for_each(|one| self.expression(one));
    }

    fn declared(&mut self, declared: &'t Macro<'s>) {
        self.expressions(&declared.defaults);
        self.body(&declared.body);
    }

    fn statement(&mut self, statement: &'t Stmt<'s>) {
        match statement {
            Stmt::Template(template) => self.body(&template.children),
            Stmt::EmitExpr(emit) => self.expression(&emit.expr),
            Stmt::ForLoop(each) => {
                self.loops.push((each, self.within.clone()));
                self.expressions([&each.target, &each.iter].into_iter().chain(&each.filter_expr));
                self.body(&each.body);
                self.body(&each.else_body);
            }
            Stmt::IfCond(condition) => {
                self.expression(&condition.expr);
                self.body(&condition.true_body);
                self.body(&condition.false_body);
            }
            Stmt::WithBlock(with) => {
                self.expressions(with.assignments.iter().map(|(_, value)| value));
                self.body(&with.body);
            }
            Stmt::Set(set) => {
                self.sets.push((&set.target, &set.expr));
                self.expression(&set.expr);
            }
            Stmt::SetBlock(set) => {
                self.expressions(&set.filter);
                self.body(&set.body);
            }
            Stmt::AutoEscape(escape) => self.body(&escape.body),
            Stmt::FilterBlock(block) => {
                self.expression(&block.filter);
                self.body(&block.body);
            }
            Stmt::Block(block) => self.body(&block.body),
            Stmt::Macro(declared) => {
                self.within.push(self.macros.len());
                self.macros.push(declared);
                self.declared(declared);
                self.within.pop();
            }
            Stmt::CallBlock(block) => {
                self.call(&block.call);
                self.declared(&block.macro_decl);
            }
            Stmt::Do(call) => self.call(&call.call),
            Stmt::EmitRaw(_)
            | Stmt::Import(_)
            | Stmt::FromImport(_)
            | Stmt::Extends(_)
            | Stmt::Include(_)
            | Stmt::Continue(_)
            | Stmt::Break(_) => {}
        }
    }

    fn expression(&mut self, expr: &'t Expr<'s>) {
        match expr {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::Slice(slice) => {
                let bounds = [&slice.start, &slice.stop, &slice.step];
                self.expressions([&slice.expr].into_iter().chain(bounds.into_iter().flatten()));
            }
            Expr::UnaryOp(operation) => self.expression(&operation.expr),
            Expr::BinOp(operation) => self.expressions([&operation.left, &operation.right]),
            Expr::Compare(chain) => {
                self.expressions([&chain.expr].into_iter().chain(chain.ops.iter().map(|step| &step.expr)));
            }
            Expr::IfExpr(choice) => {
                let parts = [&choice.test_expr, &choice.true_expr];
                self.expressions(parts.into_iter().chain(&choice.false_expr));
            }
            Expr::Filter(filter) => {
                self.expressions(&filter.expr);
                self.arguments(&filter.args);
            }
            Expr::Test(test) => {
                self.expression(&test.expr);
                self.arguments(&test.args);
            }
            Expr::GetAttr(field) => self.expression(&field.expr),
            Expr::GetItem(item) => self.expressions([&item.expr, &item.subscript_expr]),
            Expr::Call(call) => self.call(call),
            Expr::List(list) => self.expressions(&list.items),
            Expr::Tuple(tuple) => self.expressions(&tuple.items),
            Expr::Map(map) => self.expressions(map.keys.iter().chain(&map.values)),
        }
    }

    fn call(&mut self, call: &'t Call<'s>) {
        if let Some(name) = name(&call.expr) {
            self.calls.entry(name).or_default().push(&call.args);
        }
        self.expression(&call.expr);
        self.arguments(&call.args);
    }

    fn arguments(&mut self, all: &'t [CallArg<'s>]) {
        self.expressions(all.iter().map(|arg| match arg {
            CallArg::Pos(value)
            | CallArg::Kwarg(_, value)
            | CallArg::PosSplat(value)
            | CallArg::KwargSplat(value) => value,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Templates, and whether vLLM 0.32.0 gives them lists.
    const BY_VLLM: [(&str, bool); 50] = [
        ("{% for m in messages %}{% for c in m.content %}x{% endfor %}{% endfor %}", true),
        (
            "{%- for m in messages[1:] | list -%}{%- for c in m['content'] | reverse if c -%}{%- endfor -%}{%- endfor -%}",
            true,
        ),
        (
            "{% set loop_messages = messages[1:] %}{% for m in loop_messages %}{% for c in m[\"content\"] %}x{% endfor %}{% endfor %}",
            true,
        ),
        ("{% for c in content %}x{% endfor %}", true),
        (
            "{% macro render(text, x=1) %}{% for c in text %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ '}}' + render(m.content, true) }}{% endfor %}",
            true,
        ),
        (
            "{% macro render(a, text) %}{% for c in text %}x{% endfor %}{% endmacro %}{% for m in messages %}{% set x = render(1, text=m.content) %}{% endfor %}",
            true,
        ),
        ("", false),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", false),
        ("{% for m in messages %}{% for c in m.tool_calls %}x{% endfor %}{% endfor %}", false),
        ("{# {% for item in content %} #}", false),
        ("{% macro render(content) %}{% for c in content %}x{% endfor %}{% endmacro %}", false),
        (
            "{% macro render(content) %}{% for c in content %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ render(m.content) }}{% endfor %}",
            true,
        ),
        ("{% set ns.messages = messages %}{% for c in content %}x{% endfor %}", false),
        (
            "{% set ns = namespace() %}{% set ns.messages = messages %}{% for c in content %}x{% endfor %}",
            false,
        ),
        ("{% for m in other %}{% for c in m.content %}x{% endfor %}{% endfor %}", false),
        (
            "{% for m in messages %}{% generation %}{% for c in m.content %}x{% endfor %}{% endgeneration %}{% endfor %}",
            true,
        ),
        ("{% for i, m in messages %}{% endfor %}{% for c in content %}x{% endfor %}", false),
        ("{% for m in messages %}{% for a, b in m.content %}{% endfor %}{% endfor %}", false),
        (
            "{% for m in messages %}{% for a, b in m.content %}{% endfor %}{% for c in m.content %}x{% endfor %}{% endfor %}",
            false,
        ),
        (
            "{% set a = messages %}{% set b = a | list %}{% set c = b[::-1] %}{% for m in c %}{% for c in m.content %}x{% endfor %}{% endfor %}",
            true,
        ),
        (
            "{% set a = messages or [] %}{% for m in a %}{% for c in m.content %}x{% endfor %}{% endfor %}",
            false,
        ),
        (
            "{% set a = (messages) %}{% for m in a if m %}{% for c in (m.content) %}x{% endfor %}{% endfor %}",
            true,
        ),
        ("{% for m in messages %}{% for c in m.content is string %}x{% endfor %}{% endfor %}", true),
        ("{% for m in messages %}{% for c in m.content is not string %}x{% endfor %}{% endfor %}", false),
        ("{% for m in messages %}{% for c in (m.content | trim)[0:2] %}x{% endfor %}{% endfor %}", true),
        ("{% for m in messages %}{% for c in m.content[0] %}x{% endfor %}{% endfor %}", false),
        ("{% for m in messages %}{% for c in m.content.parts %}x{% endfor %}{% endfor %}", false),
        ("{% for m in messages %}{% for c in m[key] %}x{% endfor %}{% endfor %}", false),
        ("{% for m in messages %}{% for c in (m or n).content %}x{% endfor %}{% endfor %}", false),
        (
            "{% for m in messages %}{% if m.content is string %}a{% else %}{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}",
            true,
        ),
        (
            "{% for m in messages %}{% set content = m.content %}{% for c in content %}x{% endfor %}{% endfor %}",
            true,
        ),
        (
            "{% for m in messages %}{% set parts = m.content %}{% for c in parts %}x{% endfor %}{% endfor %}",
            false,
        ),
        (
            "{% macro a(x) %}{% macro b(y) %}{% for c in y %}x{% endfor %}{% endmacro %}{{ b(x) }}{% endmacro %}{% for m in messages %}{{ a(m.content) }}{% endfor %}",
            false,
        ),
        (
            "{% macro a(x) %}{% macro b(x) %}{% for c in x %}x{% endfor %}{% endmacro %}{% endmacro %}{% for m in messages %}{{ a(m.content) }}{% endfor %}",
            true,
        ),
        (
            "{% macro a(x) %}{% for c in x %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ z.a(m.content) }}{% endfor %}",
            false,
        ),
        (
            "{% macro a(x) %}{% for c in x %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ a(m.content | trim) }}{% endfor %}",
            true,
        ),
        (
            "{% macro a(x) %}{% for c in x | list %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ a(m.content) }}{% endfor %}",
            false,
        ),
        (
            "{% macro a(x) %}{% for c in x %}x{% endfor %}{% endmacro %}{% for m in messages %}{{ a(*m.content) }}{% endfor %}",
            false,
        ),
        (
            "{% for m in messages %}{% call wrap(m.content) %}{% endcall %}{% endfor %}{% macro wrap(x) %}{% for c in x %}x{% endfor %}{% endmacro %}",
            true,
        ),
        (
            "{% for m in messages %}{% call wrap() %}{% for c in content %}x{% endfor %}{% endcall %}{% endfor %}",
            true,
        ),
        ("{% if x %}{% for c in content %}x{% endfor %}{% endif %}", true),
        ("{% for content in m.content %}{% endfor %}", false),
        ("{% for content in content %}{% endfor %}", true),
        ("{{ raise_exception('x') }}{% for m in messages %}{% for c in m.content %}", false),
        ("{% do x %}{% for c in content %}x{% endfor %}", false),
        ("{% if y %}{{ x|nofilter }}{% endif %}{% for c in content %}x{% endfor %}", true),
        ("{% set x = messages[0].content %}{% for c in x %}x{% endfor %}", false),
        (
            "{% for m in messages %}{% for c in m.content recursive %}{{ loop(c) }}{% endfor %}{% endfor %}",
            true,
        ),
        ("{% with content = 1 %}{% for c in content %}x{% endfor %}{% endwith %}", true),
        (
            "{% set a = b %}{% set b = messages %}{% for m in a %}{% for c in m.content %}x{% endfor %}{% endfor %}",
            true,
        ),
    ];

    #[test]
    fn contents_are_lists_where_vllm_has_them_so() {
        for (source, lists) in BY_VLLM {
            assert_eq!(wants_lists(source), lists, "{source}");
        }
    }
}
