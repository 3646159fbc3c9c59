//! A template's syntax tree, written again so that minijinja does what Jinja2 does.
//!
//! minijinja 3.1 parses the source (`trim_blocks`, `lstrip_blocks`); this prints its tree with every
//! operation whose meaning differs from Python's as a call of a filter of [`super::operators`]:
//! what a `for` walks, slices, `~`, `+`, `%`, `in`, the order comparisons, and attributes or items
//! that a Python object would answer with a bound method. Nothing is left of whitespace control, so
//! the result is read back with none. The tree is minijinja's `unstable_machinery`: its version is
//! pinned, and the comparison with Jinja2 (`tests/real/test_templates.py`) watches over it.
//!
//! As in Jinja2's compiler (`compiler.py` `_filter_test_common`, 3.1.6), an unknown filter or test
//! refuses the template at once, but within a condition only when it is reached.

use minijinja::machinery::ast::{Expr, Macro, Stmt};
use minijinja::syntax::SyntaxConfig;

use super::expressions::Bind;
use super::source::{ready, write_literal};

/// The template's source for the environment of [`super::environment`].
///
/// # Errors
/// Why Jinja2 would not compile it, or why it cannot be done here.
pub fn rewritten(source: &str) -> Result<String, String> {
    let source = ready(source)?;
    let tree = parsed(&source)?;
    let mut writer = Writer { out: String::with_capacity(source.len() * 2), soft: false };
    writer.statement(&tree)?;
    Ok(writer.out)
}

/// The syntax tree of a source that [`ready`] made.
///
/// # Errors
/// It is no template.
pub fn parsed(source: &str) -> Result<Stmt<'_>, String> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let syntax = syntax.expect("the default delimiters are valid");
    minijinja::machinery::parse(source, "template", syntax).map_err(|error| error.to_string())
}

/// Prints a syntax tree.
pub(super) struct Writer {
    pub(super) out: String,
    /// Within a condition, and no scope opened since.
    pub(super) soft: bool,
}

pub(super) type Done = Result<(), String>;

