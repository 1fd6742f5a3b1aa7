//! A TOML file whose errors name the line and the key.

use std::{fmt, fs, io::Read, ops::Range, path::Path};

use anyhow::{Context, anyhow, bail};
use toml_edit::{Item, Table, Value};

use crate::report::misuse;

/// Configurations are smaller. This bounds how much is read from a wrong path.
const MOST_BYTES: u64 = 1 << 20;

/// A parsed file.
pub(super) struct Document {
    shown: String,
    toml: toml_edit::Document<String>,
}

impl Document {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display().to_string();
        let cannot = || format!("cannot read the configuration {shown}");
        let mut text = String::new();
        let file = fs::File::open(path).with_context(cannot)?;
        file.take(MOST_BYTES + 1).read_to_string(&mut text).with_context(cannot)?;
        if text.len() as u64 > MOST_BYTES {
            bail!("{shown} is larger than 1 MiB: not a configuration of pagefold");
        }
        Self::parse(shown, text)
    }

    pub(super) fn parse(shown: String, text: String) -> anyhow::Result<Self> {
        match toml_edit::Document::parse(text.clone()) {
            Ok(toml) => Ok(Self { shown, toml }),
            Err(error) => {
                let line = error.span().map_or(1, |span| line(&text, span.start));
                let what = error.message().lines().collect::<Vec<_>>().join(", ");
                Err(misuse(anyhow!("{shown}:{line}: {what}")))
            }
        }
    }

    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns the entries outside of tables, and the tables.
    pub(super) fn top(&self) -> Vec<Entry<'_>> {
        self.entries(self.toml.as_table(), "")
    }

    /// Returns a table's entries. `of` says what the table describes, for errors.
    pub(super) fn entries<'a>(&'a self, table: &'a Table, of: &'a str) -> Vec<Entry<'a>> {
        let all = table.iter().filter_map(|(key, _)| table.get_key_value(key));
        all.map(|(key, item)| Entry { document: self, key: key.get(), of, span: key.span(), item }).collect()
    }

    /// Returns the place of a part of the text, as `FILE:LINE`.
    pub(super) fn place(&self, span: Option<Range<usize>>) -> String {
        let line = span.map_or(1, |span| line(self.toml.raw(), span.start));
        format!("{}:{line}", self.shown)
    }
}

fn line(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1
}

/// A key with its value.
#[derive(Clone)]
pub(super) struct Entry<'a> {
    document: &'a Document,
    pub(super) key: &'a str,
    of: &'a str,
    span: Option<Range<usize>>,
    pub(super) item: &'a Item,
}

impl Entry<'_> {
    /// Returns an error at this entry.
    pub(super) fn wrong(&self, what: impl fmt::Display) -> anyhow::Error {
        let place = self.document.place(self.span.clone());
        misuse(anyhow!("{place}: {}'{}': {what}", self.of, self.key))
    }

    /// Returns text, or a number as it is written.
    pub(super) fn text(&self) -> anyhow::Result<String> {
        self.item.as_value().map_or_else(|| Err(self.wrong_type("text or a number")), |value| self.scalar(value))
    }

    /// Returns the texts or numbers of a list, or a single one.
    pub(super) fn texts(&self) -> anyhow::Result<Vec<String>> {
        match self.item.as_array() {
            Some(array) => array.iter().map(|value| self.scalar(value)).collect(),
            None => Ok(vec![self.text()?]),
        }
    }

    pub(super) fn flag(&self) -> anyhow::Result<bool> {
        self.item.as_bool().ok_or_else(|| self.wrong_type("true or false"))
    }

    fn scalar(&self, value: &Value) -> anyhow::Result<String> {
        match value {
            Value::String(text) => Ok(text.value().clone()),
            Value::Integer(number) => {
                // A mode such as 0o660 would otherwise become another one, in decimal digits.
                let written = number.span().and_then(|span| self.document.toml.raw().get(span)).unwrap_or_default();
                if written.is_empty() || !written.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(self.wrong(format!("write {written} in quotes, as on the command line")));
                }
                Ok(written.to_owned())
            }
            _ => Err(self.wrong_type("text or a number")),
        }
    }

    fn wrong_type(&self, wanted: &str) -> anyhow::Error {
        self.wrong(format!("must be {wanted}, not {}", kind(self.item)))
    }
}

fn kind(item: &Item) -> &'static str {
    match item {
        Item::None => "nothing",
        Item::Table(_) | Item::Value(Value::InlineTable(_)) => "a table",
        Item::ArrayOfTables(_) => "tables",
        Item::Value(Value::String(_)) => "text",
        Item::Value(Value::Integer(_)) => "a number",
        Item::Value(Value::Float(_)) => "a number with a fraction",
        Item::Value(Value::Boolean(_)) => "true or false",
        Item::Value(Value::Datetime(_)) => "a date",
        Item::Value(Value::Array(_)) => "a list",
    }
}
