//! The expressions of a template's syntax tree, written again: see [`super::rewrite`].

use minijinja::machinery::ast::{BinOpKind, Call, CallArg, CompareOpKind, Expr, UnaryOpKind};
use minijinja::value::{Value, ValueKind};

use super::names::{self, FILTERS, TESTS};
use super::rewrite::{Done, Writer};
use super::source::write_literal;

/// How strongly an expression binds, weakest first: minijinja's own order (`parser.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Bind {
    If,
    Or,
    And,
    Not,
    Compare,
    Sum,
    Concat,
    Product,
    Power,
    Filter,
    Postfix,
}

impl Bind {
    /// The next level.
    const fn stronger(self) -> Self {
        match self {
            Self::If => Self::Or,
            Self::Or => Self::And,
            Self::And => Self::Not,
            Self::Not => Self::Compare,
            Self::Compare => Self::Sum,
            Self::Sum => Self::Concat,
            Self::Concat => Self::Product,
            Self::Product => Self::Power,
            Self::Power => Self::Filter,
            Self::Filter | Self::Postfix => Self::Postfix,
        }
    }
}

impl Writer {
    /// An expression where one must bind at least as strongly as `least`.
    pub(super) fn expression(&mut self, expr: &Expr<'_>, least: Bind) -> Done {
        let bind = binding(expr);
        if bind < least {
            self.text("(");
        }
        self.bare(expr)?;
        if bind < least {
            self.text(")");
        }
        Ok(())
    }

    fn bare(&mut self, expr: &Expr<'_>) -> Done {
        match expr {
            Expr::Var(name) => self.text(name.id),
            Expr::Const(constant) => self.constant(&constant.value)?,
            Expr::List(list) => self.listed("[", &list.items, "]")?,
            Expr::Tuple(tuple) if tuple.items.len() == 1 => self.listed("(", &tuple.items, ",)")?,
            Expr::Tuple(tuple) => self.listed("(", &tuple.items, ")")?,
            Expr::Map(map) => {
                self.text("{");
                for (key, value) in map.keys.iter().zip(&map.values) {
                    self.expression(key, Bind::If)?;
                    self.text(": ");
                    self.expression(value, Bind::If)?;
                    self.text(", ");
                }
                self.text("}");
            }
            Expr::Slice(slice) => {
                self.filtered(&slice.expr, "__slice")?;
                self.text("(");
                for bound in [&slice.start, &slice.stop, &slice.step] {
                    match bound {
                        Some(bound) => self.expression(bound, Bind::If)?,
                        None => self.text("none"),
                    }
                    self.text(", ");
                }
                self.text(")");
            }
            Expr::UnaryOp(operation) => {
                let (sign, least) = match operation.op {
                    UnaryOpKind::Not => ("not ", Bind::Not),
                    UnaryOpKind::Neg => ("-", Bind::Postfix),
                };
                self.text(sign);
                self.expression(&operation.expr, least)?;
            }
            Expr::BinOp(operation) => self.binary(operation.op, &operation.left, &operation.right)?,
            Expr::Compare(chain) => {
                let mut left = &chain.expr;
                for (at, step) in chain.ops.iter().enumerate() {
                    self.text(if at == 0 { "" } else { " and " });
                    self.compared(step.op, left, &step.expr)?;
                    left = &step.expr;
                }
            }
            Expr::IfExpr(choice) => {
                let soft = std::mem::replace(&mut self.soft, true);
                self.expression(&choice.true_expr, Bind::Or)?;
                self.text(" if ");
                self.expression(&choice.test_expr, Bind::Or)?;
                if let Some(other) = &choice.false_expr {
                    self.text(" else ");
                    self.expression(other, Bind::If)?;
                }
                self.soft = soft;
            }
            Expr::Filter(filter) => {
                if let Some(base) = &filter.expr {
                    self.expression(base, Bind::Filter)?;
                    self.text("|");
                }
                self.text(self.known(filter.name, &FILTERS, "filter", names::NO_FILTER)?);
                self.arguments(&filter.args)?;
            }
            Expr::Test(test) => {
                self.expression(&test.expr, Bind::Filter)?;
                self.text(" is ");
                self.text(self.known(test.name, &TESTS, "test", names::NO_TEST)?);
                self.arguments(&test.args)?;
            }
            Expr::GetAttr(field) if names::is_method(field.name) => {
                self.filtered(&field.expr, "__attr")?;
                self.text("(\"");
                self.text(field.name);
                self.text("\")");
            }
            Expr::GetAttr(field) => {
                self.expression(&field.expr, Bind::Postfix)?;
                self.text(".");
                self.text(field.name);
            }
            Expr::GetItem(item) => self.item(&item.expr, &item.subscript_expr)?,
            Expr::Call(call) => self.call(call)?,
        }
        Ok(())
    }