impl Writer {
    pub(super) fn text(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn statements(&mut self, all: &[Stmt<'_>]) -> Done {
        all.iter().try_for_each(|one| self.statement(one))
    }

    /// The body of a statement that opens a scope.
    fn scope(&mut self, body: &[Stmt<'_>]) -> Done {
        let soft = std::mem::replace(&mut self.soft, false);
        let done = self.statements(body);
        self.soft = soft;
        done
    }

    fn statement(&mut self, statement: &Stmt<'_>) -> Done {
        match statement {
            Stmt::Template(template) => self.statements(&template.children)?,
            Stmt::EmitRaw(raw) => self.raw(raw.raw),
            Stmt::EmitExpr(emit) => {
                self.text("{{ ");
                self.expression(&emit.expr, Bind::If)?;
                self.text(" }}");
            }
            Stmt::IfCond(_) => self.condition(statement)?,
            Stmt::ForLoop(each) => {
                self.text("{% for ");
                self.target(&each.target)?;
                self.text(" in ");
                self.filtered(&each.iter, "__iter")?;
                if let Some(filter) = &each.filter_expr {
                    self.text(" if ");
                    self.expression(filter, Bind::If)?;
                }
                self.text(if each.recursive { " recursive %}" } else { " %}" });
                self.scope(&each.body)?;
                if !each.else_body.is_empty() {
                    self.text("{% else %}");
                    self.scope(&each.else_body)?;
                }
                self.text("{% endfor %}");
            }
            Stmt::WithBlock(with) => {
                self.text("{% with ");
                for (at, (target, value)) in with.assignments.iter().enumerate() {
                    self.text(if at == 0 { "" } else { ", " });
                    self.target(target)?;
                    self.text(" = ");
                    self.expression(value, Bind::If)?;
                }
                self.text(" %}");
                self.scope(&with.body)?;
                self.text("{% endwith %}");
            }
            Stmt::Set(set) => {
                self.text("{% set ");
                self.target(&set.target)?;
                self.text(" = ");
                self.expression(&set.expr, Bind::If)?;
                self.text(" %}");
            }
            Stmt::SetBlock(set) => {
                self.text("{% set ");
                self.target(&set.target)?;
                if let Some(filter) = &set.filter {
                    self.text(" | ");
                    self.expression(filter, Bind::If)?;
                }
                self.text(" %}");
                self.scope(&set.body)?;
                self.text("{% endset %}");
            }
            Stmt::AutoEscape(escape) => {
                self.text("{% autoescape ");
                self.expression(&escape.enabled, Bind::If)?;
                self.text(" %}");
                self.scope(&escape.body)?;
                self.text("{% endautoescape %}");
            }
            Stmt::FilterBlock(block) => {
                self.text("{% filter ");
                self.expression(&block.filter, Bind::If)?;
                self.text(" %}");
                self.scope(&block.body)?;
                self.text("{% endfilter %}");
            }
            Stmt::Block(block) => {
                self.text("{% block ");
                self.text(block.name);
                self.text(if block.required { " required %}" } else { " %}" });
                self.scope(&block.body)?;
                self.text("{% endblock %}");
            }
            Stmt::Macro(declared) => {
                self.text("{% macro ");
                self.text(declared.name);
                self.declaration(declared)?;
                self.text("{% endmacro %}");
            }
            Stmt::CallBlock(block) => {
                self.text("{% call");
                self.parameters(&block.macro_decl)?;
                self.text(" ");
                self.call(&block.call)?;
                self.text(" %}");
                self.scope(&block.macro_decl.body)?;
                self.text("{% endcall %}");
            }
            Stmt::Continue(_) => self.text("{% continue %}"),
            Stmt::Break(_) => self.text("{% break %}"),
            // transformers gives its templates no loader: these fail when they are reached.
            Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
                self.text("{{ raise_exception(\"no loader for this environment specified\") }}");
            }
            Stmt::Do(_) => return Err("unknown tag 'do'".to_owned()),
        }
        Ok(())
    }

    /// Text between tags. One that could open a tag is written as an expression.
    fn raw(&mut self, raw: &str) {
        if !raw.contains('{') {
            return self.text(raw);
        }
        self.text("{{ ");
        write_literal(raw, &mut self.out);
        self.text(" }}");
    }

    fn condition(&mut self, first: &Stmt<'_>) -> Done {
        let soft = std::mem::replace(&mut self.soft, true);
        let mut word = "{% if ";
        let mut at = first;
        while let Stmt::IfCond(condition) = at {
            self.text(word);
            self.expression(&condition.expr, Bind::Or)?;
            self.text(" %}");
            self.statements(&condition.true_body)?;
            match condition.false_body.as_slice() {
                [next @ Stmt::IfCond(_)] => at = next,
                [] => break,
                other => {
                    self.text("{% else %}");
                    self.statements(other)?;
                    break;
                }
            }
            word = "{% elif ";
        }
        self.text("{% endif %}");
        self.soft = soft;
        Ok(())
    }

    /// What a loop or an assignment sets.
    fn target(&mut self, target: &Expr<'_>) -> Done {
        match target {
            Expr::Tuple(tuple) => self.targets(&tuple.items),
            Expr::List(list) => self.targets(&list.items),
            Expr::Var(name) => {
                self.text(name.id);
                Ok(())
            }
            Expr::GetAttr(field) => {
                self.target(&field.expr)?;
                self.text(".");
                self.text(field.name);
                Ok(())
            }
            _ => Err("cannot assign to an expression".to_owned()),
        }
    }

    fn targets(&mut self, all: &[Expr<'_>]) -> Done {
        self.text("(");
        for one in all {
            self.target(one)?;
            self.text(", ");
        }
        self.text(")");
        Ok(())
    }

    fn declaration(&mut self, declared: &Macro<'_>) -> Done {
        self.parameters(declared)?;
        self.text(" %}");
        self.scope(&declared.body)
    }

    fn parameters(&mut self, declared: &Macro<'_>) -> Done {
        self.text("(");
        let bare = declared.args.len().saturating_sub(declared.defaults.len());
        for (at, name) in declared.args.iter().enumerate() {
            self.text(if at == 0 { "" } else { ", " });
            self.target(name)?;
            if let Some(default) = at.checked_sub(bare).and_then(|at| declared.defaults.get(at)) {
                self.text("=");
                self.expression(default, Bind::If)?;
            }
        }
        self.text(")");
        Ok(())
    }
}