    /// An expression given to one of our own filters.
    pub(super) fn filtered(&mut self, base: &Expr<'_>, filter: &str) -> Done {
        self.expression(base, Bind::Filter)?;
        self.text("|");
        self.text(filter);
        Ok(())
    }

    fn listed(&mut self, open: &str, items: &[Expr<'_>], close: &str) -> Done {
        self.text(open);
        for (at, item) in items.iter().enumerate() {
            self.text(if at == 0 { "" } else { ", " });
            self.expression(item, Bind::If)?;
        }
        self.text(close);
        Ok(())
    }

    fn constant(&mut self, value: &Value) -> Done {
        match value.kind() {
            ValueKind::String => write_literal(value.as_str().unwrap_or_default(), &mut self.out),
            ValueKind::None => self.text("none"),
            ValueKind::Bool => self.text(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.text(&value.to_string()),
            ValueKind::Number => match f64::try_from(value.clone()) {
                Ok(number) if number.is_finite() => self.text(&format!("{number:?}")),
                _ => return Err("a number is too large".to_owned()),
            },
            kind => return Err(format!("a constant of type {kind}")),
        }
        Ok(())
    }

    fn binary(&mut self, kind: BinOpKind, left: &Expr<'_>, right: &Expr<'_>) -> Done {
        let (sign, bind) = match kind {
            BinOpKind::Add => return self.chain(kind, left, right, "__add"),
            BinOpKind::Concat => return self.chain(kind, left, right, "__cat"),
            BinOpKind::Rem => {
                self.filtered(left, "__mod")?;
                return self.listed("(", std::slice::from_ref(right), ")");
            }
            BinOpKind::Eq => return self.compared(CompareOpKind::Eq, left, right),
            BinOpKind::Ne => return self.compared(CompareOpKind::Ne, left, right),
            BinOpKind::Lt => return self.compared(CompareOpKind::Lt, left, right),
            BinOpKind::Lte => return self.compared(CompareOpKind::Lte, left, right),
            BinOpKind::Gt => return self.compared(CompareOpKind::Gt, left, right),
            BinOpKind::Gte => return self.compared(CompareOpKind::Gte, left, right),
            BinOpKind::In => return self.compared(CompareOpKind::In, left, right),
            BinOpKind::ScOr => (" or ", Bind::Or),
            BinOpKind::ScAnd => (" and ", Bind::And),
            BinOpKind::Sub => (" - ", Bind::Sum),
            BinOpKind::Mul => (" * ", Bind::Product),
            BinOpKind::Div => (" / ", Bind::Product),
            BinOpKind::FloorDiv => (" // ", Bind::Product),
            BinOpKind::Pow => (" ** ", Bind::Power),
        };
        self.expression(left, bind)?;
        self.text(sign);
        self.expression(right, bind.stronger())
    }

    /// A chain of one operation, as one call with all its operands.
    fn chain(&mut self, kind: BinOpKind, left: &Expr<'_>, right: &Expr<'_>, filter: &str) -> Done {
        let mut operands = vec![right];
        let mut first = left;
        while let Expr::BinOp(inner) = first
            && std::mem::discriminant(&inner.op) == std::mem::discriminant(&kind)
            // Calls take 2,000 arguments at most.
            && operands.len() < 1_000
        {
            operands.push(&inner.right);
            first = &inner.left;
        }
        operands.push(first);
        self.text("none|");
        self.text(filter);
        self.text("(");
        for operand in operands.into_iter().rev() {
            self.expression(operand, Bind::If)?;
            self.text(", ");
        }
        self.text(")");
        Ok(())
    }

    fn compared(&mut self, kind: CompareOpKind, left: &Expr<'_>, right: &Expr<'_>) -> Done {
        let (filter, base, other) = match kind {
            CompareOpKind::Eq | CompareOpKind::Ne => {
                self.expression(left, Bind::Sum)?;
                self.text(if matches!(kind, CompareOpKind::Eq) { " == " } else { " != " });
                return self.expression(right, Bind::Sum);
            }
            CompareOpKind::Lt => ("__lt", left, right),
            CompareOpKind::Lte => ("__le", left, right),
            CompareOpKind::Gt => ("__gt", left, right),
            CompareOpKind::Gte => ("__ge", left, right),
            CompareOpKind::In => ("__in", right, left),
            CompareOpKind::NotIn => ("__notin", right, left),
        };
        self.filtered(base, filter)?;
        self.listed("(", std::slice::from_ref(other), ")")
    }

    fn item(&mut self, base: &Expr<'_>, key: &Expr<'_>) -> Done {
        let plain = match key {
            Expr::Const(constant) => match constant.value.as_str() {
                Some(text) => !names::is_method(text),
                None => constant.value.is_integer(),
            },
            _ => false,
        };
        if plain {
            self.expression(base, Bind::Postfix)?;
            return self.listed("[", std::slice::from_ref(key), "]");
        }
        self.filtered(base, "__item")?;
        self.listed("(", std::slice::from_ref(key), ")")
    }

    /// A call of a function, a method or whatever an expression gives.
    pub(super) fn call(&mut self, call: &Call<'_>) -> Done {
        match &call.expr {
            Expr::Var(name) => {
                self.text(name.id);
                if let ("loop", [CallArg::Pos(over)]) = (name.id, call.args.as_slice()) {
                    self.text("(");
                    self.filtered(over, "__iter")?;
                    self.text(")");
                    return Ok(());
                }
            }
            Expr::GetAttr(method) => {
                self.expression(&method.expr, Bind::Postfix)?;
                self.text(".");
                self.text(method.name);
            }
            other => self.expression(other, Bind::Postfix)?,
        }
        self.arguments(&call.args)
    }

    fn arguments(&mut self, all: &[CallArg<'_>]) -> Done {
        self.text("(");
        for (at, one) in all.iter().enumerate() {
            self.text(if at == 0 { "" } else { ", " });
            let value = match one {
                CallArg::Pos(value) => value,
                CallArg::Kwarg(name, value) => {
                    self.text(name);
                    self.text("=");
                    value
                }
                CallArg::PosSplat(value) => {
                    self.text("*");
                    value
                }
                CallArg::KwargSplat(value) => {
                    self.text("**");
                    value
                }
            };
            self.expression(value, Bind::If)?;
        }
        self.text(")");
        Ok(())
    }

    /// A filter's or test's name, or of one that fails when it is reached.
    fn known<'n>(&self, name: &'n str, all: &[&str], what: &str, none: &'n str) -> Result<&'n str, String> {
        match all.contains(&name) {
            true => Ok(name),
            false if self.soft => Ok(none),
            false => Err(format!("no {what} named '{name}'")),
        }
    }
}

/// How strongly what is printed for an expression binds.
fn binding(expr: &Expr<'_>) -> Bind {
    match expr {
        Expr::IfExpr(_) => Bind::If,
        Expr::UnaryOp(operation) => match operation.op {
            UnaryOpKind::Not => Bind::Not,
            UnaryOpKind::Neg => Bind::Filter,
        },
        Expr::Compare(_) => Bind::And,
        Expr::BinOp(operation) => match operation.op {
            BinOpKind::ScOr => Bind::Or,
            BinOpKind::ScAnd => Bind::And,
            BinOpKind::Eq | BinOpKind::Ne => Bind::Compare,
            BinOpKind::Sub => Bind::Sum,
            BinOpKind::Mul | BinOpKind::Div | BinOpKind::FloorDiv => Bind::Product,
            BinOpKind::Pow => Bind::Power,
            _ => Bind::Filter,
        },
        Expr::Filter(_) | Expr::Test(_) | Expr::Slice(_) => Bind::Filter,
        Expr::GetAttr(field) if names::is_method(field.name) => Bind::Filter,
        // `item` may print a filter: with parentheses either is right.
        Expr::GetItem(item) if !matches!(item.subscript_expr, Expr::Const(_)) => Bind::Filter,
        Expr::GetItem(item) => match &item.subscript_expr {
            Expr::Const(constant) if constant.value.as_str().is_some_and(names::is_method) => Bind::Filter,
            _ => Bind::Postfix,
        },
        // Digits before a dot would be read as a float's.
        Expr::Const(constant) if constant.value.kind() == ValueKind::Number => Bind::Filter,
        _ => Bind::Postfix,
    }
}
